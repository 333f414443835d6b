// One trace: its texts, its scores, and its tokens; or two traces beside each other.

import { getArray, getJson } from "/page/api.js";
import {
  bar,
  button,
  checkbox,
  element,
  heading,
  labelClass,
  legendOf,
  numberText,
  numberTexts,
  own,
  pick,
  prose,
  remark,
  title,
} from "/page/dom.js";
import { change, oneOf, state } from "/page/state.js";
import { SURPRISING_WHEN_LOW, tokens } from "/page/tokens.js";

const ABOVE = ["trace_id", "question", "answer", "references"]; // shown before the tokens
const MEANINGS = {
  logprob:
    "log-probability in nats that the model gave the token; the stronger, the more surprising",
  entropy: "entropy in nats of what the model expected here; the stronger, the less sure",
  topk_logprob: "log-probability of the likeliest tokens, mean; the stronger, the less likely",
  attn_colsum: "attention received, of the tokens that could attend; mean of layers and heads",
  attn_diag: "attention that the token pays to itself; mean of layers and heads",
  lens_entropy: "entropy in nats of the next token, read from each layer; mean of the layers",
  token_label: "1: in a hallucinated span, 0: not, -1: not labelled",
};

export async function showTrace(panel, base, store, row) {
  const rows = state.beside === "" || state.beside === row ? [row] : [state.beside, row];
  const loaded = await Promise.all(rows.map((each) => load(base, store, each)));
  const between = bounds(loaded.map(scaled)); // the same colours in both traces
  const bodies = loaded.map((each) => bodyOf(base, store, each, between));
  const pin =
    state.beside === ""
      ? button("compare", () => change({ beside: row }), {
          title: "keep this trace in sight, and choose another to compare",
        })
      : button("stop comparing", () => change({ beside: "" }));
  bodies.at(-1).prepend(element("div", { className: "bar end" }, pin));
  panel.replaceChildren(element("div", { className: "beside" }, ...bodies));
}

async function load(base, store, row) {
  const path = `${base}/trace/${row}`;
  const trace = await getJson(path);
  const known = (name) => store.tokens.includes(name);
  const color = oneOf(
    "color",
    store.tokens,
    known("logprob") ? "logprob" : (store.tokens[0] ?? ""),
  );
  const values = async (name) => (await getArray(`${path}/tokens/${name}`)).values;
  const [colors, marks] = await Promise.all([
    color && trace.tokens.length ? values(color) : null,
    known("token_label") ? values("token_label") : null,
  ]);
  return { row, trace, color, colors, marks };
}

// A question may have been answered several times.
const ofQuestion = (id) => {
  const quoted = id.replaceAll(/["\\]/g, "\\$&");
  const show = () => change({ filter: `question_id == "${quoted}"` }, true);
  return button("all answers to it", show, { className: "beside-name" });
};

const hasBothParts = ({ prompt_len: n, tokens }) => n > 0 && n < tokens.length;

// The numbers that the colours span: those of the answer alone, if that was chosen.
const scaled = ({ trace, colors }) =>
  state.scale === "answer" && hasBothParts(trace) ? colors?.slice(trace.prompt_len) : colors;

function bodyOf(base, store, shown, between) {
  const { trace, row, color } = shown;
  const { texts, numbers } = trace;
  const ofRuns = store.columns.filter((column) => column.is_score).map((column) => column.name);
  const scores = ofRuns.filter((name) => numbers[name] !== null);
  const others = Object.keys(numbers).filter((name) => ![...ofRuns, "label"].includes(name));
  const more = Object.entries(texts).filter(([name]) => !ABOVE.includes(name));
  return element(
    "article",
    {},
    heading(texts.trace_id ?? `row ${row}`, remark(`  row ${row}`)),
    ...textsOf(trace),
    labelLine(numbers, store.labels),
    tokenBar(store, shown, between),
    tokens(store, base, shown, between),
    ...scoresOf(scores, numbers, store),
    title("numbers"),
    list(
      "numbers",
      others.map((name) => [name, numberText(numbers[name])]),
    ),
    ...more.flatMap(([name, text]) => [
      title(name, name === "question_id" ? ofQuestion(text) : null),
      prose(text),
    ]),
  );
}

function textsOf({ texts: { question, answer }, references }) {
  const parts = [];
  if (question !== undefined) parts.push(title("question"), prose(question));
  const pair = [];
  if (answer !== undefined) pair.push(element("div", {}, title("answer"), prose(answer)));
  if (references.length)
    pair.push(element("div", {}, title("references"), ...references.map((text) => prose(text))));
  if (pair.length) parts.push(element("div", { className: "pair" }, ...pair));
  return parts;
}

function labelLine({ label }, names) {
  if (label === undefined) return null;
  const name = own(names, label);
  const text = name === undefined ? `none (${numberText(label)})` : `${name} (${label})`;
  const className = labelClass(label);
  return element("p", { className: "soft line" }, "label  ", element("b", { className }, text));
}

// What each detector says; where its run's threshold is known, whether the score reaches it.
function scoresOf(names, numbers, { thresholds, labels }) {
  if (!names.length) return [];
  const lines = names.map((name) => {
    const [value, threshold] = [numbers[name], own(thresholds, name)];
    if (threshold === undefined) return [name, numberText(value)];
    const says = value >= Math.fround(threshold) ? 1 : 0; // in the scores' precision
    const texts = numberTexts(value, threshold);
    return [name, `${texts[0]} ${says ? "≥" : "<"} ${texts[1]}`, says];
  });
  const about = `, and the thresholds of the run: ≥ says ${labels[1]}, < says ${labels[0]}`;
  lines.sort(([, , a], [, , b]) => (b ?? -1) - (a ?? -1)); // who says 1 first
  const hasThresholds = lines.some(([, , says]) => says !== undefined);
  return [title(`scores${hasThresholds ? about : ""}`), list("numbers broad", lines)];
}

// What the marks on tokens without a finite number mean, where there are such tokens.
function marksIn(colors) {
  const mark = (className, text) =>
    element(
      "span",
      { className: "soft small tokens" },
      element("span", { className }, "a"),
      ` ${text}`,
    );
  const has = (isIn) => Boolean(colors?.some(isIn));
  return [
    has((value) => Math.abs(value) === Infinity) && mark("infinite", "infinite"),
    has(Number.isNaN) && mark("nan", "no number"),
  ];
}

function tokenBar(store, { trace, color, colors }, [low, high]) {
  if (!store.tokens.length) return null;
  const ends = SURPRISING_WHEN_LOW.test(color) ? [high, low] : [low, high];
  const scale = (isOn) => change({ scale: isOn ? "answer" : "" });
  const isOn = state.scale === "answer";
  return bar(
    pick("tokens by", store.tokens, color, (name) => change({ color: name })),
    legendOf(ends, "legend"),
    ...marksIn(colors),
    hasBothParts(trace) &&
      checkbox("colours by the answer alone", isOn, scale, { className: "small" }),
    element("span", { className: "soft small" }, own(MEANINGS, color) ?? ""),
  );
}

function bounds(arrays) {
  let [low, high] = [Infinity, -Infinity];
  for (const array of arrays)
    for (const value of array ?? []) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  return low <= high ? [low, high] : [NaN, NaN];
}

// Names with their texts, and what detectors say: a label, or nothing.
const list = (className, lines) =>
  element(
    "dl",
    { className },
    ...lines.map(([name, text, says]) =>
      element(
        "div",
        {},
        element("dt", { title: name }, name),
        element("dd", { className: labelClass(says) }, text),
      ),
    ),
  );
