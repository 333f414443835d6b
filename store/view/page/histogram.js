// Bars of a column, stacked by label.

import { getJson } from "/page/api.js";
import { bar, checkbox, countText, element, entry, numberText, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { between, show } from "/page/narrow.js";
import { axis, plot, rect } from "/page/plot.js";
import { change, state } from "/page/state.js";

const COLORS = {
  all: "var(--mark)",
  0: "var(--right)",
  1: "var(--wrong)",
  none: "var(--unknown)",
};
// What a group of rows is called, by the names of the store's two classes.
export const nameOf = (group, labels) =>
  ({ all: "all", none: "no label" })[group] ?? `${labels[group]} (label ${group})`;
const BELOW = 16; // pixels for the numbers
export const LEFT = 52; // pixels for the counts
const ABOVE = 8;

export const sumOf = (counts) => counts.reduce((a, b) => a + b, 0);
const groupsOf = (/** @type {Histogram} */ found) =>
  Object.entries(found.counts).filter(([, counts]) => counts.some(Boolean));

// A bar can be chosen for the filter; labels: the names of the two classes.
export function drawBars(/** @type {Histogram} */ found, width, height, threshold, name, labels) {
  const { edges } = found;
  const n = edges.length - 1;
  if (n < 1) return soft("no finite value");
  const groups = groupsOf(found);
  const sums = Array.from({ length: n }, (_, i) => sumOf(groups.map(([, counts]) => counts[i])));
  const highest = Math.max(1, ...sums);
  const bend = state.log === "1" ? Math.log1p : undefined;
  const x = axis([0, n], [LEFT, width], [0, n >> 1, n], (i) => numberText(edges[i]));
  const y = axis([0, highest], [height - BELOW, ABOVE], ticksTo(highest), countText, bend);
  const each = x.at(1) - x.at(0);
  const stack = (sum, i) => {
    let top = y.from;
    return groups
      .filter(([, counts]) => counts[i])
      .map(([group, counts]) => {
        const tall = Math.max(1, (counts[i] / sum) * (y.from - y.at(sum)));
        top -= tall;
        return rect(x.at(i), top, Math.max(1, each - 1), tall, COLORS[group]);
      });
  };
  const at = x.at((n * (threshold - edges[0])) / (edges[n] - edges[0]));
  const isIn = threshold >= edges[0] && threshold <= edges[n];
  const mark = isIn ? [rect(at - 1, 0, 2, height - BELOW, "var(--ink)")] : [];
  const picture = plot(width, height, x, y, ...sums.flatMap(stack), ...mark);
  const linesOf = (i) => [
    `${numberText(edges[i])} to ${numberText(edges[i + 1])}`,
    ...groups.map(([group, counts]) => `${nameOf(group, labels)}: ${countText(counts[i])}`),
    "click: these rows in the table",
  ];
  explore(picture, {
    nx: n,
    label: `histogram of ${name}; arrow keys walk, Enter shows the rows of a bar`,
    cellAt: (px) => [Math.floor((px - LEFT) / each), 0],
    placeOf: (i) => [x.at(i + 0.5), height / 2],
    textOf: (i) => linesOf(i).join("\n"),
    choose: (i) => show(between(name, edges[i], edges[i + 1], i === n - 1), [name]),
  });
  return picture;
}

// Round numbers up to the highest count.
function ticksTo(highest) {
  if (state.log === "1")
    return [0, ...[1, 100, 10_000, 1e6].filter((tick) => tick < highest), highest];
  const decade = 10 ** Math.floor(Math.log10(highest));
  const part = [1, 0.5, 0.2].find((each) => highest / (each * decade) >= 2) ?? 0.2;
  const step = Math.max(1, part * decade);
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, i) => i * step);
}

// Whether counts are drawn by their logarithm.
export const logBox = (redraw) =>
  checkbox("counts by logarithm", state.log === "1", (isOn) => {
    change({ log: isOn ? "1" : "" });
    redraw();
  });

// The bars of the rows of a query, and how many these are.
export async function showHistogram(base, query, name, labels) {
  const found = await getJson(`${base}/histogram`, { ...query, column: name });
  const all = sumOf(Object.values(found.counts).flat()) + found.missing;
  const missing = found.missing ? `; ${countText(found.missing)} have no finite value` : "";
  const picture = element("div");
  const draw = () => picture.replaceChildren(drawBars(found, 380, 150, NaN, name, labels));
  draw();
  return [
    element(
      "div",
      title(`${name} of ${countText(all)} rows${missing}`),
      picture,
      logBox(draw),
      legend(found, labels),
    ),
  ];
}

export const legend = (/** @type {Histogram} */ found, labels) =>
  bar(
    ...groupsOf(found).map(([name, counts]) =>
      entry("■", COLORS[name], `${nameOf(name, labels)}: ${countText(sumOf(counts))}  `),
    ),
  );
