// A map of all traces: each one a point where two coordinates of its states place it.

import { getArray, getJson } from "/page/api.js";
import { color, countText, element, numberText, showError, showTip } from "/page/dom.js";
import { NAMES } from "/page/histogram.js";
import { follow } from "/page/map_gestures.js";
import { Plot, colorOf, tableOf } from "/page/map_plot.js";
import {
  buildGrid,
  fitBox,
  nearest,
  polygonText,
  polygonsOf,
  withLasso,
  withoutLasso,
} from "/page/map_points.js";
import { change, state } from "/page/state.js";

const REACH = 14; // pixels around the pointer
const MAX_FILTER = 1000;
const KEPT_TEXTS = 200;
const SHOWN = ["trace_id", "question", "answer", "label"];
const CLASSES = ["#4477aa", "#ee6677", "#228833", "#ccaa22", "#66ccee", "#aa3377", "#ee8833",
  "#8866cc", "#44aa99", "#997755"]; // prettier-ignore

let tab = null; // what is on the screen, and what it was made from

export function mapOfLayer(store, layer) {
  const of = store.maps.filter((map) => map.layer === layer);
  const now = store.maps.find((map) => map.name === state.map);
  return of.find((map) => map.column === now?.column && map.method === now?.method) ?? of[0];
}

// How a map of a layer is made; the last layer where none is named.
export function mapAdvice(store, layer) {
  const { states, path } = store;
  if (!states) return element("p", { className: "soft" }, "this store has no states to draw a map of");
  const wanted = layer ?? states.layers.at(-1);
  const option = states.layers.length ? ` --layer ${wanted}` : "";
  const lines = [`python -m store project ${path} --column ${states.column}${option}`];
  if (!states.is_there) lines.unshift(`python -m store derive ${path} ${states.column}`);
  return element(
    "div",
    { className: "advice" },
    element(
      "p",
      {},
      layer === undefined
        ? "This store has no map yet. A map places each trace by its state in one layer; this makes one:"
        : `There is no map of layer ${layer} yet. This makes one:`,
    ),
    element("pre", { className: "command" }, lines.join("\n")),
    element("p", { className: "soft" }, "The page then offers the new generation of the store."),
  );
}

export async function showMap(panel, base, store, row, query) {
  if (!store.maps.length) {
    tab = null;
    panel.replaceChildren(mapAdvice(store));
    return;
  }
  const map = store.maps.find((each) => each.name === state.map) ?? store.maps[0];
  if (tab?.base !== base) tab = newTab(base, store);
  const mine = tab;
  mine.query = query;
  mine.map = map;
  const [points, paint, mask] = await Promise.all([
    once(mine, "points", map.name, () => getArray(`${base}/map/${map.name}`)),
    once(mine, "paint", paintOf(store), (name) => loadPaint(base, name)),
    once(mine, "mask", query.filter, () => loadMask(base, query)),
  ]);
  if (tab !== mine || state.tab !== "map" || mine.map !== map || mine.query !== query) return;
  place(mine, points.values);
  mine.plot.levels = paint?.values ?? null;
  mine.plot.mask = mask?.values ?? null;
  mine.paint = paint;
  recolour(mine);
  if (mine.root.parentNode !== panel) panel.replaceChildren(mine.root);
  drawBar(mine);
  mine.plot.resize();
  mine.plot.draw();
  await showCard(mine, row);
}

// What was asked for last, without asking again.
async function once(mine, what, key, load) {
  const kept = mine.kept[what];
  if (kept?.key === key) return kept.value;
  const value = load(key);
  mine.kept[what] = { key, value };
  value.catch(() => {
    if (mine.kept[what]?.value === value) delete mine.kept[what];
  });
  return value;
}

function paintOf(store) {
  const numbers = store.columns.filter((column) => column.kind === "number");
  const names = numbers.map((column) => column.name);
  if (state.paint === "none" || names.includes(state.paint)) return state.paint;
  const score = numbers.find((column) => column.is_score);
  return names.includes("label") ? "label" : (score?.name ?? "none");
}

async function loadPaint(base, name) {
  if (name === "none") return null;
  const { values, headers } = await getArray(`${base}/levels/${name}`);
  const classes = headers.get("X-Classes");
  return {
    name,
    values,
    low: Number(headers.get("X-Low")),
    high: Number(headers.get("X-High")),
    classes: classes ? classes.split(",") : [],
  };
}

