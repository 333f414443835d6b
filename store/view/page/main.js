// Wires the parts together: the state in the URL decides what is shown, keys and clicks change it.

import { get, getJson, isExported } from "/page/api.js";
import { showAttention } from "/page/attention.js";
import {
  closeChooser,
  columnChoice,
  hideChooser,
  openChooser,
  redrawChooser,
} from "/page/chooser.js";
import { $, arrowOf, element, hasModifier, showError, showTip, soft } from "/page/dom.js";
import * as filter from "/page/filter.js";
import { keepFocus } from "/page/focus.js";
import { showGroups } from "/page/lists.js";
import { showHistogram } from "/page/histogram.js";
import { showLayers } from "/page/layers.js";
import { showMap } from "/page/map.js";
import { without } from "/page/narrow.js";
import { savePictures } from "/page/pictures.js";
import { showScores } from "/page/scores.js";
import { splitter } from "/page/splitter.js";
import { change, changeStore, ignored, oneOf, onChange, state } from "/page/state.js";
import * as table from "/page/table.js";
import { showChips, showIgnored, showTitle } from "/page/title.js";
import { showTrace } from "/page/trace.js";

// What each tab draws, and of the state what it reads: a change of it draws the tab again.
const TABS = {
  trace: { draw: showTrace, reads: ["row", "beside", "color", "scale", "disagree", "near"] },
  layers: { draw: showLayers, reads: ["row", "what", "map", "range"] },
  attention: { draw: showAttention, reads: ["row", "layer", "edge", "first", "head", "one"] },
  map: { draw: showMap, reads: ["filter", "row", "map", "paint", "view"] },
  scores: { draw: showScores, reads: ["filter", "score", "other", "threshold", "log"] },
};
const FIRST_TAB = "trace";
const NOTED = /\b(tag|note|noted)\b/; // in a filter
const POLL_MS = 15_000;
const REPLACED = 1e9; // states of a store that took the place of the first are numbered from here

/** @type {Store[]} */
let stores = [];
let position = -1; // of the trace in the table
const errors = { table: null, side: null }; // why the table shows other rows, the panel nothing

const store = () => stores[oneOf("store", Object.keys(stores), "0")];
const namesOf = (/** @type {Store} */ { columns }) => columns.map((column) => column.name);
const base = () => `/api/${stores.indexOf(store())}/${store().generation}`;
const isThere = (row) => /^\d+$/.test(row) && Number(row) < store().rows;
const tabName = () => oneOf("tab", Object.keys(TABS), FIRST_TAB);

function query() {
  const sort = oneOf("sort", namesOf(store()), "");
  const descending = sort === state.sort ? state.descending : "";
  return { filter: state.filter, sort, descending };
}

function shownColumns() {
  const columns = new Map(store().columns.map((column) => [column.name, column]));
  const chosen = (names) => names.map((name) => columns.get(name)).filter(Boolean);
  const names = state.columns.split(",").filter(Boolean);
  const unknown = names.filter((name) => !columns.has(name));
  ignored.delete("columns");
  if (unknown.length) ignored.set("columns", `columns: this store has no ${unknown.join(", ")}`);
  const named = chosen(names);
  const pins = state.pin.split(",");
  const found = (named.length ? named : chosen(store().shown)).map((column) => ({
    ...column,
    isPinned: pins.includes(column.name),
  }));
  return found.sort((a, b) => b.isPinned - a.isPinned);
}

async function showTable() {
  const found = store();
  $("#store").replaceChildren(
    ...stores.map((each, i) =>
      element("option", { value: i, selected: each === found }, each.name),
    ),
  );
  $("#store").title = found.place;
  filter.setBase(base(), query);
  if (document.activeElement !== $("#filter")) $("#filter").value = state.filter;
  $("#clear").hidden = state.filter === "";
  showTitle(found);
  showChips();
  const columns = shownColumns();
  const asked = query();
  showIgnored();
  try {
    const isShown = await table.show({
      base: base(),
      columns,
      query: asked,
      size: found.rows,
      position: () => position,
      onRow: choose,
      onSort: (order) => filter.attempt(order, false),
      onCounts: countsOf,
    });
    if (!isShown) return;
    complain("table", null);
    if (state.row === "" && table.count()) choose(table.rowAt(0), 0);
    else await findPosition();
  } catch (error) {
    complain("table", error);
  }
}

function complain(place, error) {
  errors[place] = error;
  filter.explain(errors.table ?? errors.side, state.filter);
  $("#save").hidden = isExported || Boolean(errors.table);
}

async function findPosition() {
  position = -1;
  const { row } = state;
  if (row === "") return;
  if (!isThere(row)) {
    $("#outside").hidden = true; // no filter hides it; the panel says what is wrong
    table.draw();
    return;
  }
  const found = await getJson(`${base()}/find`, { ...query(), row });
  if (state.row !== row) return;
  $("#outside").hidden = found.position !== null;
  if (found.position === null) {
    table.draw();
    return;
  }
  position = found.position;
  await table.reveal(position);
}

function choose(row, at) {
  if (row === undefined) return;
  position = at;
  $("#outside").hidden = true;
  change({ row });
}

