// Scores of detectors: by label with a threshold, what they get wrong, whether they are
// probabilities, and one against another.

import { afterPause, getArray, getJson } from "/page/api.js";
import { calibrationParts } from "/page/calibration.js";
import {
  bar,
  button,
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
import { cells } from "/page/picture.js";
import { change, numberOf, oneOf } from "/page/state.js";

const N_LISTED = 8;
const settled = afterPause(250); // after the last key at the threshold

export async function showScores(panel, base, store, row, query) {
  const namesOf = (isIn) => store.columns.filter(isIn).map((column) => column.name);
  const numbers = namesOf((column) => column.kind === "number");
  const scores = namesOf((column) => column.is_score);
  if (!scores.length) {
    panel.replaceChildren(advice(store));
    return;
  }
  const x = oneOf("score", scores, scores[0]);
  const y = oneOf("other", numbers, "");
  const hasLabels = numbers.includes("label");
  const about = { ...query, column: x };
  const found = await getJson(`${base}/histogram`, about);
  const threshold = thresholdIn(found, own(store.thresholds, x));
  const [wrong, calibration, density] = await Promise.all([
    hasLabels ? getJson(`${base}/mistakes`, { ...about, threshold }) : null,
    hasLabels ? getJson(`${base}/calibration`, about) : null,
    y ? getArray(`${base}/density`, { ...query, x, y }) : null,
  ]);
  const others = [...new Set([...scores, ...numbers])].filter((name) => name !== x);
  panel.replaceChildren(
    bar(chooser("score", "score", x, scores), chooser("against", "other", y, ["", ...others])),
    ...bars(found, panel.clientWidth - 28, x, threshold, store, hasLabels),
    ...(wrong ? mistakes(wrong, x, threshold, store.labels) : []),
    ...(density ? ranks(density, base, query, x, y, store.thresholds) : []),
    ...(wrong && found.edges.length ? calibrationParts(calibration, x, store.labels) : []),
  );
}

// How a store gets scores; its own column `score` says how good answers are, and is none.
const advice = (store) =>
  element(
    "div",
    {},
    element(
      "p",
      {},
      "No detector has scored these traces. This trains some, and shows their scores:",
    ),
    element(
      "pre",
      { className: "command", tabIndex: 0 },
      `python -m train --store ${store.path} --output-dir runs/first\npython -m store view ${store.path} --run runs/first`,
    ),
  );

// The threshold of the address, else of the run, else the middle of the scores. It stays where it
// is when the rows of a filter lie all on one side of it.
function thresholdIn({ edges }, ofRun) {
  const standard = ofRun ?? (edges.length ? (edges[0] + edges.at(-1)) / 2 : 0.5);
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

function bars(found, width, score, inForce, { thresholds, labels }, hasLabels) {
  const { edges } = found;
  if (!edges.length) return [soft("none of the rows in the table has this score")];
  const [low, high] = [edges[0], edges.at(-1)];
  const ofRun = own(thresholds, score);
  let threshold = inForce;
  const place = element("div");
  const text = element("p", { className: "soft", "aria-live": "polite" });
  const paint = (value) => {
    threshold = value;
    place.replaceChildren(drawBars(found, Math.max(200, width), 170, value, score, labels));
    text.textContent = outcome(found, value, ofRun, labels);
  };
  const slider = element("input", {
    type: "range",
    min: low,
    max: high,
    step: "any",
    value: threshold,
    style: `width: calc(100% - ${LEFT}px); margin-left: ${LEFT}px`,
    "aria-label": "threshold",
    oninput: (event) => paint(Number(event.target.value)),
    onchange: (event) => change({ threshold: event.target.value }),
    onkeydown: (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      slider.value = threshold + (by * (high - low)) / 200;
      paint(Number(slider.value));
      settled.ask(
        async () => threshold,
        (value) => change({ threshold: value }),
      );
    },
  });
  paint(threshold);
  const link = (label, sign, text) => {
    const part = `label == ${label} and ${score} ${sign}`;
    const order = { sort: score, descending: sign === ">=" ? "1" : "" };
    const choose = () => show(`${part} ${threshold}`, [score, "label"], order);
    return button(text, choose, { title: `${part} the threshold` });
  };
  const links = bar(
    remark("in the table: "),
    link(0, ">=", "false alarms"),
    link(1, "<", `missed: ${labels[1]}`),
    link(1, ">=", `found: ${labels[1]}`),
  );
  const key = bar(
    legend(found, labels),
    logBox(() => paint(threshold)),
  );
  return [place, slider, text, key, ...(hasLabels ? [links] : [])];
}

// Counted by bins, so it is exact to the width of one bin.
function outcome({ edges, counts }, threshold, ofRun, labels) {
  const isOfRun = ofRun !== undefined && Math.abs(threshold - ofRun) < 1e-9;
  const name = isOfRun ? `${numberText(threshold)}, the run's threshold` : numberText(threshold);
  if (!counts["1"]) return `threshold ${name}`;
  const isAbove = (_, i) => (edges[i] + edges[i + 1]) / 2 >= threshold;
  const share = (part) => {
    const [above, all] = [sumOf(part.filter(isAbove)), sumOf(part)];
    return all ? `${Math.round((100 * above) / all)}%` : "–";
  };
  return `at least ${name}: about ${share(counts["1"])} of label 1, ${labels[1]}, are found; false alarms: ${share(counts["0"])} of label 0, ${labels[0]}`;
}

function ranks({ values, shape: [n] }, base, query, x, y, thresholds) {
  const size = Math.max(4, Math.floor(330 / n));
  const most = Math.log1p(values.reduce((a, b) => Math.max(a, b), 1));
  const countAt = (i, j) => values[j * n + i];
  const level = (i, j) => (countAt(i, j) ? 0.15 + (0.85 * Math.log1p(countAt(i, j))) / most : 0);
  const percent = (i) => `${Math.round((100 * i) / n)} to ${Math.round((100 * (i + 1)) / n)}%`;
  const choose = (from, to) => filterRanks(base, query, x, y, from, to).catch(showError);
  const { canvas, context, left, height } = cells(n, n, [size, size], level, {
    ground: "--band",
    names: Array.from({ length: n }, () => ""),
    bottom: 18,
    label: `ranks of ${x} to the right, of ${y} upwards; arrow keys walk, Enter shows the rows`,
    textOf: (i, j) =>
      `${countText(countAt(i, j))} traces\n${x}: rank ${percent(i)}\n${y}: rank ${percent(j)}\nclick: these rows in the table`,
    choose: (i, j) => choose([i, j], [i, j]),
  });
  const half = n >> 1;
  for (const tick of [0, 50, 100]) {
    context.textAlign = ["left", "center", "right"][tick / 50];
    context.fillText(`${tick}%`, left + (tick * size * n) / 100, height + 13);
    context.textAlign = "right";
    context.fillText(`${tick}%`, left - 6, Math.max(10, height - (tick * height) / 100));
  }
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
    canvas,
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

const mistakes = ({ false_alarms: alarms, misses }, score, threshold, labels) => {
  const part = (found, label, sign, name) => [
    title(
      `${countText(found.n)} ${name}: ${labels[label]}, ${score} ${sign} ${numberText(threshold)}; the farthest first`,
    ),
    list(found, label, threshold),
  ];
  return [
    element("h2", { className: "part" }, "most confident mistakes"),
    ...part(alarms, 0, "≥", "false alarms"),
    ...part(misses, 1, "<", "misses"),
  ];
};

function list({ rows, scores, columns }, label, threshold) {
  if (!rows.length) return soft("none");
  const text = (className, text) => element("span", { className, dir: "auto" }, text);
  const lines = rows.map((row, i) =>
    element(
      "li",
      {},
      element(
        "button",
        { className: "line", onclick: () => change({ row, tab: "trace" }, true) },
        element(
          "span",
          { className: `label-${label} figure` },
          numberTexts(scores[i], threshold)[0],
        ),
        text("grow", columns.question?.[i] ?? columns.trace_id[i]),
        text("soft grow", columns.answer?.[i] ?? ""),
      ),
    ),
  );
  const place = element("ul", { className: "list" }, ...lines.slice(0, N_LISTED));
  const rest = lines.slice(N_LISTED);
  const more = (event) => {
    event.currentTarget.parentElement.replaceWith(...rest);
    rest[0].firstChild.focus();
  };
  if (rest.length)
    place.append(
      element("li", {}, button(`${rest.length} more`, more, { className: "line soft" })),
    );
  return place;
}
