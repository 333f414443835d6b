// Bars of a column, stacked by label.

import { getJson } from "/page/api.js";
import { bar, canvasOf, color, countText, element, numberText, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { between, show } from "/page/narrow.js";

const COLORS = { all: "--mark", 0: "--right", 1: "--wrong", none: "--unknown" };
export const NAMES = {
  all: "all",
  0: "right (label 0)",
  1: "hallucination (label 1)",
  none: "no label",
};

// With the name of a column, a bar can be chosen for the filter.
export function drawBars(found, width, height, threshold = NaN, name = "") {
  const [canvas, context] = canvasOf(width, height);
  const n = found.edges.length - 1;
  const groups = Object.entries(found.counts).filter(([, counts]) => counts.some(Boolean));
  const sums = Array.from({ length: Math.max(0, n) }, (_, i) =>
    groups.reduce((sum, [, counts]) => sum + counts[i], 0),
  );
  const highest = Math.max(1, ...sums);
  const bar = width / Math.max(1, n);
  for (let i = 0; i < n; i += 1) {
    let y = height - 16;
    for (const [name, counts] of groups) {
      const part = counts[i] && Math.max(1, (counts[i] / highest) * (height - 20));
      context.fillStyle = color(COLORS[name]);
      context.fillRect(i * bar, y - part, Math.max(1, bar - 1), part);
      y -= part;
    }
  }
  context.fillStyle = color("--soft");
  context.font = "11px system-ui, sans-serif";
  if (n > 0) {
    context.fillText(numberText(found.edges[0]), 0, height - 3);
    context.textAlign = "right";
    context.fillText(numberText(found.edges[n]), width, height - 3);
    if (threshold >= found.edges[0] && threshold <= found.edges[n]) {
      const x = ((threshold - found.edges[0]) / (found.edges[n] - found.edges[0])) * width;
      context.fillStyle = color("--ink");
      context.fillRect(x - 1, 0, 2, height - 14);
    }
  } else context.fillText("no finite value", 0, height - 3);
  const rowsOf = (i) => groups.map(([group, counts]) => `${NAMES[group]}: ${countText(counts[i])}`);
  explore(canvas, {
    nx: n,
    ny: 1,
    label: `histogram${name && ` of ${name}`}; arrow keys walk, Enter shows the rows of a bar`,
    cellAt: (x) => [Math.floor(x / bar), 0],
    placeOf: (i) => [(i + 0.5) * bar, height / 2],
    textOf: (i) =>
      [
        `${numberText(found.edges[i])} to ${numberText(found.edges[i + 1])}`,
        ...rowsOf(i),
        ...(name ? ["click: these rows in the table"] : []),
      ].join("\n"),
    choose: name
      ? (i) => show(between(name, found.edges[i], found.edges[i + 1], i === n - 1), [name])
      : undefined,
  });
  return canvas;
}

export async function showHistogram(base, query, name, place) {
  const found = await getJson(`${base}/histogram`, { ...query, column: name });
  const all = Object.values(found.counts)
    .flat()
    .reduce((a, b) => a + b, found.missing);
  const box = element(
    "div",
    {},
    title(
      `${name} of ${countText(all)} rows`,
      found.missing ? `; ${countText(found.missing)} have no finite value` : "",
    ),
    drawBars(found, 340, 120, NaN, name),
    legend(found),
  );
  place(box);
}

export function legend(found) {
  const groups = Object.entries(found.counts).filter(([, counts]) => counts.some(Boolean));
  const parts = groups.map(([name, counts]) => {
    const swatch = element("b", {}, "■ ");
    swatch.style.color = color(COLORS[name]);
    return element(
      "span",
      { className: "soft" },
      swatch,
      `${NAMES[name]}: ${countText(counts.reduce((a, b) => a + b, 0))}  `,
    );
  });
  return bar(...parts);
}
