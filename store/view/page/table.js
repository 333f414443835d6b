// The table: of any number of rows only those in sight are in the document, and some hundreds
// around them in memory.

import { getJson } from "/page/api.js";
import { columnHead, layout, noteNumbers, styleOf } from "/page/columns.js";
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
import { state } from "/page/state.js";

const ROW = 28;
const PIECE = 100; // rows that are kept, or asked for, together
const AHEAD = 300; // rows kept ready above and below those in sight
const MOST = 4; // pieces in one request
const KEPT = 40; // pieces
const MAX_HEIGHT = 8_000_000; // browsers cut an element at some 16 to 33 million pixels
const TAIL = 6; // characters of an id that are always in sight

let view = null; // { base, columns: [{name, kind}], query }
let total = 0;
let first = 0; // the row at the top
let isDown = true; // whether it moved downwards last
let pieces = new Map(); // number -> { rows, columns }
let request = null; // the one under way
let loading = null; // until all that is wanted is there
let latest = null; // the view that was asked for last
let scrolling = false;
let lines = []; // elements of the rows in sight, from the top
const picked = new Set(); // positions of the rows chosen for copying

const pieceOf = (position) => pieces.get(Math.floor(position / PIECE));
export const rowAt = (position) => pieceOf(position)?.rows[position % PIECE];
export const count = () => total;
// The positions picked, as ranges: "3-7,12-12".
export function picks() {
  const ranges = [];
  for (const at of [...picked].sort((a, b) => a - b))
    if (ranges.length && ranges.at(-1)[1] === at - 1) ranges.at(-1)[1] = at;
    else ranges.push([at, at]);
  return ranges.map((range) => range.join("-")).join(",");
}

const rowsInSight = () => Math.max(1, Math.floor($("#scroll").clientHeight / ROW));
const inSight = () => Math.ceil($("#scroll").clientHeight / ROW) + 1;
const isWhole = () => total * ROW <= MAX_HEIGHT; // each row has its place in the scrolled element

const ask = (of, start, n) =>
  getJson(`${of.base}/table`, {
    ...of.query,
    start,
    count: n,
    columns: of.columns.map((column) => column.name).join(","),
  });

// What was shown stays where the new rows cannot be had. Returns whether these are shown: others may
// have been asked for since.
export async function show(next) {
  latest = next;
  const isSame = view?.base === next.base && same(view.query, next.query);
  const start = isSame ? Math.floor(first / PIECE) * PIECE : 0;
  const found = await ask(next, start, PIECE);
  if (latest !== next) return false;
  view = { ...next, onLayout: relayout };
  pieces = new Map();
  total = found.total;
  take(found);
  $("#total").textContent = `${countText(total)} of ${countText(view.size)}`;
  $("#canvas").style.height = `${Math.min(MAX_HEIGHT, total * ROW)}px`;
  $("#grid").setAttribute("aria-rowcount", total + 1);
  picked.clear();
  lines = [];
  $("#rows").replaceChildren();
  drawHead();
  if (!isSame) {
    $("#scroll").scrollTop = 0;
    first = 0;
  }
  draw();
  setTimeout(load, 50); // what the page shows beside it comes first
  return true;
}

export const relayout = () => view && layout(view.columns);

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function drawHead() {
  const row = element(
    "div.row",
    { role: "row" },
    ...view.columns.map((column, i) => columnHead(column, i, view)),
  );
  keepFocus($("#head"), () => $("#head").replaceChildren(row));
  layout(view.columns);
}

// Keep an answer, in pieces; those far away go.
function take(/** @type {Rows} */ { start, rows, columns }) {
  for (let from = 0; from < rows.length; from += PIECE) {
    const part = (values) => values.slice(from, from + PIECE);
    const kept = Object.fromEntries(
      Object.entries(columns).map(([name, all]) => [name, part(all)]),
    );
    pieces.set((start + from) / PIECE, { rows: part(rows), columns: kept });
  }
  const here = first / PIECE;
  const far = [...pieces.keys()].sort((a, b) => Math.abs(b - here) - Math.abs(a - here));
  for (const number of far.slice(0, Math.max(0, pieces.size - KEPT))) pieces.delete(number);
  if (noteNumbers(view.columns, columns)) layout(view.columns);
}

// The next pieces to ask for, those in sight before those around them: [first, last], or null.
function wanted() {
  const pieceAt = (position) => Math.floor(Math.max(0, Math.min(total - 1, position)) / PIECE);
  const [top, bottom] = [pieceAt(first), pieceAt(first + inSight() - 1)];
  const [least, most] = [pieceAt(first - AHEAD), pieceAt(first + inSight() + AHEAD)];
  const missing = [];
  for (let at = least; total && at <= most; at += 1) if (!pieces.has(at)) missing.push(at);
  const far = (at) => Math.max(0, top - at, at - bottom);
  missing.sort((a, b) => far(a) - far(b) || (isDown ? b - a : a - b));
  if (!missing.length) return null;
  let [from, to] = [missing[0], missing[0]];
  while (to - from < MOST - 1 && missing.includes(to + 1)) to += 1;
  while (to - from < MOST - 1 && missing.includes(from - 1)) from -= 1;
  return [from, to];
}

// One request at a time, which is let finish: over a slow line the rows of an aborted one are
// asked for again and again, and never come.
function load() {
  loading ??= loadWanted()
    .catch(showError)
    .finally(() => (loading = null));
  return loading;
}