const loadMask = async (base, query) => (query.filter ? getArray(`${base}/mask`, query) : null);

function newTab(base, store) {
  const plot = new Plot();
  const made = {
    base,
    store,
    plot,
    kept: {},
    texts: new Map(),
    hovered: -1,
    path: null,
    isLasso: false,
    bar: element("div", { className: "bar" }),
    legend: element("div", { className: "bar legend-row" }),
    note: element("p", { className: "soft map-note" }),
    card: element("div", { className: "map-card" }),
  };
  made.root = element(
    "div",
    { className: "map-tab" },
    made.bar,
    made.legend,
    plot.frame,
    made.note,
    made.card,
  );
  plot.marks = (context) => drawMarks(made, context);
  plot.onPaint = () => drawNote(made);
  plot.onRest = () => {
    const { x, y, zoom } = plot.view;
    made.seen = zoom === 1 && isFitted(plot) ? "" : [x, y, zoom].map((v) => v.toPrecision(6)).join();
    change({ view: made.seen });
  };
  follow(plot, {
    isLasso: () => made.isLasso,
    onLasso: (path) => lasso(made, path),
    onPath: (path) => {
      made.path = path;
      plot.paintMarks();
    },
    onClick: (place) => {
      const row = rowAt(made, place);
      if (row >= 0) change({ row });
    },
    onHover: (where, event) => hover(made, where, event),
    onKey: (key) => {
      if (key !== "l") return false;
      made.isLasso = !made.isLasso;
      drawBar(made);
      return true;
    },
  });
  return made;
}

function isFitted({ view, box: [x0, x1, y0, y1] }) {
  const near = (a, b, size) => Math.abs(a - b) < 1e-6 * size;
  return near(view.x, (x0 + x1) / 2, x1 - x0) && near(view.y, (y0 + y1) / 2, y1 - y0);
}

// Take new points, and what the address says of the view.
function place(mine, points) {
  const { plot } = mine;
  if (plot.points !== points) {
    mine.grid = null;
    plot.place(points, fitBox(points));
    mine.nPlaced = countPlaced(points);
    mine.seen = undefined;
    setTimeout(() => gridOf(mine), 300);
  }
  if (mine.seen === state.view) return;
  mine.seen = state.view;
  const [x, y, zoom] = state.view.split(",").map(Number);
  if (state.view && [x, y, zoom].every(Number.isFinite) && zoom > 0) plot.view = { x, y, zoom };
  else {
    const [x0, x1, y0, y1] = plot.box;
    plot.view = { x: (x0 + x1) / 2, y: (y0 + y1) / 2, zoom: 1 };
  }
}

function countPlaced(points) {
  let n = 0;
  for (let i = 0; i < points.length; i += 2) if (Number.isFinite(points[i] + points[i + 1])) n += 1;
  return n;
}

function gridOf(mine) {
  mine.grid ??= buildGrid(mine.plot.points, mine.plot.box);
  return mine.grid;
}

function rowAt({ plot, ...mine }, place_) {
  const grid = mine.grid ?? buildGrid(plot.points, plot.box);
  return nearest(plot.points, grid, plot.pointAt(place_), plot.scale, REACH, plot.isShown);
}

const isLabel = (paint) => paint.name === "label";

function recolour(mine) {
  const { plot, paint } = mine;
  if (!paint) {
    const mark = colorOf("--mark");
    plot.colors = tableOf(() => mark);
    return;
  }
  if (paint.classes.length) {
    const colors = paint.classes.map((_, i) => classColor(paint, i));
    const isMissing = (level) => isLabel(paint) && !["0", "1"].includes(paint.classes[level]);
    plot.colors = tableOf((level) => colors[level] ?? colors[0], isMissing);
    return;
  }
  const stops = ["--ramp-0", "--ramp-1", "--ramp-2", "--ramp-3"].map(colorOf);
  plot.colors = tableOf((level) => between(stops, level / 254));
}

function classColor(paint, i) {
  if (isLabel(paint)) return colorOf({ 0: "--right", 1: "--wrong" }[paint.classes[i]] ?? "--unknown");
  const text = CLASSES[i % CLASSES.length];
  return [1, 3, 5].map((at) => Number.parseInt(text.slice(at, at + 2), 16));
}

function between(stops, share) {
  const at = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(at));
  return stops[first].map((part, i) => part + (stops[first + 1][i] - part) * (at - first));
}

