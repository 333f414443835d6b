// Wires the parts together: the state in the URL decides what is shown, keys and clicks change it.

import { getJson } from "/page/api.js";
import { showAttention } from "/page/attention.js";
import { $, element, showError, showTip } from "/page/dom.js";
import * as filter from "/page/filter.js";
import { keepFocus } from "/page/focus.js";
import { showHistogram } from "/page/histogram.js";
import { showLayers } from "/page/layers.js";
import { showMap } from "/page/map.js";
import { showScores } from "/page/scores.js";
import { change, onChange, state } from "/page/state.js";
import * as table from "/page/table.js";
import { showTrace } from "/page/trace.js";

const LEFT_OUT = new Set([
  "token_texts",
  "question_id",
  "source_file",
  "references",
  "context_start",
  "context_len",
  "prompt_len",
]);
const TABS = {
  trace: showTrace,
  layers: showLayers,
  attention: showAttention,
  map: showMap,
  scores: showScores,
};
const OF_MANY = ["map", "scores"]; // tabs that show the rows of the filter, not one trace
const LEAD = ["trace_id", "label", "question", "answer"];
const POLL_MS = 15_000;
const REPLACED = 1e9; // states of a store that took the place of the first are numbered from here

let stores = [];
let position = -1; // of the trace in the table

const store = () => stores[Number(state.store)] ?? stores[0];
const base = () => `/api/${stores.indexOf(store())}/${store().generation}`;
const query = () => ({ filter: state.filter, sort: state.sort, descending: state.descending });

function shownColumns() {
  const { columns } = store();
  const named = state.columns
    .split(",")
    .map((name) => columns.find((column) => column.name === name))
    .filter(Boolean);
  if (named.length) return named;
  const lead = LEAD.map((name) => columns.find((column) => column.name === name)).filter(Boolean);
  const rest = columns.filter((column) => !LEFT_OUT.has(column.name) && !lead.includes(column));
  const scores = rest.filter((column) => column.is_score);
  const others = rest.filter((column) => !column.is_score);
  const chosen = lead.length + rest.length > 2 ? [...lead, ...scores, ...others] : columns;
  return chosen.slice(0, 14);
}

async function showTable() {
  const found = store();
  $("#store").replaceChildren(
    ...stores.map((each, i) =>
      element("option", { value: i, selected: each === found }, each.name),
    ),
  );
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
    showError(null);
    $("#filter").classList.remove("bad");
    if (state.row === "" && table.count()) choose(table.rowAt(0), 0);
    else await findPosition();
  } catch (error) {
    if (error.name === "AbortError") return;
    $("#filter").classList.add("bad");
    showError(error);
  }
}

