// The table: of any number of rows only those in sight are in the document.

import { getJson } from "/page/api.js";
import {
  $,
  button,
  countText,
  element,
  hasModifier,
  labelClass,
  numberText,
  showError,
} from "/page/dom.js";
import { keepFocus } from "/page/focus.js";
import { change, state } from "/page/state.js";

const ROW = 28;
const SHOWN = 60;
const MAX_HEIGHT = 8_000_000; // browsers cut an element at some 16 to 33 million pixels
const WIDTHS = new Map([
  ["trace_id", 122],
  ["label", 78],
  ["question", 190],
  ["answer", 110],
  ["references", 160],
]);

let view = null; // { base, columns: [{name, kind}], query }
let total = 0;
let first = 0; // the row at the top
let loaded = null; // the window that was fetched: { start, rows, columns }
let request = null;
let loading = Promise.resolve(); // the last window that was asked for
let scrolling = false;

export const rowAt = (position) => loaded?.rows[position - loaded.start];
export const count = () => total;

const width = (column) =>
  WIDTHS.get(column.name) ??
  (column.kind === "text" ? 160 : Math.min(210, Math.max(80, column.name.length * 8 + 48)));
const tableWidth = () => view.columns.reduce((sum, column) => sum + width(column), 0) + 20;
const rowsInSight = () => Math.floor($("#scroll").clientHeight / ROW);
const isWhole = () => total * ROW <= MAX_HEIGHT; // each row has its place in the scrolled element

// A cell of a column as wide as the column.
const cellOf = (column, properties, ...children) =>
  element(
    "div",
    {
      style: `width: ${width(column)}px`,
      ...properties,
      className: `cell ${properties.className}`,
    },
    ...children,
  );

export async function show(next) {
  view = next;
  loaded = null;
  drawHead();
  try {
    await load(0);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    take({ total: 0, start: 0, rows: [], columns: {} });
    throw error;
  } finally {
    $("#scroll").scrollTop = 0;
    first = 0;
    draw();
  }
}

function drawHead() {
  const cells = view.columns.map((column) => {
    const arrow = state.sort === column.name ? (state.descending ? "▾ " : "▴ ") : "";
    const name = button(arrow + column.name, () => sortBy(column), {
      className: "name",
      title: `sort by ${column.name}`,
    });
    const bars =
      column.kind === "number" &&
      button("▥", (event) => view.onHistogram(column.name, event), {
        className: "bars",
        title: "histogram",
        "aria-label": `histogram of ${column.name}`,
      });
    return cellOf(column, { className: column.kind }, name, bars);
  });
  const row = element("div", { className: "row" }, ...cells);
  row.style.width = `${tableWidth()}px`;
  keepFocus($("#head"), () => $("#head").replaceChildren(row));
}

// Numbers from the highest, texts from the first; then the other way round, then not at all.
function sortBy(column) {
  const usual = column.kind === "number" ? "1" : "";
  if (state.sort !== column.name) change({ sort: column.name, descending: usual });
  else if (state.descending === usual) change({ descending: usual ? "" : "1" });
  else change({ sort: "", descending: "" });
}

function load(start) {
  loading = loadWindow(start);
  return loading;
}

async function loadWindow(start) {
  request?.abort();
  request = new AbortController();
  const from = Math.max(0, Math.min(start, Math.max(0, total - SHOWN)));
  const query = {
    ...view.query,
    start: from,
    count: SHOWN,
    columns: view.columns.map((column) => column.name).join(","),
  };
  take(await getJson(`${view.base}/table`, query, request.signal));
}

function take(found) {
  total = found.total;
  loaded = found;
  $("#total").textContent = `${countText(total)} of ${countText(view.size)}`;
  const canvas = $("#canvas");
  canvas.style.height = `${Math.min(MAX_HEIGHT, total * ROW)}px`;
  canvas.style.width = `${tableWidth()}px`;
}

