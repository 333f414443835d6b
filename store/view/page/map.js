// A map of all traces: each one a point where two coordinates of its states place it.

import { getArray } from "/page/api.js";
import { bar, button, countText, element, pick, showError } from "/page/dom.js";
import { mapAdvice } from "/page/map_advice.js";
import { colorTable, isWrong, legendParts, loadPaint, paintName } from "/page/map_colors.js";
import { follow } from "/page/map_gestures.js";
import { Plot } from "/page/map_plot.js";
import {
  fitBox,
  nearest,
  polygonText,
  polygonsOf,
  withLasso,
  withoutLasso,
} from "/page/map_points.js";
import { showCard, showRowTip } from "/page/map_texts.js";
import { dot, line } from "/page/plot.js";
import { change, oneOf, state } from "/page/state.js";

const REACH = 14; // pixels around the pointer
const MAX_FILTER = 1000;

let tab = null; // what is on the screen, and what it was made from

export async function showMap(/** @type {Shown} */ { base, store, row, query }) {
  if (!store.maps.length) {
    tab = null;
    return [mapAdvice(store)];
  }
  const names = store.maps.map((each) => each.name);
  const map = store.maps[names.indexOf(oneOf("map", names, names[0]))];
  if (tab?.base !== base) tab = newTab(base, store);
  const mine = tab;
  const [points, paint, mask] = await Promise.all([
    once(mine, "points", map.name, () => getArray(`${base}/map/${map.name}`)),
    once(mine, "paint", paintName(store), (name) => loadPaint(base, name)),
    once(mine, "mask", query.filter, () => (query.filter ? getArray(`${base}/mask`, query) : null)),
  ]);
  mine.map = map;
  mine.paint = paint;
  takePoints(mine, points.values);
  takeView(mine);
  mine.plot.levels = paint?.values ?? null;
  mine.plot.mask = mask?.values ?? null;
  drawBar(mine);
  drawColors(mine);
  await showCard(mine, row);
  return [mine.root];
}

// What was asked for last, without asking again.
function once(mine, what, key, load) {
  if (mine.kept[what]?.key === key) return mine.kept[what].value;
  const value = Promise.resolve(load(key));
  mine.kept[what] = { key, value };
  value.catch(() => {
    if (mine.kept[what].value === value) delete mine.kept[what];
  });
  return value;
}

function newTab(base, store) {
  const plot = new Plot();
  const part = (tag, className) => element(tag, { className });
  const made = {
    base,
    store,
    plot,
    kept: {}, // answers of the server
    hovered: -1, // row under the pointer
    path: null, // of the lasso that is being drawn
    isLasso: false, // whether a drag is a lasso
    view: undefined, // what the address said last
    map: null, // of the store
    nPlaced: 0, // points with coordinates
    bar: bar(),
    legend: part("span", "legend-row"),
    note: part("p", "soft map-note"),
    card: part("div", "map-card"),
  };
  const removeLasso = () => {
    plot.canvas.focus();
    change({ filter: withoutLasso(state.filter, made.map.name) }, true);
  };
  made.remove = button("remove the lasso", removeLasso, { className: "small" });
  made.root = part("div", "map-tab");
  made.root.append(made.bar, bar(made.legend, made.remove), plot.frame, made.note, made.card);
  plot.marks = () => marksOf(made);
  plot.onPaint = () => drawNote(made);
  plot.onRest = () => tellView(made);
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
    onHover: (place, event) => hover(made, place, event),
    keys: { l: () => setLasso(made, !made.isLasso) },
  });
  return made;
}

function takePoints(mine, points) {
  const { plot } = mine;
  if (plot.points === points) return;
  plot.place(points, fitBox(points));
  mine.view = undefined;
  mine.nPlaced = countPlaced(points);
}

function countPlaced(points) {
  let n = 0;
  for (let i = 0; i < points.length; i += 2) if (Number.isFinite(points[i] + points[i + 1])) n += 1;
  return n;
}

// The view of the address is taken when it was not this map that wrote it.
function takeView(mine) {
  if (mine.view === state.view) return;
  mine.view = state.view;
  const [x, y, zoom] = state.view.split(",").map(Number);
  const isGiven = state.view && [x, y, zoom].every(Number.isFinite) && zoom > 0;
  mine.plot.view = isGiven ? { x, y, zoom } : mine.plot.fitted;
}

function tellView(mine) {
  if (state.tab !== "map") return;
  const { view, fitted, scale } = mine.plot;
  const isFitted =
    view.zoom === 1 &&
    Math.abs(view.x - fitted.x) * scale[0] < 0.5 &&
    Math.abs(view.y - fitted.y) * scale[1] < 0.5;
  const numbers = [view.x, view.y, view.zoom].map((value) => Number(value.toPrecision(6)));
  mine.view = isFitted ? "" : numbers.join(",");
  change({ view: mine.view });
}

const rowAt = ({ plot }, place) =>
  nearest(plot.points, plot.pointAt(place), plot.scale, REACH, plot.isShown);