async function findPosition() {
  position = -1;
  if (state.row === "") return;
  const found = await getJson(`${base()}/find`, { ...query(), row: state.row });
  if (found.position === null) return;
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
  const chosen = state.tab in TABS ? state.tab : "trace";
  if (!tabs.children.length)
    tabs.replaceChildren(
      ...Object.keys(TABS).map((name) =>
        element("button", { role: "tab", onclick: () => change({ tab: name }, true) }, name),
      ),
    );
  for (const tab of tabs.children) {
    const isOn = tab.textContent === chosen;
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
  const tab = TABS[state.tab] ?? showTrace;
  if (state.row === "" && !OF_MANY.includes(state.tab)) {
    panel.replaceChildren(
      element(
        "p",
        { className: "soft" },
        store().rows ? "choose a trace" : "this store has no traces",
      ),
    );
    return;
  }
  try {
    await keepFocus(panel, () => tab(panel, base(), store(), state.row, query()));
  } catch (error) {
    showError(error);
  }
}

async function histogramOf(name, event) {
  const from = event?.currentTarget;
  try {
    await showHistogram(base(), query(), name, (box) => openChooser([box], from));
  } catch (error) {
    showError(error);
  }
}

let opener = null; // the name of what has the focus again when the chooser is closed

function openChooser(parts, from) {
  const chooser = $("#chooser");
  opener = from?.getAttribute("aria-label") ?? null;
  chooser.replaceChildren(...parts, element("button", { onclick: closeChooser }, "close"));
  chooser.hidden = false;
  chooser.querySelector("input, canvas, button").focus();
}

function closeChooser() {
  $("#chooser").hidden = true;
  showTip("");
  const buttons = [...document.querySelectorAll("#head button, #choose")];
  buttons.find((each) => each.getAttribute("aria-label") === opener)?.focus();
}

function chooseColumns() {
  if (!$("#chooser").hidden) {
    closeChooser();
    return;
  }
  const shown = new Set(shownColumns().map((column) => column.name));
  const boxes = store().columns.map((column) =>
    element(
      "label",
      {},
      element("input", {
        type: "checkbox",
        checked: shown.has(column.name),
        onchange: (event) => {
          if (event.target.checked) shown.add(column.name);
          else shown.delete(column.name);
          change({
            columns: store()
              .columns.map((each) => each.name)
              .filter((each) => shown.has(each))
              .join(","),
          });
        },
      }),
      ` ${column.name}`,
    ),
  );
  openChooser(boxes, $("#choose"));
}

async function step(by) {
  const next = Math.max(0, Math.min(table.count() - 1, position + by));
  if (!table.count()) return;
  position = next;
  await table.reveal(next);
  choose(table.rowAt(next), next);
}

async function find(text) {
  if (!text) return;
  try {
    const found = await getJson(`${base()}/find`, { ...query(), text, after: position });
    if (found.position === null) {
      showError(new Error(`find: no row of the table has ${JSON.stringify(text.slice(0, 80))}`));
      return;
    }
    showError(null);
    position = found.position;
    await table.reveal(position);
    choose(found.row, position);
  } catch (error) {
    showError(error);
  }
}

async function poll() {
  try {
    const found = (await getJson("/api/stores")).stores[Number(state.store)];
    const isNewer = found && found.newest !== store().generation;
    $("#newer").hidden = !isNewer;
    if (isNewer)
      $("#newer span").textContent =
        found.newest >= REPLACED
          ? "Another store, as a repair makes one, has taken the place of the one shown here."
          : `This is generation ${store().generation} of the store; generation ${found.newest} is there.`;
  } catch {
    /* the server has ended; the page stays readable */
  }
}

async function takeNewer() {
  stores = (await getJson("/api/stores", { newest: 1 })).stores;
  $("#newer").hidden = true;
  await showTable();
  await showSide();
}

function keys() {
  addEventListener("keydown", (event) => {
    const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "/") {
      $("#filter").focus();
      $("#filter").select();
    } else return;
    event.preventDefault();
  });
}

async function start() {
  // the token has become a cookie: out of the address, so that it is not copied with it
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  stores = (await getJson("/api/stores")).stores;
  table.start(step);
  filter.start((text) => change({ filter: text }, true));
  $("#store").addEventListener("change", (event) =>
    change(
      {
        store: event.target.value,
        row: "",
        filter: "",
        sort: "",
        columns: "",
        map: "",
        paint: "",
        view: "",
      },
      true,
    ),
  );
  $("#find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") find(event.target.value);
    else if (event.key === "Escape") event.target.blur();
  });
  $("#choose").addEventListener("click", chooseColumns);
  $("#chooser").addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeChooser();
  });
  $("#clear").addEventListener("click", () => {
    $("#filter").value = "";
    $("#filter").focus();
    change({ filter: "" }, true);
  });
  $("#newer button").addEventListener("click", () => takeNewer().catch(showError));
  keys();
  onChange((changed) => {
    const of = (...names) => names.some((name) => changed.has(name));
    if (of("store", "filter", "sort", "descending", "columns")) showTable();
    else if (of("row") && String(table.rowAt(position)) === state.row) table.redraw();
    else if (of("row")) findPosition().catch(showError); // chosen outside of the table
    if (
      of(
        "row",
        "tab",
        "color",
        "store",
        "layer",
        "beside",
        "what",
        "score",
        "other",
        "edge",
        "first",
        "head",
        "scale",
        "map",
        "paint",
        "view",
      ) ||
      (OF_MANY.includes(state.tab) && of("filter"))
    )
      showSide();
  });
  await showTable();
  await showSide();
  document.body.dataset.ready = "1";
  setInterval(poll, POLL_MS);
  addEventListener("focus", poll); // someone has come back to the page
}

start().catch(showError);
