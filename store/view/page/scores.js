// Scores of detectors: by label with a threshold, what they get wrong, whether they are
// probabilities, and one against another.

import { getArray, getJson } from "/page/api.js";
import { calibrationParts } from "/page/calibration.js";
import {
  bar,
  button,
  canvasOf,
  color,
  countText,
  element,
  menu,
  numberText,
  own,
  showError,
  soft,
  title,
} from "/page/dom.js";
import { explore } from "/page/explore.js";
import { drawBars, legend } from "/page/histogram.js";
import { show } from "/page/narrow.js";
import { change, state } from "/page/state.js";

// Of the state; a change of it draws the tab again.
export const reads = ["filter", "score", "other"];

export async function showScores(panel, base, store, row, query) {
  const numbers = store.columns
    .filter((column) => column.kind === "number")
    .map((column) => column.name);
  const scores = store.columns.filter((column) => column.is_score).map((column) => column.name);
  const choices = scores.length ? scores : numbers.filter((name) => name.startsWith("score"));
  if (!choices.length) {
    panel.replaceChildren(soft("no scores: start the page with --run DIR"));
    return;
  }
  const score = numbers.includes(state.score) ? state.score : choices[0];
  const other = numbers.includes(state.other) ? state.other : "";
  const hasLabels = numbers.includes("label");
  const [found, wrong, calibration, density] = await Promise.all([
    getJson(`${base}/histogram`, { ...query, column: score }),
    hasLabels ? getJson(`${base}/mistakes`, { ...query, column: score }) : null,
    hasLabels ? getJson(`${base}/calibration`, { ...query, column: score }) : null,
    other ? getArray(`${base}/density`, { ...query, x: score, y: other }) : null,
  ]);
  const others = [...scores, ...numbers.filter((name) => !scores.includes(name))];
  const body = [
    bar(
      pick("score", score, choices, "score"),
      pick("other", other, ["", ...others.filter((name) => name !== score)], "against"),
    ),
    ...bars(found, panel.clientWidth - 28, score, store.thresholds, hasLabels),
  ];
  if (wrong) body.push(...mistakes(wrong, score));
  if (density) body.push(...ranks(density, base, query, score, other, store.thresholds));
  if (wrong && found.edges.length) body.push(...calibrationParts(calibration, score));
  panel.replaceChildren(...body);
}

const pick = (key, value, names, label) => {
  const choose = (name) => change({ [key]: name, threshold: "" });
  return element(
    "label",
    {},
    `${label} `,
    menu(label, names, value, choose, (name) => name || "–"),
  );
};

function bars(found, width, score, thresholds, hasLabels) {
  const { edges } = found;
  if (!edges.length) return [soft("none of the rows in the table has this score")];
  const [low, high] = [edges[0], edges.at(-1)];
  const ofRun = own(thresholds, score);
  const standard = ofRun ?? (low + high) / 2;
  const given = state.threshold === "" ? standard : Number(state.threshold);
  // it stays where it is when the rows of a filter lie all on one side of it
  let threshold = Number.isFinite(given) ? given : standard;
  const place = element("div");
  const text = element("p", { className: "soft", "aria-live": "polite" });
  const paint = (value) => {
    threshold = value;
    place.replaceChildren(drawBars(found, Math.max(200, width), 170, value, score));
    text.textContent = outcome(found, value, ofRun);
  };
  const slider = element("input", {
    type: "range",
    min: low,
    max: high,
    step: "any",
    value: threshold,
    "aria-label": "threshold",
    oninput: (event) => paint(Number(event.target.value)),
    onchange: (event) => change({ threshold: event.target.value }),
    onkeydown: (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      slider.value = threshold + (by * (high - low)) / 200;
      paint(Number(slider.value));
    },
  });
  slider.style.width = "100%";
  paint(threshold);
  const table = (label, sign, text) => {
    const part = `label == ${label} and ${score} ${sign}`;
    const order = { sort: score, descending: sign === ">=" ? "1" : "" };
    const choose = () => show(`${part} ${threshold}`, [score, "label"], order);
    return button(text, choose, { title: `${part} the threshold` });
  };
  const links = hasLabels
    ? [
        bar(
          element("span", { className: "soft" }, "in the table: "),
          table(0, ">=", "false alarms"),
          table(1, "<", "missed hallucinations"),
          table(1, ">=", "found hallucinations"),
        ),
      ]
    : [];
  return [place, slider, text, legend(found), ...links];
}