function showTabs() {
  const tabs = $("#tabs");
  const tabOf = (name) =>
    element(
      "button",
      { role: "tab", "aria-controls": "panel", onclick: () => change({ tab: name }, true) },
      name,
    );
  if (!tabs.children.length) tabs.replaceChildren(...Object.keys(TABS).map(tabOf));
  for (const tab of tabs.children) {
    const isOn = tab.textContent === tabName();
    tab.classList.toggle("on", isOn);
    tab.setAttribute("aria-selected", isOn);
    tab.tabIndex = isOn ? 0 : -1;
  }
  $("#panel").setAttribute("aria-label", tabName());
}

// One state after the other, so that no late answer paints over a newer state; those in between
// are left out.
let drawing = null; // what is under way
let isStale = false;

function showSide() {
  showTabs();
  isStale = true;
  drawing ??= drawSides();
  return drawing;
}

async function drawSides() {
  const panel = $("#panel");
  panel.setAttribute("aria-busy", "true");
  while (isStale) {
    isStale = false;
    await drawSide(panel);
  }
  panel.setAttribute("aria-busy", "false");
  drawing = null;
}

let drawn = ""; // the trace and the tab in the panel

async function drawSide(panel) {
  showTip("");
  complain("side", null); // what was said of the trace before is over
  for (const key of Object.values(TABS).flatMap((each) => each.reads)) ignored.delete(key);
  const { draw, reads } = TABS[tabName()];
  const isOfRows = reads.includes("filter"); // not of one trace
  if ((state.row === "" || !store().rows) && !isOfRows) {
    const advice = `This store has no traces. This adds some: python -m store extract ${store().path} --help`;
    panel.replaceChildren(soft(store().rows ? "choose a trace: click on a row, or j" : advice));
    return;
  }
  const now = isOfRows ? tabName() : `${tabName()} ${state.row}`;
  panel.classList.toggle("other", now !== drawn); // what stands there is not of the new tab
  drawn = now;
  try {
    if (!isOfRows && !isThere(state.row))
      throw new Error(`row: expected 0 to ${store().rows - 1}, found ${state.row.slice(0, 60)}`);
    const width = panel.clientWidth - 32; // within its padding, and that of .wide
    const about = { base: base(), store: store(), row: state.row, query: query(), width };
    await keepFocus(panel, async () => {
      const parts = (await draw(about)).filter(Boolean);
      if (parts[0] !== panel.firstChild) panel.replaceChildren(...parts);
    });
  } catch (error) {
    panel.replaceChildren();
    complain("side", error);
  }
  showIgnored();
}

// How often a column has which texts; or which numbers, in the rows that the rest of the filter
// leaves: a bar that is chosen leaves the others to choose from.
function countsOf({ name, kind }, event) {
  let rest = null;
  let parts = [];
  const draw = async () => {
    const now = kind === "text" ? "" : without(state.filter, [name]).join(" and ");
    if (now === rest) return parts;
    rest = now;
    parts =
      kind === "text"
        ? await showGroups(base(), query(), name)
        : await showHistogram(base(), { ...query(), filter: rest }, name, store().labels);
    return parts;
  };
  openChooser(draw, event.currentTarget).catch((error) => {
    hideChooser();
    showError(error);
  });
}

function chooseColumns() {
  if (!$("#chooser").hidden) {
    closeChooser();
    return;
  }
  const isShown = (name) => shownColumns().some((column) => column.name === name);
  openChooser(() => columnChoice(namesOf(store()), isShown), $("#choose"));
}

async function step(by) {
  const next = Math.max(0, Math.min(table.count() - 1, position + by));
  if (!table.count()) return;
  position = next;
  await table.reveal(next);
  if (position !== next) return; // a later step is under way
  choose(table.rowAt(next), next);
}

async function find(text) {
  if (!text) return;
  try {
    const found = await getJson(`${base()}/find`, { ...query(), text, after: position });
    if (found.position === null) {
      const { n } = state.filter ? await getJson(`${base()}/find`, { text }) : { n: 0 };
      const quoted = JSON.stringify(text.slice(0, 80));
      const hidden = `the filter hides ${n === 1 ? "the trace that has" : `${n} traces that have`}`;
      throw new Error(`find: ${n ? hidden : "no row of the table has"} ${quoted}`);
    }
    showError(null);
    position = found.position;
    await table.reveal(position);
    choose(found.row, position);
  } catch (error) {
    showError(error);
  }
}

// A browser says nothing of a download that the server refuses: ask first, and read nothing.
async function save(kind) {
  if (kind === "png" || kind === "svg") {
    await savePictures($("#panel"), `${store().name}-${tabName()}`, kind);
    return;
  }
  const href = `${base()}/save/${kind}?${new URLSearchParams(savedQuery())}`;
  const answer = await get(href);
  await answer.body.cancel();
  location.assign(href);
}

const savedQuery = () => ({
  ...query(),
  columns: shownColumns()
    .map((column) => column.name)
    .join(","),
  positions: table.picks(),
});