function drawBar(mine) {
  const { store, map, plot } = mine;
  const paint = mine.paint?.name ?? "none";
  mine.remove.hidden = withoutLasso(state.filter, map.name) === state.filter.trim();
  const numbers = store.columns.filter((column) => column.kind === "number");
  const names = ["none", ...numbers.map((column) => column.name)];
  const maps = store.maps.map((each) => each.name);
  const act = (text, title, onclick) => button(text, onclick, { title });
  const lassoTitle = "draw around points to filter the table (l, or drag with Shift)";
  mine.lassoButton = act("lasso", lassoTitle, () => setLasso(mine, !mine.isLasso));
  const zooms = [
    act("−", "zoom out (-)", () => plot.zoomAt(1 / 1.4)),
    act("+", "zoom in (+)", () => plot.zoomAt(1.4)),
    act("all", "show all points (0)", () => plot.fit()),
  ];
  mine.bar.replaceChildren(
    pick("map", maps, map.name, (name) => change({ map: name, view: "" }, true)),
    pick("colour", names, paint, (name) => change({ paint: name }, true)),
    element("span.group", ...zooms),
    mine.lassoButton,
  );
  setLasso(mine, mine.isLasso);
  const keys = "arrows move, + and - zoom, 0 shows all, l is the lasso";
  plot.canvas.setAttribute("role", "application");
  plot.canvas.setAttribute("aria-label", `map of ${countText(mine.nPlaced)} traces: ${keys}`);
}

function setLasso(mine, isOn) {
  mine.isLasso = isOn;
  mine.lassoButton.classList.toggle("on", isOn);
  mine.lassoButton.setAttribute("aria-pressed", isOn);
  mine.plot.frame.classList.toggle("lasso", isOn);
}

function drawColors(mine) {
  mine.plot.colors = colorTable(mine.paint);
  mine.plot.isCross = (level) => isWrong(mine.paint, level);
  mine.legend.replaceChildren(...legendParts(mine.paint, mine.store.labels));
  mine.plot.draw();
}

function drawNote({ map, plot, nPlaced, note }) {
  const layer = map.layer === null ? null : `layer ${map.layer}`;
  const source = [map.column, layer].filter(Boolean).join(", ");
  const share = (i) => (map.variance[i] ? ` (${(100 * map.variance[i]).toFixed(1)}%)` : "");
  const axes =
    map.method === "pca"
      ? `component 1${share(0)} to the right, component 2${share(1)} upwards`
      : "first coordinate to the right, second upwards";
  const missing = plot.n - nPlaced;
  const parts = [
    `${countText(plot.inSight)} ${plot.inSight === 1 ? "trace" : "traces"} in sight`,
    missing && `${countText(missing)} have no coordinates`,
    source ? `${source}: ${axes}` : axes,
  ];
  note.textContent = parts.filter(Boolean).join(" · ");
}

// Lassos, and rings around the chosen point and the one under the pointer.
function marksOf({ plot, map, path, hovered }) {
  const lasso = (places, looks) => {
    const look = { "stroke-width": 1.5, ...looks };
    return line([...places, places[0]], "var(--mark)", look);
  };
  const drawn = polygonsOf(state.filter, map.name).map((polygon) =>
    lasso(
      polygon.map((corner) => plot.placeOf(corner)),
      { "stroke-dasharray": "5 4" },
    ),
  );
  return [
    ...drawn,
    ...(path ? [lasso(path)] : []),
    ...(hovered >= 0 ? ring(plot, hovered, 7, 1.5) : []),
    ...(state.row === "" ? [] : ring(plot, Number(state.row), 9, 2.5)),
  ];
}

function ring(plot, row, radius, width) {
  const place = plot.placeOf(plot.pointOf(row));
  if (!place.every(Number.isFinite)) return [];
  const circle = (stroke, size) =>
    dot(place, radius, { fill: "none", stroke, "stroke-width": size });
  return [circle("var(--paper)", width + 2.5), circle("var(--ink)", width)];
}

// The table's filter becomes what it was, and a polygon.
function lasso(mine, path) {
  const { plot, map } = mine;
  const room = MAX_FILTER - withLasso(state.filter, map.name, "").length;
  const halfPixels = plot.scale.map((size) => 0.5 / size);
  const polygon = polygonText(path, (corner) => plot.pointAt(corner), halfPixels, room);
  setLasso(mine, false);
  if (polygon !== null) change({ filter: withLasso(state.filter, map.name, polygon) }, true);
  else if (room < 200)
    showError(new Error(`filter: expected at most ${MAX_FILTER} characters; shorten it first`));
}

function hover(mine, place, event) {
  const row = place ? rowAt(mine, place) : -1;
  if (row === mine.hovered) return;
  mine.hovered = row;
  mine.plot.paintMarks();
  mine.plot.canvas.style.cursor = row >= 0 ? "pointer" : "";
  showRowTip(mine, row, event);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (tab?.map) drawColors(tab);
});
