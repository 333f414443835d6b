// Wires the parts together: the state in the URL decides what is shown, keys and clicks change it.

import { get, getJson } from "/page/api.js";
import { showAttention } from "/page/attention.js";
import { $, checkbox, element, hasModifier, showError, showTip, soft } from "/page/dom.js";
import * as filter from "/page/filter.js";
import { keepFocus } from "/page/focus.js";
import { showHistogram } from "/page/histogram.js";
import { showLayers } from "/page/layers.js";
import { showMap } from "/page/map.js";
import { without } from "/page/narrow.js";
import { showScores } from "/page/scores.js";
import { change, changeStore, onChange, state } from "/page/state.js";
import * as table from "/page/table.js";
import { showTrace } from "/page/trace.js";

// What each tab draws, and of the state what it reads: a change of it draws the tab again.
const TABS = {
  trace: { draw: showTrace, reads: ["row", "beside", "color", "scale"] },
  layers: { draw: showLayers, reads: ["row", "what", "map"] },
  attention: { draw: showAttention, reads: ["row", "layer", "edge", "first", "head"] },
  map: { draw: showMap, reads: ["filter", "row", "map", "paint", "view"] },
  scores: { draw: showScores, reads: ["filter", "score", "other"] },
};
const FIRST_TAB = "trace";
const POLL_MS = 15_000;
const REPLACED = 1e9; // states of a store that took the place of the first are numbered from here

let stores = [];
let position = -1; // of the trace in the table
let tableError = null; // why the table shows no rows
let sideError = null; // why the panel beside it is empty

const store = () => stores[Number(state.store)] ?? stores[0];
const base = () => `/api/${stores.indexOf(store())}/${store().generation}`;
const tabName = () => (Object.hasOwn(TABS, state.tab) ? state.tab : FIRST_TAB);
const query = () => ({ filter: state.filter, sort: state.sort, descending: state.descending });

function shownColumns() {
  const columns = new Map(store().columns.map((column) => [column.name, column]));
  const chosen = (names) => names.map((name) => columns.get(name)).filter(Boolean);
  const named = chosen(state.columns.split(","));
  return named.length ? named : chosen(store().shown);
}

async function showTable() {
  const found = store();
  $("#store").replaceChildren(
    ...stores.map((each, i) =>
      element("option", { value: i, selected: each === found }, each.name),
    ),
  );
  $("#store").title = found.place;
  filter.setBase(base());
  if (document.activeElement !== $("#filter")) $("#filter").value = state.filter;
  $("#clear").hidden = state.filter === "";
  $("#ids").href = `${base()}/ids?${new URLSearchParams(query())}`;
  document.title = `${found.name} – traces`;
  try {
    await table.show({
      base: base(),
      columns: shownColumns(),
      query: query(),
      size: found.rows,
      onRow: choose,
      onHistogram: histogramOf,
    });
    setTableError(null);
    if (state.row === "" && table.count()) choose(table.rowAt(0), 0);
    else await findPosition();
  } catch (error) {
    if (error.name !== "AbortError") setTableError(error);
  }
}

function setTableError(error) {
  tableError = error;
  showError(tableError ?? sideError);
  $("#filter").classList.toggle("bad", Boolean(error?.message.startsWith("filter")));
  $("#ids").hidden = Boolean(error);
}

async function findPosition() {
  position = -1;
  const { row } = state;
  if (row === "") return;
  const found = await getJson(`${base()}/find`, { ...query(), row });
  if (found.position === null || state.row !== row) return;
  position = found.position;
  await table.reveal(position);
}

function choose(row, at) {
  if (row === undefined) return;
  position = at;
  change({ row });
}

