// The table: of any number of rows only those in sight are in the document.

import { getJson } from "/page/api.js";
import { $, button, countText, element, labelClass, numberText, showError } from "/page/dom.js";
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

export const rowAt = (position) => {
  const i = position - (loaded?.start ?? 0);
  return loaded?.rows[i];
};
export const count = () => total;

const width = (column) =>
  WIDTHS.get(column.name) ??
  (column.kind === "text" ? 160 : Math.min(210, Math.max(80, column.name.length * 8 + 48)));

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
    const cell = element("div", { className: `cell ${column.kind}` }, name, bars);
    cell.style.width = `${width(column)}px`;
    return cell;
  });
  const row = element("div", { className: "row" }, ...cells);
  row.style.width = `${tableWidth()}px`;
  keepFocus($("#head"), () => $("#head").replaceChildren(row));
}

const tableWidth = () => view.columns.reduce((sum, column) => sum + width(column), 0) + 20;

function sortBy(column) {
  if (state.sort !== column.name)
    change({ sort: column.name, descending: column.kind === "number" ? "1" : "" });
  else if (state.descending === (column.kind === "number" ? "1" : ""))
    change({ descending: state.descending ? "" : "1" });
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

function draw() {
  if (!loaded) return;
  const scroll = $("#scroll");
  const rows = $("#rows");
  const n = Math.min(inSight(), SHOWN, total - first);
  const lines = [];
  for (let i = 0; i < n; i += 1) lines.push(line(first + i));
  rows.replaceChildren(...lines);
  const isWhole = total * ROW <= MAX_HEIGHT;
  rows.style.top = `${isWhole ? first * ROW : scroll.scrollTop}px`;
  if (!total) rows.replaceChildren(element("p", { className: "cell soft" }, "no rows"));
}

function line(position) {
  const i = position - loaded.start;
  const row = loaded.rows[i];
  const cells = view.columns.map((column) => cell(column, loaded.columns[column.name]?.[i]));
  const isOn = row !== undefined && String(row) === state.row;
  return element(
    "div",
    {
      className: isOn ? "row on" : "row",
      role: "row",
      "aria-selected": isOn,
      onclick: () => row !== undefined && view.onRow(row, position),
    },
    ...cells,
  );
}

function cell(column, value) {
  const isText = column.kind === "text";
  const text = value === undefined ? "…" : isText ? value : numberText(value);
  const color = column.name === "label" ? labelClass(value) : "";
  const made = element(
    "div",
    { className: `cell ${column.kind} ${color}`, dir: "auto", role: "gridcell" },
    text,
  );
  if (typeof value === "string") made.title = text;
  else if (column.is_score && value === null)
    made.title = "no score: a run scores its validation and test rows";
  made.style.width = `${width(column)}px`;
  return made;
}

async function moveTo(top) {
  if (!loaded) return;
  first = Math.max(
    0,
    Math.min(Math.round(top), Math.max(0, total - Math.floor($("#scroll").clientHeight / ROW))),
  );
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
  const scroll = $("#scroll");
  const n = Math.floor(scroll.clientHeight / ROW);
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
  const rest = Math.max(1, total - Math.floor(scroll.clientHeight / ROW));
  scrolling = true;
  if (total * ROW <= MAX_HEIGHT) scroll.scrollTop = Math.max(0, top) * ROW;
  else scroll.scrollTop = (Math.max(0, top) / rest) * (MAX_HEIGHT - scroll.clientHeight);
  requestAnimationFrame(() =>
    requestAnimationFrame(() => {
      scrolling = false;
    }),
  );
  return moveTo(top);
}

function scrolled() {
  const scroll = $("#scroll");
  $("#head").scrollLeft = scroll.scrollLeft;
  if (scrolling || !view) return;
  if (total * ROW <= MAX_HEIGHT) {
    moveTo(Math.floor(scroll.scrollTop / ROW));
    return;
  }
  const share = scroll.scrollTop / (MAX_HEIGHT - scroll.clientHeight);
  moveTo(share * (total - Math.floor(scroll.clientHeight / ROW)));
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
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    step(by);
  });
  scroll.addEventListener("scroll", scrolled, { passive: true });
  // where one pixel of the bar is many rows, the wheel still moves by rows
  scroll.addEventListener(
    "wheel",
    (event) => {
      if (total * ROW <= MAX_HEIGHT || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      scrollToRow(
        first + Math.sign(event.deltaY) * Math.max(1, Math.round(Math.abs(event.deltaY) / ROW)),
      );
    },
    { passive: false },
  );
  new ResizeObserver(() => view && moveTo(first)).observe(scroll);
}

export const redraw = () => draw();
