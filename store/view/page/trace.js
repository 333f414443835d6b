// One trace: its texts, its scores, and its tokens; or two traces beside each other.

import { getArray, getJson } from "/page/api.js";
import {
  bar,
  button,
  element,
  input,
  labelClass,
  menu,
  numberText,
  own,
  prose,
  title,
} from "/page/dom.js";
import { change, state } from "/page/state.js";
import { SURPRISING_WHEN_LOW, tokens } from "/page/tokens.js";

const FIRST = ["question", "answer", "references"];
const LABELS = { 0: "right (0)", 1: "hallucination (1)" };
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

// Of the state; a change of it draws the tab again.
export const reads = ["row", "beside", "color", "scale"];

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
  const trace = await getJson(`${base}/trace/${row}`);
  const color = store.tokens.includes(state.color)
    ? state.color
    : (store.tokens.find((name) => name === "logprob") ?? store.tokens[0] ?? "");
  const [colors, marks] = await Promise.all([
    color && trace.tokens.length ? values(base, row, color) : null,
    store.tokens.includes("token_label") ? values(base, row, "token_label") : null,
  ]);
  return { row, trace, color, colors, marks };
}

// A question may have been answered several times.
const ofQuestion = (id) => {
  const quoted = id.replaceAll(/["\\]/g, "\\$&");
  const show = () => change({ filter: `question_id == "${quoted}"` }, true);
  return button("all answers to it", show, { className: "beside-name" });
};

// The numbers that the colours span: those of the answer alone, if that was chosen.
function scaled({ trace, colors }) {
  const hasBoth = trace.prompt_len > 0 && trace.prompt_len < trace.tokens.length;
  return state.scale === "answer" && hasBoth ? colors?.slice(trace.prompt_len) : colors;
}

function bodyOf(base, store, { row, trace, color, colors, marks }, between) {
  const known = trace.texts;
  const body = [
    element(
      "h2",
      { dir: "auto" },
      known.trace_id ?? `row ${row}`,
      element("span", { className: "soft" }, `  row ${row}`),
    ),
    ...texts(trace),
    labelLine(trace.numbers),
    tokenBar(store, trace, color, between),
    tokens(store, base, row, trace, color, colors, marks, between),
    ...scores(trace.numbers, store),
    title("numbers"),
    numbers(trace.numbers, store),
  ];
  const others = Object.entries(known).filter(
    ([name]) => !FIRST.includes(name) && name !== "trace_id",
  );
  for (const [name, text] of others)
    body.push(title(name, name === "question_id" ? ofQuestion(text) : null), prose(text));
  return element("article", {}, ...body);
}

const values = async (base, row, name) =>
  (await getArray(`${base}/trace/${row}/tokens/${name}`)).values;

function texts(trace) {
  const { question, answer } = trace.texts;
  const parts = [];
  if (question !== undefined) parts.push(title("question"), prose(question));
  const pair = [];
  if (answer !== undefined) pair.push(element("div", {}, title("answer"), prose(answer)));
  if (trace.references.length)
    pair.push(
      element("div", {}, title("references"), ...trace.references.map((text) => prose(text))),
    );
  if (pair.length) parts.push(element("div", { className: "pair" }, ...pair));
  return parts;
}

function labelLine({ label }) {
  if (label === undefined) return null;
  return element(
    "p",
    { className: "soft line" },
    "label  ",
    element("b", { className: labelClass(label) }, LABELS[label] ?? `none (${numberText(label)})`),
  );
}

// What each detector says; where its run's threshold is known, whether the score reaches it.
function scores(found, store) {
  const lines = [];
  for (const { name } of store.columns.filter((column) => column.is_score)) {
    const threshold = own(store.thresholds, name);
    const value = found[name];
    if (value === null) continue;
    const text = numberText(value);
    if (threshold === undefined) lines.push([name, text, null]);
    else if (value >= threshold) lines.push([name, `${text} ≥ ${numberText(threshold)}`, 1]);
    else lines.push([name, `${text} < ${numberText(threshold)}`, 0]);
  }
  if (!lines.length) return [];
  const hasThresholds = lines.some(([, , says]) => says !== null);
  return [
    title(
      hasThresholds
        ? "scores, and the thresholds of the run: ≥ says hallucination, < says right"
        : "scores",
    ),
    list("numbers broad", lines),
  ];
}

function tokenBar(store, trace, color, [low, high]) {
  if (!store.tokens.length) return null;
  const choose = (name) => change({ color: name });
  const select = menu("colour tokens by", store.tokens, color, choose);
  const ends = SURPRISING_WHEN_LOW.test(color) ? [high, low] : [low, high];
  return bar(
    element("label", {}, "tokens by ", select),
    element(
      "span",
      { className: "legend" },
      numberText(ends[0]),
      element("i"),
      numberText(ends[1]),
    ),
    trace.prompt_len > 0 &&
      trace.prompt_len < trace.tokens.length &&
      element(
        "label",
        { className: "small" },
        input(
          "checkbox",
          "colours by the answer alone",
          (event) => change({ scale: event.target.checked ? "answer" : "" }),
          { checked: state.scale === "answer" },
        ),
        " colours by the answer alone",
      ),
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

function numbers(found, store) {
  const above = new Set(["label", ...store.columns.filter((c) => c.is_score).map((c) => c.name)]);
  const known = Object.keys(found).filter((name) => !above.has(name));
  return list(
    "numbers",
    known.map((name) => [name, numberText(found[name])]),
  );
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
