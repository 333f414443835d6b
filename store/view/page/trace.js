// One trace: its texts, its scores, and its tokens; or two traces beside each other.

import { getArray, getJson } from "/page/api.js";
import {
  bar,
  button,
  checkbox,
  command,
  element,
  heading,
  labelClass,
  legendOf,
  numberOf as asNumber,
  numberText,
  numberTexts,
  own,
  pick,
  prose,
  remark,
  title,
} from "/page/dom.js";
import { uncommon } from "/page/differences.js";
import { quoted } from "/page/narrow.js";
import { neighbourParts, noteParts } from "/page/notes.js";
import { change, numberOf, oneOf, state } from "/page/state.js";
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

export async function showTrace(/** @type {Shown} */ { base, store, row, query }) {
  const beside = String(numberOf("beside", [0, store.rows - 1], row));
  const rows = beside === row ? [row] : [beside, row];
  const loaded = await Promise.all(rows.map((each) => load(base, store, each)));
  const between = bounds(loaded.map(scaled)); // the same colours in both traces
  const bodies = loaded.map((each, i) =>
    bodyOf(base, store, { ...each, other: loaded[1 - i], query }, between, i),
  );
  const pin =
    state.beside === ""
      ? button("compare", () => change({ beside: row }), {
          title: "keep this trace in sight, and choose another to compare",
        })
      : button("stop comparing", () => change({ beside: "" }));
  bodies.at(-1).firstChild.prepend(element("div.bar.end", pin));
  return [element("div.beside", ...bodies)];
}

async function load(base, /** @type {Store} */ store, row) {
  const path = `${base}/trace/${row}`;
  const trace = await getJson(`${base}/trace/${row}`);
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
  const show = () => change({ filter: `question_id == ${quoted(id)}` }, true);
  return button("all answers to it", show, { className: "beside-name" });
};

const hasBothParts = (/** @type {Trace} */ { prompt_len: n, tokens }) => n > 0 && n < tokens.length;

// The numbers that the colours span: those of the answer alone, if that was chosen.
const scaled = (/** @type {Loaded} */ { trace, colors }) =>
  state.scale === "answer" && hasBothParts(trace) ? colors?.slice(trace.prompt_len) : colors;

// The parts of a trace; those of two beside each other begin at one height. What both choose is
// there once.
function bodyOf(base, /** @type {Store} */ store, shown, between, number) {
  const { trace, row, other } = shown;
  const { texts, numbers } = trace;
  const ofRuns = store.columns.filter((column) => column.is_score).map((column) => column.name);
  const others = Object.keys(numbers).filter((name) => ![...ofRuns, "label"].includes(name));
  const more = Object.entries(texts).filter(([name]) => !ABOVE.includes(name));
  const parts = [
    [heading(texts.trace_id ?? `row ${row}`, remark(`  row ${row}`))],
    partOf("question", texts.question, other?.trace.texts.question),
    [answerOf(trace, other?.trace)],
    [labelLine(numbers, store.labels), ...noteParts(base, row, trace.note, store.labels)],
    number ? [] : [tokenBar(store, shown, between)],
    [tokens(store, base, { ...shown, differing: differing(shown) }, between)],
    scoresOf(ofRuns, trace, store),
    others.length
      ? [
          title("numbers"),
          list(
            "numbers",
            others.map((name) => [name, numberText(numbers[name])]),
          ),
        ]
      : [],
    other ? [] : neighbourParts(base, store, row, shown.query),
    more.flatMap(([name, text]) => [
      title(name, name === "question_id" ? ofQuestion(text) : null),
      prose(text),
    ]),
  ];
  const kept = parts.map((part) => part.filter(Boolean));
  return element("article", ...kept.map((part) => element("section", ...part)));
}

// A text with its name; of two traces, whether the other has it too.
const partOf = (name, text, other) =>
  text === undefined ? [] : [title(name, text === other && remark(": the same")), prose(text)];

function answerOf(
  /** @type {Trace} */ { texts: { answer }, references },
  /** @type {Trace} */ other,
) {
  const pair = [element("div", ...partOf("answer", answer, other?.texts.answer))];
  if (references.length)
    pair.push(element("div", title("references"), ...references.map((text) => prose(text))));
  return element("div.pair", ...pair);
}