async function loadWanted() {
  for (let next = wanted(); next; next = wanted()) {
    const [mine, [from, to]] = [view, next];
    request = ask(mine, from * PIECE, (to - from + 1) * PIECE);
    const found = await request;
    if (mine !== view) continue;
    if (!found.rows.length) return;
    take(found);
    draw();
  }
}

// Rows that stay in sight keep their elements; the others' are filled anew.
export function draw() {
  if (!view) return;
  const place = $("#rows");
  const n = Math.min(inSight(), total - first);
  const shift = lines.length ? first - lines[0].position : 0;
  if (shift > 0 && shift < lines.length) lines.push(...lines.splice(0, shift));
  else if (shift < 0 && -shift < lines.length) lines.unshift(...lines.splice(shift));
  while (lines.length < n) lines.push(newLine());
  for (const line of lines.splice(Math.max(0, n))) line.remove();
  lines.forEach((line, i) => {
    fill(line, first + i);
    if (place.children[i] !== line) place.insertBefore(line, place.children[i] ?? null);
  });
  if (!total) place.replaceChildren(none());
  place.style.top = `${isWhole() ? first * ROW : $("#scroll").scrollTop}px`;
}

const none = () =>
  element(
    "p.cell.soft",
    { role: "row" },
    element(
      "span",
      { role: "gridcell" },
      view.query.filter ? "no row has all of it  " : "this store has no traces",
      view.query.filter && button("clear the filter", () => $("#clear").click()),
    ),
  );

const newLine = () =>
  element(
    "div.row",
    { role: "row" },
    ...view.columns.map((column, i) =>
      element("div", { style: styleOf(i), dir: "auto", role: "gridcell" }),
    ),
  );

function fill(line, position) {
  const piece = pieceOf(position);
  const i = position % PIECE;
  const row = piece?.rows[i];
  const isOn = row !== undefined && String(row) === state.row;
  const isPicked = picked.has(position);
  line.className = `row${isOn ? " on" : ""}${isPicked ? " picked" : ""}`;
  line.setAttribute("aria-selected", isOn || isPicked);
  if (line.position === position && line.piece === piece) return;
  Object.assign(line, { position, piece });
  line.setAttribute("aria-rowindex", position + 2);
  view.columns.forEach((column, at) => {
    fillCell(line.children[at], column, piece?.columns[column.name]?.[i]);
  });
}

function fillCell(cell, column, value) {
  const isText = column.kind === "text";
  const text = value === undefined ? "…" : isText ? value : numberText(value);
  const color = column.name === "label" ? labelClass(value) : "";
  const none = "no score: a run scores its validation and test rows";
  const isNone = column.is_score && value === null;
  cell.className = `cell ${column.kind}${column.isPinned ? " pin" : ""} ${color}`;
  cell.title = isText ? text : isNone ? none : (value ?? "");
  if (column.name === "trace_id" && text.length > 2 * TAIL)
    cell.replaceChildren(element("span.begin", text.slice(0, -TAIL)), text.slice(-TAIL));
  else if (cell.textContent !== text || cell.children.length) cell.textContent = text;
}

function moveTo(top) {
  if (!view) return;
  const next = Math.max(0, Math.min(Math.round(top), total - rowsInSight()));
  if (next !== first) isDown = next > first;
  first = next;
  draw();
  load();
}

// Bring a row into sight.
export async function reveal(position) {
  const n = rowsInSight();
  if (position >= first && position < first + n) draw();
  else {
    const top = position < first ? position : position - n + 1;
    const isNear = Math.abs(position - first) < 3 * n;
    scrollToRow(isNear ? top : position - Math.floor(n / 2));
  }
  while (rowAt(position) === undefined && loading) await request?.catch(() => {});
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
  moveTo(top);
}

function scrolled() {
  const { scrollLeft, scrollTop, clientHeight } = $("#scroll");
  $("#head").scrollLeft = scrollLeft;
  if (scrolling || !view) return;
  const share = scrollTop / (MAX_HEIGHT - clientHeight);
  moveTo(isWhole() ? Math.floor(scrollTop / ROW) : share * (total - rowsInSight()));
}

// A click chooses a row; with Ctrl it is picked for copying, with Shift all up to it are.
function clicked(event) {
  const line = event.target.closest(".row");
  const row = line ? rowAt(line.position) : undefined;
  if (row === undefined) return;
  if (event.shiftKey) pickTo(line.position);
  else if (event.ctrlKey || event.metaKey) {
    if (!picked.delete(line.position)) picked.add(line.position);
    draw();
  } else {
    picked.clear();
    view.onRow(row, line.position);
  }
}

function pickTo(position) {
  const from = Math.max(0, view.position());
  for (let at = Math.min(from, position); at <= Math.max(from, position); at += 1) picked.add(at);
  getSelection().removeAllRanges(); // of texts, which Shift has made, and which would be copied
  draw();
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
    if (event.shiftKey) pickTo(Math.max(0, Math.min(total - 1, view.position())));
    else picked.clear();
    step(by).then(() => event.shiftKey && pickTo(view.position()));
  });
  scroll.addEventListener("click", clicked);
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
  new ResizeObserver(() => {
    relayout();
    moveTo(first);
  }).observe(scroll);
}
