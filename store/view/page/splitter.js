// The bar between the table and the panel: it is dragged, or moved with arrow keys.

import { $, arrowOf } from "/page/dom.js";
import { change, state } from "/page/state.js";

const STEP = 4; // percent of an arrow key
const LIMITS = [10, 90];
const USUAL = { row: 52, column: 42 };

// Returns what takes the place of the bar from the state.
export function splitter() {
  const bar = $("#splitter");
  const main = bar.parentElement;
  const across = () => getComputedStyle(main).flexDirection;
  const kept = () => Number(state.split) || USUAL[across()];
  const put = (share) => {
    const percent = Math.round(Math.max(LIMITS[0], Math.min(LIMITS[1], share)));
    $("#table").style.flexBasis = `${percent}%`;
    bar.setAttribute("aria-valuenow", percent);
    return percent;
  };
  const shareAt = (event) => {
    const box = main.getBoundingClientRect();
    const isRow = across() === "row";
    const at = isRow ? event.clientX - box.left : event.clientY - box.top;
    return (100 * at) / (isRow ? box.width : box.height);
  };
  let last = null; // share while the bar is dragged
  bar.addEventListener("pointerdown", (event) => bar.setPointerCapture(event.pointerId));
  bar.addEventListener("pointermove", (event) => {
    if (bar.hasPointerCapture(event.pointerId)) last = put(shareAt(event));
  });
  bar.addEventListener("pointerup", () => last && change({ split: last }));
  bar.addEventListener("dblclick", () => change({ split: "" }));
  bar.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (!by) return;
    event.preventDefault();
    change({ split: put(kept() + (by[0] + by[1]) * STEP) });
  });
  addEventListener("resize", () => state.split === "" && put(kept()));
  return () => put(kept());
}