// The picked rows, or the chosen one, whole texts with tabs between them.
async function copy() {
  const positions = table.picks() || (position >= 0 ? `${position}-${position}` : "");
  if (!positions) return;
  const answer = await get(`${base()}/save/tsv`, { ...savedQuery(), positions });
  await navigator.clipboard.writeText(await answer.text());
}

async function poll() {
  const found = await getJson("/api/stores").catch(() => null); // the page stays readable
  const now = found?.stores[Number(state.store)];
  if (!now) return;
  const { newest, problem } = now;
  const isNewer = newest !== store().generation;
  $("#newer").hidden = !isNewer && !problem;
  $("#newer button").hidden = !isNewer;
  const { generation } = store();
  const newer =
    newest >= REPLACED
      ? "Another store, as a repair makes one, has taken the place of the one shown here."
      : `This is generation ${generation} of the store; generation ${newest} is there.`;
  $("#newer span").textContent = [isNewer && newer, problem].filter(Boolean).join(" ");
}

async function takeNewer() {
  stores = (await getJson("/api/stores", { newest: 1 })).stores;
  $("#newer").hidden = true;
  hideChooser(); // it has the columns and the numbers of the last one
  await showTable();
  await showSide();
}

const TAB_KEYS = Object.keys(TABS).map((tab, i) => [String(i + 1), () => change({ tab }, true)]);
const KEYS = {
  ...Object.fromEntries(TAB_KEYS),
  j: () => step(1),
  k: () => step(-1),
  "?": () => $("#keys").showModal(),
  "/": () => {
    $("#filter").focus();
    $("#filter").select();
  },
};

function pressed(event) {
  const isTyping = event.target.matches?.("input[type=text], input[type=search], select, dialog *");
  if (isTyping || hasModifier(event) || !Object.hasOwn(KEYS, event.key)) return;
  KEYS[event.key]();
  event.preventDefault();
}

// A link names a trace by its id.
async function openTrace() {
  const { trace } = state;
  if (trace === "") return;
  const { row } = await getJson(`${base()}/find`, { id: trace });
  if (row === null) ignored.set("trace", `trace=${trace.slice(0, 60)} is not in this store`);
  change({ trace: "", row: row ?? state.row });
}

function changed(names) {
  if (names.has("trace")) openTrace().catch(showError);
  const of = (...some) => some.some((name) => names.has(name));
  if (of("store")) hideChooser(); // it has the columns of the last one
  if (of("filter")) redrawChooser().catch(closeChooser); // the table says why
  if (of("widths")) table.relayout();
  if (of("split")) split();
  if (of("store", "filter", "sort", "descending", "columns", "pin")) showTable();
  else if (of("row") && String(table.rowAt(position)) === state.row) table.draw();
  else if (of("row")) findPosition().catch(showError); // chosen outside of the table
  const isOfTable = tabName() === "trace" && state.near; // the nearest of the rows in the table
  if (of("store", "tab", ...TABS[tabName()].reads) || (isOfTable && of("filter"))) showSide();
}

const split = splitter();

const on = (selector, kind, act) => $(selector).addEventListener(kind, act);

async function start() {
  // the token has become a cookie: out of the address, so that it is not copied with it
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  stores = (await getJson("/api/stores")).stores;
  for (const each of ["#filter-box", "#save", "#store"]) $(each).hidden = isExported;
  await openTrace();
  table.start(step);
  filter.start((text) => filter.attempt({ filter: text }));
  on("#store", "change", (event) => changeStore(event.target.value));
  on("#find", "keydown", (event) => {
    if (event.key === "Enter") find(event.target.value);
    else if (event.key === "Escape") event.target.blur();
  });
  on("#choose", "click", chooseColumns);
  on("#save", "change", (event) => {
    save(event.target.value).catch(showError);
    event.target.value = "";
  });
  on("#help", "click", () => $("#keys").showModal());
  on("#skip", "click", (event) => {
    event.preventDefault();
    $("#panel").focus();
  });
  on("#tabs", "keydown", (event) => {
    const [by] = arrowOf(event) ?? [];
    if (!by) return;
    const tabs = [...$("#tabs").children];
    const next = tabs.at((tabs.indexOf(document.activeElement) + by) % tabs.length);
    next.focus();
    next.click();
  });
  on("#outside button", "click", () => $("#clear").click());
  document.addEventListener("copy", (event) => {
    if (!getSelection().isCollapsed || $("input:focus")) return;
    event.preventDefault();
    copy().catch(showError);
  });
  on("#chooser", "keydown", (event) => event.key === "Escape" && closeChooser());
  on("#clear", "click", () => {
    $("#filter").value = "";
    $("#filter").focus();
    filter.attempt({ filter: "" });
  });
  on("#newer button", "click", () => takeNewer().catch(showError));
  addEventListener("keydown", pressed);
  addEventListener("noted", () => NOTED.test(state.filter) && showTable());
  onChange(changed);
  split();
  await showTable();
  await showSide();
  document.body.dataset.ready = "1";
  await poll();
  setInterval(poll, POLL_MS);
  addEventListener("focus", poll); // someone has come back to the page
}

start().catch(showError);