// Which tokens the other trace has not, or not in this order; prompts apart from answers.
function differing(/** @type {Loaded} */ { trace, other }) {
  if (!other) return new Set();
  const halves = ({ tokens, prompt_len: n }) => [tokens.slice(0, n), tokens.slice(n)];
  const [mine, theirs] = [halves(trace), halves(other.trace)];
  const answers = [...uncommon(mine[1], theirs[1])].map((i) => i + trace.prompt_len);
  return new Set([...uncommon(mine[0], theirs[0]), ...answers]);
}

function labelLine({ label }, names) {
  if (label === undefined) return null;
  const name = own(names, label);
  const text = name === undefined ? `none (${numberText(label)})` : `${name} (${label})`;
  const className = labelClass(label);
  return element("p.soft.line", "label  ", element("b", { className }, text));
}

// What each detector says, who says 1 first; where its run's threshold is known, whether the score
// reaches it. A click colours the tokens by their own scores, where the store has them.
function scoresOf(names, /** @type {Trace} */ { numbers }, /** @type {Store} */ store) {
  const { thresholds, labels } = store;
  const known = names.filter((name) => numbers[name] !== null);
  if (!known.length) return [];
  const lines = known.map((name) => {
    const value = asNumber(numbers[name]);
    const threshold = own(thresholds, name);
    const column = name.replace(/^score_/, "score_token_");
    const choose = () => change({ color: column });
    const shown = store.tokens.includes(column)
      ? button(name, choose, { className: "link", title: "colour the tokens by it" })
      : name;
    if (threshold === undefined) return { name, shown, text: numberText(value), says: -1, value };
    const says = value >= Math.fround(threshold) ? 1 : 0; // in the scores' precision
    const texts = numberTexts(value, threshold);
    return { name, shown, text: `${texts[0]} ${says ? "≥" : "<"} ${texts[1]}`, says, value };
  });
  lines.sort((a, b) => b.says - a.says || b.value - a.value);
  const said = lines.filter(({ says }) => says >= 0);
  const isWrong = ({ says }) => says >= 0 && says !== numbers.label;
  const isLabelled = (numbers.label === 0 || numbers.label === 1) && said.length > 0;
  const only = isLabelled && state.disagree === "1";
  const about = `, and the thresholds of the run: ≥ says ${labels[1]}, < says ${labels[0]}`;
  const kept = (only ? lines.filter(isWrong) : lines).map((line) => [
    line.name,
    line.text,
    line.says,
    line.shown,
  ]);
  const box = checkbox(
    `only the ${lines.filter(isWrong).length} of ${said.length} that disagree with the label`,
    only,
    (isOn) => change({ disagree: isOn ? "1" : "" }),
    { className: "small" },
  );
  return [
    title(`scores${said.length ? about : ""}`),
    isLabelled && box,
    list("numbers broad", kept),
    !store.tokens.some((name) => name.startsWith("score_token_")) && tokenAdvice(store),
  ];
}

// How a store gets the scores of single tokens.
const tokenAdvice = (/** @type {Store} */ { path, runs: [run] }) =>
  element(
    "details.soft.small",
    element("summary", "which tokens drove a score?"),
    command(
      `python -m train predict --run ${run?.path ?? "RUN"} --store ${path} --tokens --to-store`,
    ),
  );

// What the marks on tokens without a finite number mean, where there are such tokens.
function marksIn(colors) {
  const mark = (className, text) =>
    element("span.soft.small.tokens", element("span", { className }, "a"), ` ${text}`);
  const has = (isIn) => Boolean(colors?.some(isIn));
  return [
    has((value) => Math.abs(value) === Infinity) && mark("infinite", "infinite"),
    has(Number.isNaN) && mark("nan", "no number"),
  ];
}

function tokenBar(/** @type {Store} */ store, { trace, color, colors }, [low, high]) {
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
    element("span.soft.small", own(MEANINGS, color) ?? ""),
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
    ...lines.map(([name, text, says, shown = name]) =>
      element(
        "div",
        element("dt", { title: name }, shown),
        element("dd", { className: labelClass(says) }, text),
      ),
    ),
  );