function drawBar(mine) {
  const { store, map, plot } = mine;
  const numbers = store.columns.filter((column) => column.kind === "number");
  const names = ["none", ...numbers.map((column) => column.name)];
  const pick = (key, value, values, label) =>
    element(
      "label",
      {},
      `${label} `,
      element(
        "select",
        { onchange: (event) => change({ [key]: event.target.value, ...(key === "map" && { view: "" }) }, true) },
        ...values.map((each) => element("option", { value: each, selected: each === value }, each)),
      ),
    );
  const button = (text, title, onclick, isOn = false) =>
    element("button", { title, onclick, className: isOn ? "on" : "", "aria-pressed": isOn }, text);
  const hasLasso = withoutLasso(state.filter, map.name) !== state.filter.trim();
  mine.bar.replaceChildren(
    pick("map", map.name, store.maps.map((each) => each.name), "map"),
    pick("paint", mine.paint?.name ?? "none", names, "colour"),
    element(
      "span",
      { className: "group" },
      button("−", "zoom out (−)", () => plot.zoomAt(1 / 1.4)),
      button("+", "zoom in (+)", () => plot.zoomAt(1.4)),
      button("all", "show all points (0)", () => plot.fit()),
    ),
    button("lasso", "draw around points to filter the table (l, or drag with Shift)", () => {
      mine.isLasso = !mine.isLasso;
      drawBar(mine);
    }, mine.isLasso),
    button("filter to view", "the table shows the traces of this part of the map", () =>
      lasso(mine, [[0, 0], [plot.width, 0], [plot.width, plot.height], [0, plot.height]]),
    ),
    hasLasso
      ? button("remove the lasso", "the filter without its polygon", () =>
          change({ filter: withoutLasso(state.filter, map.name) }, true),
        )
      : "",
  );
  plot.frame.classList.toggle("lasso", mine.isLasso);
  plot.canvas.setAttribute("role", "application");
  plot.canvas.setAttribute(
    "aria-label",
    `map of ${countText(mine.nPlaced)} traces: arrows move, + and - zoom, 0 shows all, l is the lasso`,
  );
  mine.legend.replaceChildren(...legend(mine.paint));
}

const css = (parts) => `rgb(${parts.join(" ")})`;

function swatch(parts) {
  const made = element("b", {}, "● ");
  made.style.color = css(parts);
  return made;
}

function legend(paint) {
  if (!paint) return [];
  const grey = (text) => element("span", { className: "soft" }, swatch(colorOf("--unknown")), text);
  if (paint.classes.length) {
    const named = paint.classes.map((value, i) => {
      if (!isLabel(paint)) return [i, `${paint.name} ${value}`];
      return [i, NAMES[value] ?? NAMES.none];
    });
    if (isLabel(paint)) named.sort(([, a], [, b]) => (a === NAMES.none) - (b === NAMES.none));
    return named.map(([i, text]) =>
      element("span", { className: "soft" }, swatch(classColor(paint, i)), text),
    );
  }
  if (Number.isNaN(paint.low)) return [grey(`${paint.name}: no finite value`)];
  const ramp = element("i");
  const stops = ["--ramp-0", "--ramp-1", "--ramp-2", "--ramp-3"].map((name) => color(name));
  ramp.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  return [
    element(
      "span",
      { className: "legend", title: "from the 1st to the 99th percentile" },
      `${paint.name} ${numberText(paint.low)}`,
      ramp,
      numberText(paint.high),
    ),
    grey("no finite value"),
  ];
}

function drawNote(mine) {
  const { map, plot } = mine;
  const source = [map.column, map.layer !== null && `layer ${map.layer}`].filter(Boolean).join(", ");
  const share = (i) => (map.variance[i] === undefined ? "" : ` (${(100 * map.variance[i]).toFixed(1)}%)`);
  const axes =
    map.method === "pca"
      ? `component 1${share(0)} to the right, component 2${share(1)} upwards`
      : "first coordinate to the right, second upwards";
  const missing = plot.n - mine.nPlaced;
  const parts = [
    `${countText(plot.inSight)} traces in sight`,
    missing ? `${countText(missing)} have no coordinates` : "",
    `${source ? `${source}; ` : ""}${axes}`,
  ];
  mine.note.textContent = parts.filter(Boolean).join(" · ");
}

