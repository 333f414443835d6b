// Scores of detectors: by label with a threshold, what they get wrong, how well they tell the labels
// apart, and one against another.

import { afterPause, getArray, getJson } from "/page/api.js";
import {
  arrowOf,
  bar,
  button,
  command,
  countText,
  element,
  numberText,
  numberTexts,
  own,
  pick,
  remark,
  showError,
  soft,
  title,
} from "/page/dom.js";
import { drawBars, LEFT, legend, logBox, sumOf } from "/page/histogram.js";
import { show } from "/page/narrow.js";
import { cells, LEFT as LEFT_OF_CELLS } from "/page/picture.js";
import { text } from "/page/plot.js";
import { calibrationParts, confusion, rocParts } from "/page/rates.js";
import { change, numberOf, oneOf } from "/page/state.js";
import { traceList } from "/page/lists.js";

const settled = afterPause(250); // after the last key at the threshold

export async function showScores(/** @type {Shown} */ { base, store, query, width }) {
  const namesOf = (isIn) => store.columns.filter(isIn).map((column) => column.name);
  const numbers = namesOf((column) => column.kind === "number");
  const ofRuns = namesOf((column) => column.is_of_run);
  const stored = namesOf((column) => column.is_score && !column.is_of_run);
  const scores = [...ofRuns, ...stored];
  if (!scores.length) return [advice(store)];
  const x = oneOf("score", scores, scores[0]);
  const y = oneOf("other", numbers, "");
  const hasLabels = numbers.includes("label");
  const about = { ...query, column: x };
  const found = await getJson(`${base}/histogram`, about);
  const ofRun = own(store.thresholds, x);
  const isPart = query.filter && ofRun === undefined; // the filter does not move the threshold
  const all = isPart ? await getJson(`${base}/histogram`, { column: x }) : found;
  const threshold = thresholdIn(all, ofRun);
  const [wrong, calibration, roc, density] = await Promise.all([
    hasLabels ? getJson(`${base}/mistakes`, { ...about, threshold }) : null,
    hasLabels ? getJson(`${base}/calibration`, about) : null,
    hasLabels ? getJson(`${base}/roc`, about) : null,
    y ? getArray(`${base}/density`, { ...query, x, y }) : null,
  ]);
  const isRated = wrong && found.edges.length && !store.are_mistakes;
  const sums = ["0", "1"].map((label) => sumOf(found.counts[label] ?? []));
  const nWrong = [wrong?.false_alarms.n, wrong?.misses.n];
  const at = [nWrong[0] / sums[0], 1 - nWrong[1] / sums[1]];
  const plots = [
    rocParts(roc, x, store.labels, at),
    calibrationParts(calibration, x, store.labels),
  ];
  const group = (parts) => element("div", ...parts);
  const others = [...new Set([...scores, ...numbers])].filter((name) => name !== x);
  return [
    bar(chooser("score", "score", x, scores), chooser("against", "other", y, ["", ...others])),
    ...bars(found, width, x, threshold, store),
    ...remarks(store, isRated && ofRun !== undefined, isRated && stored.includes(x)),
    found.missing && soft(`left out, without a finite score: ${countText(found.missing)}`),
    ...(isRated ? confusion(x, threshold, store.labels, sums, nWrong, roc, found.missing) : []),
    ...(wrong ? mistakes(wrong, x, threshold, store.labels) : []),
    ...(isRated ? [element("div.plots", ...plots.map(group))] : []),
    ...(density ? ranks(density, base, query, x, y, store.thresholds) : []),
  ];
}

// Of which rows the figures are, where they do not say how good a detector is.
const remarks = (/** @type {Store} */ store, isOfRun, isStored) => [
  ...(store.are_mistakes
    ? [soft("no AUROC and no confusion: these traces were chosen as mistakes")]
    : []),
  ...(isOfRun ? [soft("counted are rows of validation and of test, as the run scored them")] : []),
  ...(isStored ? [soft("may include traces that the detector was trained on")] : []),
];

// How a store gets scores; its own column `score` says how good answers are, and is none.
const advice = (/** @type {Store} */ store) =>
  element(
    "div",
    element("p", "No detector has scored these traces. This trains some, and shows their scores:"),
    command(
      `python -m train --store ${store.path} --output-dir runs/first\npython -m store view ${store.path} --run runs/first`,
    ),
  );

// The threshold of the address, else of the run, else the edge of a bar in the middle of all rows. It stays
// where it is when the rows of a filter lie all on one side of it.
function thresholdIn(/** @type {Histogram} */ { edges }, ofRun) {
  const standard = ofRun ?? Number(edges[edges.length >> 1] ?? 0.5);
  return numberOf("threshold", [-Number.MAX_VALUE, Number.MAX_VALUE], standard);
}

const chooser = (label, key, chosen, names) =>
  pick(
    label,
    names,
    chosen,
    (name) => change({ [key]: name, threshold: "" }),
    (name) => name || "–",
  );