// Counted by bins, so it is exact to the width of one bin.
function outcome(found, threshold, ofRun) {
  const isOfRun = ofRun !== undefined && Math.abs(threshold - ofRun) < 1e-9;
  const name = isOfRun ? `${numberText(threshold)}, the run's threshold` : numberText(threshold);
  if (!found.counts["1"]) return `threshold ${name}`;
  const above = (counts) =>
    counts.reduce(
      (sum, count, i) => sum + ((found.edges[i] + found.edges[i + 1]) / 2 >= threshold ? count : 0),
      0,
    );
  const all = (counts) => counts.reduce((a, b) => a + b, 0);
  const [wrong, right] = [found.counts["1"], found.counts["0"]];
  const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)}%` : "–");
  return `at least ${name}: about ${share(above(wrong), all(wrong))} of the hallucinations (found), ${share(above(right), all(right))} of the right answers (false alarms)`;
}

function ranks(density, base, query, x, y, thresholds) {
  const {
    values,
    shape: [n],
  } = density;
  const cell = Math.max(4, Math.floor(330 / n));
  const [canvas, context] = canvasOf(n * cell, n * cell);
  const most = Math.log1p(values.reduce((a, b) => Math.max(a, b), 1));
  const [red, green, blue] = color("--heat").split(/\s+/).map(Number);
  context.fillStyle = color("--band");
  context.fillRect(0, 0, n * cell, n * cell);
  for (let i = 0; i < values.length; i += 1) {
    if (!values[i]) continue;
    context.fillStyle = `rgba(${red},${green},${blue},${0.15 + (0.85 * Math.log1p(values[i])) / most})`;
    context.fillRect((i % n) * cell, (n - 1 - Math.floor(i / n)) * cell, cell, cell);
  }
  const percent = (i) => `${Math.round((100 * i) / n)} to ${Math.round((100 * (i + 1)) / n)}%`;
  const choose = (from, to) => filterRanks(base, query, x, y, from, to).catch(showError);
  explore(canvas, {
    nx: n,
    ny: n,
    label: `ranks of ${x} to the right, of ${y} upwards; arrow keys walk, Enter shows the rows`,
    cellAt: (px, py) => [Math.floor(px / cell), Math.floor(py / cell)],
    placeOf: (i, j) => [(i + 0.5) * cell, (j + 0.5) * cell],
    textOf: (i, j) =>
      `${countText(values[(n - 1 - j) * n + i])} traces\n${x}: rank ${percent(i)}\n${y}: rank ${percent(n - 1 - j)}\nclick: these rows in the table`,
    choose: (i, j) => choose([i, n - 1 - j], [i, n - 1 - j]),
  });
  const half = n >> 1;
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
      element("span", { className: "soft" }, "where they disagree: "),
      disagree(x, y, [half, 0], [n - 1, half - 1]),
      disagree(y, x, [0, half], [half - 1, n - 1]),
    ),
  ];
}

// The rows from a cell of the ranks to another, as a filter of scores.
async function filterRanks(base, query, x, y, [left, bottom], [right, top]) {
  const { values } = await getArray(`${base}/limits`, { ...query, x, y });
  const n = values.length / 4;
  const limits = (axis, from, to) => {
    const low = [];
    const high = [];
    for (let i = from; i <= to; i += 1) {
      low.push(values[2 * (axis * n + i)]);
      high.push(values[2 * (axis * n + i) + 1]);
    }
    return [low.filter(Number.isFinite), high.filter(Number.isFinite)];
  };
  const [lowX, highX] = limits(1, left, right);
  const [lowY, highY] = limits(0, bottom, top);
  if (!lowX.length || !lowY.length) return;
  const part = (name, low, high) =>
    `${name} >= ${Math.min(...low)} and ${name} <= ${Math.max(...high)}`;
  show(`${part(x, lowX, highX)} and ${part(y, lowY, highY)}`, [x, y]);
}

function mistakes(found, score) {
  const titles = {
    false_alarms: `right answers with the highest ${score}: the surest false alarms`,
    misses: `hallucinations with the lowest ${score}: the surest misses`,
  };
  return [
    element("h2", { className: "part" }, "most confident mistakes"),
    ...Object.entries(titles).flatMap(([kind, text]) => [
      title(text),
      list(found[kind], kind === "misses" ? 1 : 0),
    ]),
  ];
}

const N_LISTED = 8;

function list(found, label) {
  if (!found.rows.length) return soft("none");
  const lines = found.rows.map((row, i) =>
    element(
      "li",
      {},
      element(
        "button",
        { className: "line", onclick: () => change({ row, tab: "trace" }, true) },
        element("span", { className: `label-${label} figure` }, numberText(found.scores[i])),
        element(
          "span",
          { className: "grow", dir: "auto" },
          found.columns.question?.[i] ?? found.columns.trace_id[i],
        ),
        element("span", { className: "soft grow", dir: "auto" }, found.columns.answer?.[i] ?? ""),
      ),
    ),
  );
  const place = element("ul", { className: "list" }, ...lines.slice(0, N_LISTED));
  const more = (event) => {
    event.currentTarget.parentElement.replaceWith(...lines.slice(N_LISTED));
    lines[N_LISTED].firstChild.focus();
  };
  const text = `${lines.length - N_LISTED} more`;
  if (lines.length > N_LISTED)
    place.append(element("li", {}, button(text, more, { className: "line soft" })));
  return place;
}
