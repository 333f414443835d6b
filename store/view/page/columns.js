// The columns of the table: their heads, widths and order.

import { $, arrowOf, button, element, numberText } from "/page/dom.js";
import { change, state } from "/page/state.js";

const WIDTHS = new Map([
  ["trace_id", 132],
  ["label", 78],
  ["question", 190],
  ["answer", 110],
  ["references", 160],
]);
const NARROWEST = 48;
const STEP = 20; // pixels of an arrow key
const DIGIT = 9; // pixels, at most
const PADDING = 18;

const needed = new Map(); // column -> pixels of its longest number: none is ever cut
let dragged = {}; // widths while the mouse is down

const given = () => {
  const kept = new URLSearchParams(state.widths.replaceAll(",", "&").replaceAll(":", "="));
  return { ...Object.fromEntries(kept), ...dragged };
};

export const styleOf = (i) => `width: var(--w${i}); --at: var(--l${i})`;

// Whether a longer number than before is among some rows.
export function noteNumbers(columns, values) {
  let grows = false;
  for (const { name, kind } of columns) {
    if (kind !== "number") continue;
    const longest = values[name].reduce(
      (most, value) => Math.max(most, numberText(value).length),
      0,
    );
    const width = longest * DIGIT + PADDING;
    if (width <= (needed.get(name) ?? 0)) continue;
    needed.set(name, width);
    grows = true;
  }
  return grows;
}

function usualWidth({ name, kind }) {
  const byName = kind === "text" ? 160 : Math.min(210, Math.max(80, name.length * 8 + 48));
  return WIDTHS.get(name) ?? byName;
}

// Texts that nobody has given a width share the room that is left.
export function layout(columns) {
  const chosen = given();
  const widths = columns.map((column) => {
    const width = Number(chosen[column.name]) || usualWidth(column);
    return Math.max(NARROWEST, width, needed.get(column.name) ?? 0);
  });
  const grows = columns.map(
    ({ name, kind }) => kind === "text" && name !== "trace_id" && !(name in chosen),
  );
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const spare = $("#scroll").clientWidth - sum(widths);
  const growing = sum(widths.filter((_, i) => grows[i]));
  const style = $("#grid").style;
  let left = 0;
  widths.forEach((width, i) => {
    const whole = spare > 0 && grows[i] ? width + Math.floor((spare * width) / growing) : width;
    style.setProperty(`--w${i}`, `${whole}px`);
    style.setProperty(`--l${i}`, `${left}px`);
    left += whole;
  });
  style.setProperty("--all", `${left}px`);
}

// view: what is done with a column: onSort, onCounts, onLayout.
export function columnHead(column, i, view) {
  const { name, kind } = column;
  const isSorted = state.sort === name;
  const arrow = isSorted ? (state.descending ? "▾ " : "▴ ") : "";
  const what = kind === "number" ? "histogram" : "groups";
  const tabIndex = i ? -1 : 0;
  const cell = element(
    "div",
    {
      className: `cell ${kind}${column.isPinned ? " pin" : ""}`,
      style: styleOf(i),
      role: "columnheader",
      "aria-sort": isSorted ? (state.descending ? "descending" : "ascending") : "none",
      draggable: true,
    },
    button(arrow + name, () => sortBy(column, view.onSort), {
      className: "name",
      title: `${name}: a click sorts, a drag moves the column`,
      tabIndex,
    }),
    button(kind === "number" ? "▥" : "≣", (event) => view.onCounts(column, event), {
      className: "bars",
      title: kind === "number" ? "histogram" : "how often which texts are there",
      "aria-label": `${what} of ${name}`,
      tabIndex: -1,
    }),
    grip(column, view),
  );
  cell.addEventListener("dragstart", (event) => event.dataTransfer.setData("text/plain", name));
  cell.addEventListener("dragover", (event) => event.preventDefault());
  cell.addEventListener("drop", (event) => {
    event.preventDefault();
    move(view.columns, event.dataTransfer.getData("text/plain"), i);
  });
  cell.addEventListener("keydown", (event) => walk(event, column));
  return cell;
}

// One stop of Tab for all heads: arrows go on from it, and with Shift change the width.
function walk(event, { name }) {
  const [by] = arrowOf(event) ?? [];
  if (!by) return;
  event.preventDefault();
  if (event.shiftKey) {
    const width = event.currentTarget.offsetWidth + by * STEP;
    setWidth(name, width);
    return;
  }
  const all = [...$("#head").querySelectorAll("button")];
  const at = all.indexOf(document.activeElement);
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  all.forEach((each) => (each.tabIndex = each === next ? 0 : -1));
  next.focus();
}

// Numbers from the highest, texts from the first; then the other way round, then not at all.
function sortBy({ name, kind }, onSort) {
  const usual = kind === "number" ? "1" : "";
  if (state.sort !== name) onSort({ sort: name, descending: usual });
  else if (state.descending === usual) onSort({ descending: usual ? "" : "1" });
  else onSort({ sort: "", descending: "" });
}

function setWidth(name, width) {
  const all = Object.entries({ ...given(), [name]: width && Math.round(width) });
  dragged = {};
  const texts = all
    .filter(([, each]) => each)
    .map(([key, each]) => `${encodeURIComponent(key)}:${each}`);
  change({ widths: texts.join(",") });
}

function grip({ name }, view) {
  const made = element("i.grip", { title: "drag: width; double click: as at first" });
  let from = null; // where the mouse went down, and the width there
  made.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    made.setPointerCapture(event.pointerId);
    from = [event.clientX, made.parentElement.offsetWidth];
  });
  made.addEventListener("pointermove", (event) => {
    if (!from) return;
    dragged = { [name]: Math.max(NARROWEST, from[1] + event.clientX - from[0]) };
    view.onLayout();
  });
  made.addEventListener("pointerup", () => {
    if (dragged[name]) setWidth(name, dragged[name]);
    from = null;
  });
  made.addEventListener("mousedown", (event) => event.preventDefault()); // is no move of the column
  made.addEventListener("dblclick", () => setWidth(name, null));
  return made;
}

function move(columns, name, to) {
  const names = columns.map((column) => column.name).filter((each) => each !== name);
  if (names.length < columns.length) change({ columns: names.toSpliced(to, 0, name).join(",") });
}
