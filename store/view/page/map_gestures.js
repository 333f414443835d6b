// Moves a map: drag, wheel, two fingers and keys. A drag with Shift, or in the mode of the lasso,
// is a lasso.

import { hasModifier } from "/page/dom.js";

const STEP = 60; // pixels of an arrow key
const CLICK = 4; // pixels that a click may move

export function follow(plot, { isLasso, onLasso, onPath, onClick, onHover, keys }) {
  const { canvas } = plot;
  const pointers = new Map();
  let path = null; // of a lasso that is being drawn
  let moved = 0;

  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const endLasso = () => {
    path = null;
    onPath(null);
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, placeOf(event));
    moved = 0;
    onHover(null);
    if (pointers.size === 1 && (isLasso() || event.shiftKey)) path = [placeOf(event)];
    else if (path) endLasso(); // a second finger zooms
  });

  canvas.addEventListener("pointermove", (event) => {
    const place = placeOf(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      onHover(place, event);
      return;
    }
    moved += Math.hypot(place[0] - before[0], place[1] - before[1]);
    pointers.set(event.pointerId, place);
    if (path) {
      path.push(place);
      onPath(path);
    } else if (pointers.size === 2) pinch(event.pointerId, before, place);
    else if (moved > CLICK) plot.pan(place[0] - before[0], place[1] - before[1]);
  });

  function pinch(id, before, place) {
    const other = [...pointers].find(([each]) => each !== id)[1];
    const distance = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
    const middle = [(place[0] + other[0]) / 2, (place[1] + other[1]) / 2];
    plot.pan((place[0] - before[0]) / 2, (place[1] - before[1]) / 2);
    plot.zoomAt(distance(place) / Math.max(1, distance(before)), middle);
  }

  const end = (event) => {
    const place = pointers.get(event.pointerId);
    pointers.delete(event.pointerId);
    if (!place) return;
    if (path && moved > CLICK && event.type === "pointerup") onLasso(path);
    else if (moved <= CLICK && event.type === "pointerup") onClick(place, event);
    if (path) endLasso();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => onHover(null));

  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 16 : 1;
      const by = Math.max(-240, Math.min(240, event.deltaY * lines));
      plot.zoomAt(Math.exp(-by * (event.ctrlKey ? 0.01 : 0.002)), placeOf(event));
    },
    { passive: false },
  );

  const all = {
    "+": () => plot.zoomAt(1.4),
    "=": () => plot.zoomAt(1.4),
    "-": () => plot.zoomAt(1 / 1.4),
    0: () => plot.fit(),
    ArrowLeft: () => plot.pan(STEP, 0),
    ArrowRight: () => plot.pan(-STEP, 0),
    ArrowUp: () => plot.pan(0, STEP),
    ArrowDown: () => plot.pan(0, -STEP),
    Escape: () => path && endLasso(),
    ...keys,
  };
  canvas.addEventListener("keydown", (event) => {
    if (hasModifier(event) || !all[event.key]) return;
    all[event.key]();
    event.preventDefault();
    event.stopPropagation();
  });
}
