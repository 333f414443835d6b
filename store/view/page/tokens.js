// The tokens of a trace, coloured by a column, and what else was likely at each of them.

import { afterPause, getJson } from "/page/api.js";
import {
  bar,
  button,
  countText,
  element,
  numberOf,
  numberText,
  remark,
  showTip,
  soft,
  title,
} from "/page/dom.js";
import { explore } from "/page/explore.js";
import { heat, shareOf } from "/page/paint.js";
import { state } from "/page/state.js";

const PART = 4000; // tokens in the document at once
export const SURPRISING_WHEN_LOW = /logprob/;

// shown: a trace with the column that colours its tokens; between: the numbers that colours span.
export function tokens(/** @type {Store} */ store, base, /** @type {Loaded} */ shown, between) {
  const { trace } = shown;
  const n = trace.tokens.length;
  if (!n)
    return soft(store.tokens.length ? "this trace has no tokens" : "this store has no tokens");
  const place = element("div.walk");
  let first = 0; // of those in the document
  const hasTexts = Boolean(trace.token_texts);
  const line = (from, to) => {
    const made = element("p", {
      className: hasTexts ? "tokens" : "tokens ids",
      dir: hasTexts ? "auto" : "ltr",
    });
    for (let i = from; i < to; i += 1) made.append(token(shown, i, between));
    return made;
  };
  const drawPart = (from) => {
    const to = Math.min(n, from + PART);
    first = from;
    const cut = Math.min(Math.max(trace.prompt_len, from), to);
    const parts = [];
    if (n > PART) parts.push(partsBar(trace, from, to, drawPart));
    if (cut > from) parts.push(title(`prompt, ${tokensText(trace.prompt_len)}`), line(from, cut));
    if (to > cut) {
      const name = trace.prompt_len ? "answer, " : "";
      parts.push(title(name + tokensText(n - trace.prompt_len)), line(cut, to));
    }
    place.replaceChildren(...parts);
  };
  drawPart(0);
  const find = (i) => place.querySelector(`[data-i="${i}"]`);
  const spanOf = (i) => {
    if (!find(i)) drawPart(i - (i % PART));
    return find(i);
  };
  explore(place, {
    nx: n,
    role: "group",
    label: "tokens; arrow keys walk through them",
    begin: () => [first, 0],
    cellAt: (x, y, target) => [Number(target.dataset.i ?? -1), 0],
    placeOf: (i) => {
      spanOf(i).scrollIntoView({ block: "nearest" });
      const [outer, box] = [place, spanOf(i)].map((each) => each.getBoundingClientRect());
      return [box.left - outer.left, box.bottom - outer.top - 8];
    },
    textOf: (i) => aboutToken(shown, i),
    onCell: (i) => {
      for (const each of place.querySelectorAll(".over")) each.classList.remove("over");
      if (i >= 0) spanOf(i).classList.add("over");
      showLikely(base, shown, i);
    },
  });
  return place;
}

const partsBar = (
  /** @type {Trace} */ { tokens: { length: n }, prompt_len: nPrompt },
  from,
  to,
  drawPart,
) =>
  bar(
    button("earlier", () => drawPart(Math.max(0, from - PART)), { disabled: from === 0 }),
    remark(`tokens ${countText(from)} to ${countText(to - 1)} of ${countText(n)}`),
    button("later", () => drawPart(from + PART), { disabled: to === n }),
    nPrompt > 0 && nPrompt < n && button("answer", () => drawPart(nPrompt)),
  );

const tokensText = (n) => (n === 1 ? "1 token" : `${countText(n)} tokens`);

function token(/** @type {Loaded} */ { trace, color, colors, marks, differing }, i, between) {
  const text = trace.token_texts ? trace.token_texts[i] : String(trace.tokens[i]);
  const made = element("span", trace.token_texts ? visible(text) : text);
  made.dataset.i = i;
  const isPlain = state.scale === "answer" && i < trace.prompt_len;
  const value = isPlain ? undefined : colors?.[i];
  if (Number.isNaN(value)) made.classList.add("nan");
  else if (value !== undefined) {
    const level = shareOf(value, between);
    made.style.backgroundColor = heat(SURPRISING_WHEN_LOW.test(color) ? 1 - level : level);
    if (!Number.isFinite(value)) made.classList.add("infinite");
  }
  if (marks?.[i] === 1) made.classList.add("marked");
  if (differing.has(i)) made.classList.add("differs");
  if (text === "") made.classList.add("special");
  return made;
}

const visible = (text) => (text === "" ? "·" : text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥"));

function aboutToken(/** @type {Loaded} */ { trace, color, colors }, i) {
  const id = `token ${i}, id ${trace.tokens[i]}`;
  if (!colors) return id;
  return `${id}\n${color} ${Number.isNaN(colors[i]) ? "NaN" : numberText(colors[i])}`;
}

const likely = afterPause(80);

// Adds to the tip of a token what else was likely there.
function showLikely(base, /** @type {Loaded} */ shown, i) {
  likely.stop();
  if (i < 0) return;
  const { trace, row } = shown;
  likely.ask(
    () => getJson(`${base}/trace/${row}/candidates/${i}`),
    (found) => {
      const lines = found.map((item) => candidate(item, trace.tokens[i]));
      const head = [aboutToken(shown, i), "", "most likely here:"];
      if (lines.length) showTip([...head, ...lines].join("\n"));
    },
  );
}

// A tick marks the token that was taken.
function candidate(/** @type {Candidate} */ { id, text, logprob }, taken) {
  const share = logprob === null ? "–" : Math.exp(numberOf(logprob)).toFixed(3);
  const mark = id === taken ? "✓" : " ";
  return `${mark}${share.padStart(6)}  ${text === null ? `id ${id}` : JSON.stringify(text)}`;
}
