// Cells that are read with the pointer, or with the arrow keys once their place has the focus.

import { arrowOf, showTip } from "/page/dom.js";

// nx, ny: cells to the right and downwards; cellAt(x, y, target) -> [i, j], and placeOf(i, j) ->
// [x, y], both in the place's own pixels; textOf(i, j): the tip; onCell(i, j): a cell, or [-1, -1],
// is shown; choose(i, j): a click or Enter; begin(): the cell of the first arrow key.
export function explore(place, { nx, ny = 1, label, role = "img", ...acts }) {
  const { cellAt, placeOf, textOf, onCell, choose, begin = () => [0, ny - 1] } = acts;
  let at = [-1, -1];
  place.tabIndex = 0;
  place.setAttribute("role", role);
  place.setAttribute("aria-label", label);
  if (choose) place.style.cursor = "pointer";
  const isIn = (/** @type {number[]} */ [i, j]) => i >= 0 && i < nx && j >= 0 && j < ny;
  const show = (cell, tipAt) => {
    const isNew = cell[0] !== at[0] || cell[1] !== at[1];
    at = isIn(cell) ? cell : [-1, -1];
    showTip(isIn(at) ? textOf(...at) : "", tipAt);
    if (isNew) onCell?.(...at);
  };
  // where the place begins, and how many of its pixels are one of the window
  const frame = () => {
    const box = place.getBoundingClientRect();
    return [box, (place.viewBox?.baseVal.width ?? box.width) / box.width];
  };
  const find = (event) => {
    const [box, scale] = frame();
    const [x, y] = [scale * (event.clientX - box.left), scale * (event.clientY - box.top)];
    return cellAt(x, y, event.target);
  };
  place.addEventListener("pointermove", (event) =>
    show(find(event), [event.clientX, event.clientY]),
  );
  // a finger that is lifted leaves what it has shown
  const end = (event) => event.pointerType !== "touch" && show([-1, -1]);
  for (const kind of ["pointerleave", "blur"]) place.addEventListener(kind, end);
  place.addEventListener("click", (event) => {
    const cell = find(event);
    if (event.pointerType === "touch") show(cell, [event.clientX, event.clientY]);
    if (choose && isIn(cell)) choose(...cell);
  });
  const walk = (/** @type {number[]} */ [right, down]) => {
    const next = isIn(at) ? [at[0] + right, at[1] + down] : begin();
    const cell = [Math.max(0, Math.min(nx - 1, next[0])), Math.max(0, Math.min(ny - 1, next[1]))];
    const [x, y] = placeOf(...cell);
    const outer = place.parentElement;
    if (outer.scrollWidth > outer.clientWidth) outer.scrollLeft = x - outer.clientWidth / 2;
    const [box, scale] = frame();
    show(cell, [box.left + x / scale, box.top + y / scale]);
  };
  place.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (event.target !== place || !nx || !ny) return;
    if (by) walk(by);
    else if (event.key === "Enter" && choose && isIn(at)) choose(...at);
    else if (event.key === "Escape" && isIn(at)) show([-1, -1]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