function showTabs() {
  const tabs = $("#tabs");
  const tabOf = (name) =>
    element("button", { role: "tab", onclick: () => change({ tab: name }, true) }, name);
  if (!tabs.children.length) tabs.replaceChildren(...Object.keys(TABS).map(tabOf));
  for (const tab of tabs.children) {
    const isOn = tab.textContent === tabName();
    tab.classList.toggle("on", isOn);
    tab.setAttribute("aria-selected", isOn);
  }
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

async function drawSide(panel) {
  showTip("");
  sideError = null;
  showError(tableError); // what was said of the trace before is over
  const { draw, reads } = TABS[tabName()];
  const isOfRows = reads.includes("filter"); // not of one trace
  if (state.row === "" && !isOfRows) {
    panel.replaceChildren(soft(store().rows ? "choose a trace" : "this store has no traces"));
    return;
  }
  try {
    await keepFocus(panel, () => draw(panel, base(), store(), state.row, query()));
  } catch (error) {
    panel.replaceChildren();
    sideError = error;
    showError(tableError ?? sideError);
  }
}

let histogram = null; // that is open: its column, and the rest of the filter

async function histogramOf(name, event) {
  const from = event?.currentTarget;
  try {
    await showHistogram(base(), query(), name, (box) => openChooser([box], from));
    histogram = { name, rest: filterBeside(name) };
  } catch (error) {
    showError(error);
  }
}

const filterBeside = (name) => without(state.filter, [name]).join(" and ");

// After a filter; one that a bar of the histogram wrote leaves the other bars to choose from.
async function updateHistogram() {
  if (!histogram || histogram.rest === filterBeside(histogram.name)) return;
  const shown = histogram;
  shown.rest = filterBeside(shown.name);
  try {
    await showHistogram(base(), query(), shown.name, (box) => {
      if (histogram !== shown) return;
      keepFocus($("#chooser"), () => $("#chooser").firstChild.replaceWith(box));
    });
  } catch {
    closeChooser(); // the table says why
  }
}

let opener = null; // the name of what has the focus again when the chooser is closed

function openChooser(parts, from) {
  const chooser = $("#chooser");
  histogram = null;
  opener = from?.getAttribute("aria-label") ?? null;
  chooser.replaceChildren(...parts, element("button", { onclick: closeChooser }, "close"));
  chooser.hidden = false;
  chooser.querySelector("input, canvas, button").focus();
}

function hideChooser() {
  $("#chooser").hidden = true;
  histogram = null;
  showTip("");
}

function closeChooser() {
  hideChooser();
  const buttons = [...document.querySelectorAll("#head button, #choose")];
  buttons.find((each) => each.getAttribute("aria-label") === opener)?.focus();
}

function chooseColumns() {
  if (!$("#chooser").hidden) {
    closeChooser();
    return;
  }
  const names = store().columns.map((column) => column.name);
  const isShown = (name) => shownColumns().some((column) => column.name === name);
  const choose = () => {
    change({ columns: names.filter((_, i) => boxes[i].checked).join(",") });
    boxes.forEach((box, i) => (box.checked = isShown(names[i]))); // without any, those of the start
  };
  const labels = names.map((name) => checkbox(name, isShown(name), choose));
  const boxes = labels.map((label) => label.querySelector("input"));
  openChooser(labels, $("#choose"));
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
async function saveIds(href) {
  const answer = await get(href);
  await answer.body.cancel();
  location.assign(href);
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
  if (problem) $("#newer span").textContent = `No newer state can be seen: ${problem}`;
  else if (newest >= REPLACED)
    $("#newer span").textContent =
      "Another store, as a repair makes one, has taken the place of the one shown here.";
  else
    $("#newer span").textContent =
      `This is generation ${generation} of the store; generation ${newest} is there.`;
}

async function takeNewer() {
  stores = (await getJson("/api/stores", { newest: 1 })).stores;
  $("#newer").hidden = true;
  hideChooser(); // it has the columns and the numbers of the last one
  await showTable();
  await showSide();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  "/": () => {
    $("#filter").focus();
    $("#filter").select();
  },
};

function pressed(event) {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (isTyping || hasModifier(event) || !Object.hasOwn(KEYS, event.key)) return;
  KEYS[event.key]();
  event.preventDefault();
}

function changed(names) {
  const of = (...some) => some.some((name) => names.has(name));
  if (of("store")) hideChooser(); // it has the columns of the last one
  if (of("filter")) updateHistogram();
  if (of("store", "filter", "sort", "descending", "columns")) showTable();
  else if (of("row") && String(table.rowAt(position)) === state.row) table.draw();
  else if (of("row")) findPosition().catch(showError); // chosen outside of the table
  if (of("store", "tab", ...TABS[tabName()].reads)) showSide();
}

const on = (selector, kind, act) => $(selector).addEventListener(kind, act);

async function start() {
  // the token has become a cookie: out of the address, so that it is not copied with it
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  stores = (await getJson("/api/stores")).stores;
  table.start(step);
  filter.start((text) => change({ filter: text }, true));
  on("#store", "change", (event) => changeStore(event.target.value));
  on("#find", "keydown", (event) => {
    if (event.key === "Enter") find(event.target.value);
    else if (event.key === "Escape") event.target.blur();
  });
  on("#choose", "click", chooseColumns);
  on("#ids", "click", (event) => {
    event.preventDefault();
    saveIds(event.currentTarget.href).catch(showError);
  });
  on("#chooser", "keydown", (event) => event.key === "Escape" && closeChooser());
  on("#clear", "click", () => {
    $("#filter").value = "";
    $("#filter").focus();
    change({ filter: "" }, true);
  });
  on("#newer button", "click", () => takeNewer().catch(showError));
  addEventListener("keydown", pressed);
  onChange(changed);
  await showTable();
  await showSide();
  document.body.dataset.ready = "1";
  setInterval(poll, POLL_MS);
  addEventListener("focus", poll); // someone has come back to the page
}

start().catch(showError);