function bars(/** @type {Histogram} */ found, width, score, inForce, { thresholds, labels }) {
  const { edges } = found;
  if (!edges.length) return [soft("none of the rows in the table has a finite score")];
  const [low, high] = [edges[0], edges.at(-1)];
  const ofRun = own(thresholds, score);
  const across = Math.max(200, width);
  const left = (100 * LEFT) / across; // where the bars begin
  let threshold = inForce;
  const place = element("div");
  const said = element("p.soft", { "aria-live": "polite" });
  const paint = (value) => {
    threshold = value;
    place.replaceChildren(drawBars(found, across, 170, value, score, labels));
    const isOfRun = ofRun !== undefined && Math.abs(value - ofRun) < 1e-9;
    said.textContent = `at least ${numberText(value)}${isOfRun ? ", the run's threshold" : ""}`;
  };
  const slider = element("input", {
    type: "range",
    min: low,
    max: high,
    step: "any",
    value: threshold,
    style: `width: ${100 - left}%; margin: 0 0 0 ${left}%`,
    "aria-label": "threshold",
    oninput: (event) => paint(Number(event.target.value)),
    onchange: (event) => change({ threshold: event.target.value }),
    onkeydown: (event) => {
      const by = arrowOf(event);
      if (!by) return;
      event.preventDefault();
      slider.value = threshold + ((by[0] - by[1]) * (high - low)) / 200;
      paint(Number(slider.value));
      settled.ask(
        async () => threshold,
        (value) => change({ threshold: value }),
      );
    },
  });
  paint(threshold);
  const key = bar(
    legend(found, labels),
    logBox(() => paint(threshold)),
  );
  // the slider is as wide as the bars above it, whatever the panel has room for
  const style = `max-width: ${across}px`;
  return [element("div", { style }, place, slider), said, key];
}

function ranks(/** @type {Numbers} */ { values, shape: [n] }, base, query, x, y, thresholds) {
  const size = Math.max(4, Math.floor(330 / n));
  const most = Math.log1p(values.reduce((a, b) => Math.max(a, b), 1));
  const countAt = (i, j) => values[j * n + i];
  const level = (i, j) => (countAt(i, j) ? 0.15 + (0.85 * Math.log1p(countAt(i, j))) / most : 0);
  const percent = (i) => `${Math.round((100 * i) / n)} to ${Math.round((100 * (i + 1)) / n)}%`;
  const choose = (from, to) => filterRanks(base, query, x, y, from, to).catch(showError);
  const picture = cells(n, n, [size, size], level, {
    names: [],
    bottom: 18,
    label: `ranks of ${x} to the right, of ${y} upwards; arrow keys walk, Enter shows the rows`,
    textOf: (i, j) =>
      `${countText(countAt(i, j))} traces\n${x}: rank ${percent(i)}\n${y}: rank ${percent(j)}\nclick: these rows in the table`,
    choose: (i, j) => choose([i, j], [i, j]),
  });
  const half = n >> 1;
  const side = size * n;
  [0, 50, 100].forEach((tick, i) => {
    const anchor = { "text-anchor": ["start", "middle", "end"][i] };
    const [right, up] = [LEFT_OF_CELLS + (tick * side) / 100, side - (tick * side) / 100];
    picture.append(
      text(right, side + 13, `${tick}%`, anchor),
      text(LEFT_OF_CELLS - 6, Math.max(10, up), `${tick}%`, { "text-anchor": "end" }),
    );
  });
  const disagree = (high, low, from, to) => {
    const [above, below] = [own(thresholds, high), own(thresholds, low)];
    if (above === undefined || below === undefined)
      return button(`${high} high, ${low} low`, () => choose(from, to), {
        title: "the upper and the lower half of the ranks",
      });
    const part = `${high} >= ${above} and ${low} < ${below}`;
    const narrow = () => show(part, [high, low]);
    return button(`${high} alone says hallucination`, narrow, { title: part });
  };
  return [
    title(`ranks of the traces: ${x} to the right, ${y} upwards`),
    picture,
    bar(
      remark("where they disagree: "),
      disagree(x, y, [half, 0], [n - 1, half - 1]),
      disagree(y, x, [0, half], [half - 1, n - 1]),
    ),
  ];
}

// The rows from a cell of the ranks to another, as a filter of scores.
async function filterRanks(base, query, x, y, [left, bottom], [right, top]) {
  const { values } = await getArray(`${base}/limits`, { ...query, x, y });
  const n = values.length / 4;
  const part = (name, axis, from, to) => {
    const known = values.subarray(2 * (axis * n + from), 2 * (axis * n + to + 1));
    const finite = known.filter(Number.isFinite);
    return (
      finite.length && `${name} >= ${Math.min(...finite)} and ${name} <= ${Math.max(...finite)}`
    );
  };
  const parts = [part(x, 1, left, right), part(y, 0, bottom, top)];
  if (parts.every(Boolean)) show(parts.join(" and "), [x, y]);
}

const mistakes = (
  /** @type {Mistakes} */ { false_alarms: alarms, misses },
  score,
  threshold,
  labels,
) => {
  const part = (found, label, sign, name) => [
    title(
      `${countText(found.n)} ${found.n === 1 ? name[0] : name[1]}: ${labels[label]}, ${score} ${sign} ${numberText(threshold)}; the farthest first`,
    ),
    traceList(found, (i) => numberTexts(found.scores[i], threshold)[0]),
  ];
  return [
    element("h2.part", "most confident mistakes"),
    ...part(alarms, 0, "≥", ["false alarm", "false alarms"]),
    ...part(misses, 1, "<", ["miss", "misses"]),
  ];
};
