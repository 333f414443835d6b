// What the table says of a trace that is a point of the map: under the pointer, and below the map.

import { afterPause, getJson } from "/page/api.js";
import { bar, button, element, labelClass, numberText, prose, remark, showTip } from "/page/dom.js";
import { change, state } from "/page/state.js";

const SHOWN = ["trace_id", "question", "answer", "label"];
const LONGEST = 44; // characters in a line of the tip

// Texts, the label and what colours the map.
async function valuesOf({ base, store, paint }, row) {
  const known = new Set(store.columns.map((column) => column.name));
  const names = [...new Set([...SHOWN, paint?.name])].filter((name) => known.has(name));
  const query = { start: row, count: 1, columns: names.join(",") };
  const { columns } = await getJson(`${base}/table`, query);
  return Object.fromEntries(names.map((name) => [name, columns[name][0]]));
}

const tips = afterPause(50);

// The tip of the row under the pointer; row -1: none.
export function showRowTip(mine, row, event) {
  tips.stop();
  showTip("");
  const show = (found) =>
    state.tab === "map" && showTip(tipText(found), [event.clientX, event.clientY]);
  if (row >= 0) tips.ask(() => valuesOf(mine, row), show);
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
  const { card, plot } = mine;
  if (row === "") {
    card.replaceChildren();
    return;
  }
  const { trace_id: id, question, answer, ...numbers } = await valuesOf(mine, row);
  if (state.row !== row) return;
  const [x, y] = plot.pointOf(row);
  const isPlaced = Number.isFinite(x + y);
  const named = Object.entries(numbers).map(([name, value]) => {
    const className = name === "label" ? labelClass(value) : "soft";
    return element("span", { className }, `${name} ${numberText(value)}`);
  });
  const small = (text, onclick) => button(text, onclick, { className: "small" });
  card.replaceChildren(
    bar(
      element("strong", id),
      ...named,
      !isPlaced && remark("no coordinates"),
      small("open the trace", () => change({ tab: "trace" }, true)),
    ),
    prose([question, answer].filter(Boolean).join("  →  ")),
  );
  plot.paintMarks();
}
