// A picture of cells that is read with the pointer, or with the arrow keys once it has the focus.

import { hasModifier, showTip } from "/page/dom.js";

// nx, ny: cells to the right and downwards; cellAt(x, y) -> [i, j]; placeOf(i, j) -> [x, y], both
// in the picture's own pixels; textOf(i, j): the tip; onCell(i, j): a cell, or [-1, -1], is shown;
// choose(i, j): a click or Enter.
export function explore(canvas, { nx, ny = 1, cellAt, placeOf, textOf, label, onCell, choose }) {
  let at = [-1, -1];
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  if (choose) canvas.style.cursor = "pointer";
  const isIn = ([i, j]) => i >= 0 && i < nx && j >= 0 && j < ny;
  const show = (cell, x, y) => {
    const isNew = cell[0] !== at[0] || cell[1] !== at[1];
    at = isIn(cell) ? cell : [-1, -1];
    if (isNew) onCell?.(...at);
    showTip(isIn(at) ? textOf(...at) : "", x, y);
  };
  const find = (event) => {
    const box = canvas.getBoundingClientRect();
    return cellAt(event.clientX - box.left, event.clientY - box.top);
  };
  canvas.addEventListener("pointermove", (event) =>
    show(find(event), event.clientX, event.clientY),
  );
  // a finger that is lifted leaves what it has shown
  const end = (event) => event.pointerType !== "touch" && show([-1, -1], 0, 0);
  for (const kind of ["pointerleave", "blur"]) canvas.addEventListener(kind, end);
  canvas.addEventListener("click", (event) => {
    const cell = find(event);
    if (event.pointerType === "touch") show(cell, event.clientX, event.clientY);
    if (choose && isIn(cell)) choose(...cell);
  });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (hasModifier(event) || !nx || !ny) return;
    if (event.key === "Enter" && choose && isIn(at)) choose(...at);
    else if (event.key === "Escape" && isIn(at)) show([-1, -1], 0, 0);
    else if (event.key in steps) {
      const [right, down] = steps[event.key];
      const from = isIn(at) ? at : [0, ny - 1];
      const next = isIn(at) ? [from[0] + right, from[1] + down] : from;
      const cell = [Math.max(0, Math.min(nx - 1, next[0])), Math.max(0, Math.min(ny - 1, next[1]))];
      const [x, y] = placeOf(...cell);
      const frame = canvas.parentElement;
      if (frame && frame.scrollWidth > frame.clientWidth)
        frame.scrollLeft = Math.max(0, x - frame.clientWidth / 2);
      const box = canvas.getBoundingClientRect();
      show(cell, box.left + x, box.top + y);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
