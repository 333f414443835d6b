// What the table says of a trace that is a point of the map: under the pointer, and below the map.

import { getJson } from "/page/api.js";
import {
  bar,
  button,
  element,
  labelClass,
  numberText,
  prose,
  showError,
  showTip,
} from "/page/dom.js";
import { change, state } from "/page/state.js";

const SHOWN = ["trace_id", "question", "answer", "label"];
const KEPT = 200;
const LONGEST = 44; // characters in a line of the tip
const WAIT_MS = 50;

const kept = new Map();
let wait = 0;

// Texts, the label and what colours the map.
async function valuesOf({ base, store, paint }, row) {
  const known = new Set(store.columns.map((column) => column.name));
  const names = [...new Set([...SHOWN, paint?.name])].filter((name) => known.has(name));
  const query = { start: row, count: 1, columns: names.join(",") };
  const key = `${base} ${row} ${names}`;
  if (!kept.has(key)) {
    const { columns } = await getJson(`${base}/table`, query);
    if (kept.size > KEPT) kept.clear();
    kept.set(key, Object.fromEntries(names.map((name) => [name, columns[name][0]])));
  }
  return kept.get(key);
}

export function hideTip() {
  clearTimeout(wait);
  showTip("");
}

export function showRowTip(mine, row, x, y) {
  hideTip();
  wait = setTimeout(async () => {
    try {
      const values = await valuesOf(mine, row);
      if (mine.hovered === row && state.tab === "map") showTip(tipText(values), x, y);
    } catch (error) {
      showError(error);
    }
  }, WAIT_MS);
}

function tipText(values) {
  const lines = Object.entries(values).map(([name, value]) => {
    if (typeof value !== "string") return `${name} ${numberText(value)}`;
    const line = value.replace(/\s+/g, " ");
    return line.length > LONGEST ? `${line.slice(0, LONGEST - 1)}…` : line;
  });
  return lines.join("\n");
}

export async function showCard(mine, row) {
  if (row === "") {
    mine.card.replaceChildren();
    return;
  }
  const { trace_id: id, question, answer, ...numbers } = await valuesOf(mine, row);
  if (state.row !== row) return;
  const { plot } = mine;
  const [x, y] = plot.points.subarray(2 * row, 2 * row + 2);
  const isPlaced = Number.isFinite(x + y);
  const named = Object.entries(numbers).map(([name, value]) => {
    const className = name === "label" ? labelClass(value) : "soft";
    return element("span", { className }, `${name} ${numberText(value)}`);
  });
  const open = () => change({ tab: "trace" }, true);
  const text = [question, answer].filter(Boolean).join("  →  ");
  const centre = () => plot.look({ ...plot.view, x, y });
  mine.card.replaceChildren(
    bar(
      element("strong", {}, id),
      ...named,
      isPlaced ? null : element("span", { className: "soft" }, "no coordinates"),
      isPlaced && !plot.isInSight([x, y])
        ? button("bring into sight", centre, { className: "small" })
        : null,
      button("open the trace", open, { className: "small" }),
    ),
    prose(text),
  );
  plot.paintMarks();
}
