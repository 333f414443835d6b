// What colours the points of a map: a column of the store as classes, or between two numbers.

import { getArray } from "/page/api.js";
import { element, entry, legendOf } from "/page/dom.js";
import { nameOf } from "/page/histogram.js";
import { color, colorOf, partsOf } from "/page/paint.js";
import { oneOf } from "/page/state.js";

const MISSING = 255;
const MISSING_WEIGHT = 0.35; // of a point without a value, beside one with a value
const RAMP = ["--ramp-0", "--ramp-1", "--ramp-2", "--ramp-3"];
const CLASSES =
  "#4477aa #ee6677 #228833 #ccaa22 #66ccee #aa3377 #ee8833 #8866cc #44aa99 #997755".split(" ");

// The column that the address names, else the label, else a score.
export function paintName(/** @type {Store} */ store) {
  const numbers = store.columns.filter((column) => column.kind === "number");
  const names = numbers.map((column) => column.name);
  const first = numbers.find((column) => column.is_score)?.name ?? "none";
  return oneOf("paint", ["none", ...names], names.includes("label") ? "label" : first);
}

export async function loadPaint(base, name) {
  if (name === "none") return null;
  const { values, headers } = await getArray(`${base}/levels/${name}`);
  const classes = headers.get("X-Classes");
  return {
    name,
    values,
    low: Number(headers.get("X-Low")),
    high: Number(headers.get("X-High")),
    hasMissing: values.includes(MISSING),
    classes: classes ? classes.split(",") : [],
  };
}

const lacksLabel = (paint, value) => paint.name === "label" && !["0", "1"].includes(value);

function classColor(paint, i) {
  if (paint.name !== "label") return partsOf(CLASSES[i % CLASSES.length]);
  return colorOf({ 0: "--right", 1: "--wrong" }[paint.classes[i]] ?? "--unknown");
}

function between(stops, share) {
  const at = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(at));
  return stops[first].map((part, i) => part + (stops[first + 1][i] - part) * (at - first));
}

// Red, green, blue and weight of each of the 256 levels; the last one is of rows without a value.
export function colorTable(paint) {
  const table = [0, 1, 2, 3].map(() => new Float32Array(256));
  const put = (level, parts, weight) =>
    [...parts, weight].forEach((value, i) => (table[i][level] = value));
  if (!paint) put(0, colorOf("--mark"), 1);
  else if (paint.classes.length)
    for (const [i, value] of paint.classes.entries())
      put(i, classColor(paint, i), lacksLabel(paint, value) ? MISSING_WEIGHT : 1);
  else {
    const stops = RAMP.map(colorOf);
    for (let level = 0; level < MISSING; level += 1)
      put(level, between(stops, level / (MISSING - 1)), 1);
  }
  put(MISSING, colorOf("--unknown"), MISSING_WEIGHT);
  return table;
}

// Whether a level is of label 1, whose points have another sign, for who sees no colours.
export const isWrong = (paint, level) => paint?.name === "label" && paint.classes[level] === "1";

const dot = (parts, text, sign = "●") => entry(sign, `rgb(${parts.join(" ")})`, text);

export function legendParts(paint, labels) {
  if (!paint) return [];
  if (paint.classes.length) return classLegend(paint, labels);
  const unknown = colorOf("--unknown");
  if (Number.isNaN(paint.low)) return [dot(unknown, `${paint.name}: no finite value`)];
  const ramp = element("i");
  ramp.style.background = `linear-gradient(90deg, ${RAMP.map(color).join(", ")})`;
  const range = legendOf([paint.low, paint.high], "legend", ramp);
  range.title = "from the 1st to the 99th percentile";
  range.prepend(`${paint.name} `);
  return paint.hasMissing ? [range, dot(unknown, "no finite value")] : [range];
}

function classLegend(paint, labels) {
  const places = paint.classes.map((_, i) => i);
  const lacks = (i) => lacksLabel(paint, paint.classes[i]);
  places.sort((a, b) => Number(lacks(a)) - Number(lacks(b)) || a - b);
  return places.map((i) => {
    const value = paint.classes[i];
    const ofLabel = nameOf(lacks(i) ? "none" : value, labels);
    const text = paint.name === "label" ? ofLabel : `${paint.name} ${value}`;
    return dot(classColor(paint, i), text, isWrong(paint, i) ? "✖" : "●");
  });
}
