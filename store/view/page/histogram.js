// Bars of a column, stacked by label.

import { getJson } from "/page/api.js";
import { bar, checkbox, countText, element, numberText, remark, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { between, show } from "/page/narrow.js";
import { canvasOf, color, SMALL } from "/page/paint.js";
import { change, state } from "/page/state.js";

const COLORS = { all: "--mark", 0: "--right", 1: "--wrong", none: "--unknown" };
// What a group of rows is called, by the names of the store's two classes.
export const nameOf = (group, labels) =>
  ({ all: "all", none: "no label" })[group] ?? `${labels[group]} (label ${group})`;
const BELOW = 16; // pixels for the numbers
export const LEFT = 52; // pixels for the counts
const ABOVE = 8;

export const sumOf = (counts) => counts.reduce((a, b) => a + b, 0);
const groupsOf = (found) =>
  Object.entries(found.counts).filter(([, counts]) => counts.some(Boolean));

// A bar can be chosen for the filter; labels: the names of the two classes.
export function drawBars(found, width, height, threshold, name, labels) {
  const [canvas, context] = canvasOf(width, height);
  const { edges } = found;
  const n = Math.max(0, edges.length - 1);
  const groups = groupsOf(found);
  const sums = Array.from({ length: n }, (_, i) => sumOf(groups.map(([, counts]) => counts[i])));
  const highest = Math.max(1, ...sums);
  const across = width - LEFT;
  const each = across / Math.max(1, n);
  const scaled = state.log === "1" ? Math.log1p : (count) => count;
  const tall = (count) => (scaled(count) / scaled(highest)) * (height - BELOW - ABOVE);
  context.font = SMALL;
  context.textAlign = "right";
  for (const tick of ticksTo(highest)) {
    const y = height - BELOW - tall(tick);
    context.fillStyle = color("--line");
    context.fillRect(LEFT, Math.round(y), across, 1);
    context.fillStyle = color("--soft");
    context.fillText(countText(tick), LEFT - 6, y + 4);
  }
  for (let i = 0; i < n; i += 1) {
    let y = height - BELOW;
    for (const [group, counts] of groups) {
      const part = counts[i] && Math.max(1, (counts[i] / sums[i]) * tall(sums[i]));
      context.fillStyle = color(COLORS[group]);
      context.fillRect(LEFT + i * each, y - part, Math.max(1, each - 1), part);
      y -= part;
    }
  }
  context.fillStyle = color("--soft");
  context.textAlign = "left";
  context.fillText(n ? numberText(edges[0]) : "no finite value", LEFT, height - 3);
  if (n > 0) {
    context.textAlign = "center";
    context.fillText(numberText(edges[n >> 1]), LEFT + (n >> 1) * each, height - 3);
    context.textAlign = "right";
    context.fillText(numberText(edges[n]), width, height - 3);
    if (threshold >= edges[0] && threshold <= edges[n]) {
      const x = LEFT + ((threshold - edges[0]) / (edges[n] - edges[0])) * across;
      context.fillStyle = color("--ink");
      context.fillRect(x - 1, 0, 2, height - 14);
    }
  }
  const linesOf = (i) => [
    `${numberText(edges[i])} to ${numberText(edges[i + 1])}`,
    ...groups.map(([group, counts]) => `${nameOf(group, labels)}: ${countText(counts[i])}`),
    "click: these rows in the table",
  ];
  const choose = (i) => show(between(name, edges[i], edges[i + 1], i === n - 1), [name]);
  explore(canvas, {
    nx: n,
    label: `histogram of ${name}; arrow keys walk, Enter shows the rows of a bar`,
    cellAt: (x) => [Math.floor((x - LEFT) / each), 0],
    placeOf: (i) => [LEFT + (i + 0.5) * each, height / 2],
    textOf: (i) => linesOf(i).join("\n"),
    choose,
  });
  return canvas;
}

// Round numbers up to the highest count.
function ticksTo(highest) {
  const decade = 10 ** Math.floor(Math.log10(highest));
  if (state.log === "1")
    return [0, ...[1, 100, 10_000, 1e6].filter((tick) => tick < highest), highest];
  const step = decade * ([1, 0.5, 0.2].find((part) => highest / (part * decade) >= 2) ?? 0.2);
  const n = Math.floor(highest / Math.max(1, step));
  return Array.from({ length: n + 1 }, (_, i) => i * Math.max(1, step));
}

// Whether counts are drawn by their logarithm.
export const logBox = (redraw) =>
  checkbox("counts by logarithm", state.log === "1", (isOn) => {
    change({ log: isOn ? "1" : "" });
    redraw();
  });

export async function showHistogram(base, query, name, labels, place) {
  const found = await getJson(`${base}/histogram`, { ...query, column: name });
  const all = sumOf(Object.values(found.counts).flat()) + found.missing;
  const missing = found.missing ? `; ${countText(found.missing)} have no finite value` : "";
  const picture = element("div");
  const draw = () => picture.replaceChildren(drawBars(found, 380, 150, NaN, name, labels));
  draw();
  place(
    element(
      "div",
      {},
      title(`${name} of ${countText(all)} rows${missing}`),
      picture,
      logBox(draw),
      legend(found, labels),
    ),
  );
}

// A mark of a colour, and what it means.
export function entry(mark, style, text) {
  const made = element("b", {}, `${mark} `);
  made.style.color = style;
  return remark(made, text);
}

export const legend = (found, labels) =>
  bar(
    ...groupsOf(found).map(([name, counts]) =>
      entry("■", color(COLORS[name]), `${nameOf(name, labels)}: ${countText(sumOf(counts))}  `),
    ),
  );