function drawMarks(mine, context) {
  const { plot } = mine;
  for (const polygon of polygonsOf(state.filter, mine.map.name))
    outline(context, polygon.map((corner) => plot.placeOf(corner)), [5, 4]);
  if (mine.path) outline(context, mine.path, []);
  if (mine.hovered >= 0) ring(context, plot, mine.hovered, 7, 1.5);
  if (state.row !== "") ring(context, plot, Number(state.row), 9, 2.5);
}

function outline(context, places, dash) {
  context.beginPath();
  for (const [x, y] of places) context.lineTo(x, y);
  context.closePath();
  context.setLineDash(dash);
  context.lineWidth = 1.5;
  context.strokeStyle = color("--mark");
  context.stroke();
  context.setLineDash([]);
}

function ring(context, plot, row, radius, width) {
  const [x, y] = plot.placeOf([plot.points[2 * row], plot.points[2 * row + 1]]);
  if (!Number.isFinite(x + y)) return;
  for (const [name, size] of [["--paper", width + 2.5], ["--ink", width]]) {
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.lineWidth = size;
    context.strokeStyle = color(name);
    context.stroke();
  }
}

function lasso(mine, path) {
  const { plot, map } = mine;
  const rest = withLasso(state.filter, map.name, "").length;
  const steps = plot.scale.map((size) => 0.5 / size);
  const text = polygonText(path, (corner) => plot.pointAt(corner), steps, MAX_FILTER - rest);
  mine.isLasso = false;
  drawBar(mine);
  if (text === null) {
    if (MAX_FILTER - rest < 200)
      showError(new Error(`filter: expected at most ${MAX_FILTER} characters; shorten it first`));
    return;
  }
  change({ filter: withLasso(state.filter, map.name, text) }, true);
}

function hover(mine, where, event) {
  const row = where ? rowAt(mine, where) : -1;
  if (row === mine.hovered) return;
  mine.hovered = row;
  mine.plot.paintMarks();
  showTip("");
  mine.plot.canvas.style.cursor = row >= 0 ? "pointer" : "";
  if (row < 0) return;
  const [x, y] = [event.clientX, event.clientY];
  clearTimeout(mine.wait);
  mine.wait = setTimeout(async () => {
    try {
      const values = await textsOf(mine, row);
      if (mine.hovered === row) showTip(tipText(values), x, y);
    } catch (error) {
      showError(error);
    }
  }, 50);
}

const cut = (text) => (text.length > 44 ? `${text.slice(0, 43)}…` : text);

const tipText = (values) =>
  Object.entries(values)
    .map(([name, value]) => (typeof value === "string" ? cut(value.replaceAll("\n", " ")) : `${name} ${numberText(value)}`))
    .join("\n");

// What the table says of a row: texts, label and what colours it.
async function textsOf(mine, row) {
  const paint = mine.paint ? [mine.paint.name] : [];
  const known = new Set(mine.store.columns.map((column) => column.name));
  const names = [...new Set([...SHOWN, ...paint])].filter((name) => known.has(name));
  const key = `${row} ${names}`;
  if (!mine.texts.has(key)) {
    const query = { start: row, count: 1, columns: names.join(",") };
    const found = await getJson(`${mine.base}/table`, query);
    if (mine.texts.size > KEPT_TEXTS) mine.texts.clear();
    mine.texts.set(key, Object.fromEntries(names.map((name) => [name, found.columns[name][0]])));
  }
  return mine.texts.get(key);
}

async function showCard(mine, row) {
  if (row === "") {
    mine.card.replaceChildren();
    return;
  }
  const values = await textsOf(mine, row);
  if (tab !== mine || state.row !== row) return;
  const { trace_id, question, answer, ...numbers } = values;
  const { points } = mine.plot;
  const isPlaced = Number.isFinite(points[2 * row] + points[2 * row + 1]);
  mine.card.replaceChildren(
    element(
      "div",
      { className: "bar" },
      element("strong", {}, trace_id),
      ...Object.entries(numbers).map(([name, value]) =>
        element("span", { className: name === "label" ? `label-${value}` : "soft" }, `${name} ${numberText(value)}`),
      ),
      isPlaced ? "" : element("span", { className: "soft" }, "no coordinates"),
      element("button", { onclick: () => change({ tab: "trace" }, true) }, "open the trace"),
    ),
    element("p", { className: "prose", dir: "auto" }, [question, answer].filter(Boolean).join("  →  ")),
  );
  mine.plot.paintMarks();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!tab?.paint && !tab?.plot.n) return;
  recolour(tab);
  drawBar(tab);
  tab.plot.draw();
});