const inSight = () => Math.ceil($("#scroll").clientHeight / ROW) + 1;

export function draw() {
  if (!loaded) return;
  const n = Math.min(inSight(), SHOWN, total - first);
  const lines = Array.from({ length: n }, (_, i) => line(first + i));
  const none = element("p", { className: "cell soft" }, "no rows");
  $("#rows").replaceChildren(...(total ? lines : [none]));
  $("#rows").style.top = `${isWhole() ? first * ROW : $("#scroll").scrollTop}px`;
}

function line(position) {
  const i = position - loaded.start;
  const row = loaded.rows[i];
  const isOn = row !== undefined && String(row) === state.row;
  return element(
    "div",
    {
      className: isOn ? "row on" : "row",
      role: "row",
      "aria-selected": isOn,
      onclick: () => row !== undefined && view.onRow(row, position),
    },
    ...view.columns.map((column) => cell(column, loaded.columns[column.name]?.[i])),
  );
}

function cell(column, value) {
  const text = value === undefined ? "…" : column.kind === "text" ? value : numberText(value);
  const color = column.name === "label" ? labelClass(value) : "";
  const none = "no score: a run scores its validation and test rows";
  const title = typeof value === "string" ? text : column.is_score && value === null ? none : "";
  const className = `${column.kind} ${color}`;
  return cellOf(column, { className, title, dir: "auto", role: "gridcell" }, text);
}

async function moveTo(top) {
  if (!loaded) return;
  first = Math.max(0, Math.min(Math.round(top), total - rowsInSight()));
  draw();
  const last = Math.min(total, first + inSight());
  if (first >= loaded.start && last <= loaded.start + loaded.rows.length) return;
  try {
    await load(first - Math.floor((SHOWN - inSight()) / 2));
    draw();
  } catch (error) {
    showError(error);
  }
}

// Bring a row into sight.
export async function reveal(position) {
  const n = rowsInSight();
  if (position >= first && position < first + n) draw();
  else {
    const top = position < first ? position : position - n + 1;
    const isNear = Math.abs(position - first) < 3 * n;
    await scrollToRow(isNear ? top : position - Math.floor(n / 2));
  }
  // its window may have given way to a later one
  for (let last = null; last !== loading;) {
    last = loading;
    await last.catch(() => {});
  }
}

function scrollToRow(top) {
  const scroll = $("#scroll");
  const at = Math.max(0, top);
  scrolling = true;
  scroll.scrollTop = isWhole()
    ? at * ROW
    : (at / Math.max(1, total - rowsInSight())) * (MAX_HEIGHT - scroll.clientHeight);
  const end = () => (scrolling = false);
  requestAnimationFrame(() => requestAnimationFrame(end));
  return moveTo(top);
}

function scrolled() {
  const { scrollLeft, scrollTop, clientHeight } = $("#scroll");
  $("#head").scrollLeft = scrollLeft;
  if (scrolling || !view) return;
  const share = scrollTop / (MAX_HEIGHT - clientHeight);
  moveTo(isWhole() ? Math.floor(scrollTop / ROW) : share * (total - rowsInSight()));
}

// step(by): choose the row so many further.
export function start(step) {
  const scroll = $("#scroll");
  scroll.addEventListener("keydown", (event) => {
    const page = Math.max(1, inSight() - 2);
    const by = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -total,
      End: total,
    }[event.key];
    if (!by || hasModifier(event)) return;
    event.preventDefault();
    step(by);
  });
  scroll.addEventListener("scroll", scrolled, { passive: true });
  // where one pixel of the bar is many rows, the wheel still moves by rows
  scroll.addEventListener(
    "wheel",
    (event) => {
      if (isWhole() || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      const rows = Math.max(1, Math.round(Math.abs(event.deltaY) / ROW));
      scrollToRow(first + Math.sign(event.deltaY) * rows);
    },
    { passive: false },
  );
  new ResizeObserver(() => view && moveTo(first)).observe(scroll);
}
