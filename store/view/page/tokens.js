// The tokens of a trace, coloured by a column, and what else was likely at each of them.

import { afterPause, getJson } from "/page/api.js";
import {
  bar,
  button,
  countText,
  element,
  hasModifier,
  numberText,
  remark,
  showTip,
  soft,
  title,
} from "/page/dom.js";
import { heat, shareOf } from "/page/paint.js";
import { state } from "/page/state.js";

const PART = 4000; // tokens in the document at once
export const SURPRISING_WHEN_LOW = /logprob/;

// shown: a trace with the column that colours its tokens; between: the numbers that colours span.
export function tokens(store, base, shown, between) {
  const { trace } = shown;
  const n = trace.tokens.length;
  if (!n)
    return soft(store.tokens.length ? "this trace has no tokens" : "this store has no tokens");
  const place = element("div", {
    className: "walk",
    tabIndex: 0,
    role: "group",
    "aria-label": "tokens; arrow keys walk through them",
  });
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
  hover(place, base, shown);
  return place;
}

const partsBar = ({ tokens: { length: n }, prompt_len: nPrompt }, from, to, drawPart) =>
  bar(
    button("earlier", () => drawPart(Math.max(0, from - PART)), { disabled: from === 0 }),
    remark(`tokens ${countText(from)} to ${countText(to - 1)} of ${countText(n)}`),
    button("later", () => drawPart(from + PART), { disabled: to === n }),
    nPrompt > 0 && nPrompt < n && button("answer", () => drawPart(nPrompt)),
  );

const tokensText = (n) => (n === 1 ? "1 token" : `${countText(n)} tokens`);

function token({ trace, color, colors, marks, differing }, i, between) {
  const text = trace.token_texts ? trace.token_texts[i] : String(trace.tokens[i]);
  const made = element("span", {}, trace.token_texts ? visible(text) : text);
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

function hover(place, base, { row, trace, color, colors }) {
  let over = -1;
  const likely = afterPause(80);
  const show = (i, x, y) => {
    if (i === over) return;
    over = i;
    likely.stop();
    for (const each of place.querySelectorAll(".over")) each.classList.remove("over");
    if (i < 0) {
      showTip("");
      return;
    }
    const head = [`token ${i}, id ${trace.tokens[i]}`];
    if (colors) head.push(`${color} ${Number.isNaN(colors[i]) ? "NaN" : numberText(colors[i])}`);
    showTip(head.join("\n"), x, y);
    likely.ask(
      () => getJson(`${base}/trace/${row}/candidates/${i}`),
      (found) => {
        const lines = found.map((item) => candidate(item, trace.tokens[i]));
        if (lines.length) showTip([...head, "", "most likely here:", ...lines].join("\n"), x, y);
      },
    );
  };
  place.addEventListener("pointerover", (event) =>
    show(Number(event.target.dataset?.i ?? -1), event.clientX, event.clientY),
  );
  // a finger that is lifted leaves what it has shown
  const end = (event) => event.pointerType !== "touch" && show(-1, 0, 0);
  for (const kind of ["pointerleave", "blur"]) place.addEventListener(kind, end);
  place.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target !== place || hasModifier(event)) return;
    event.preventDefault();
    const all = [...place.querySelectorAll("[data-i]")];
    const at = all.findIndex((each) => Number(each.dataset.i) === over);
    const span = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))];
    span.scrollIntoView({ block: "nearest" });
    const box = span.getBoundingClientRect();
    show(Number(span.dataset.i), box.left, box.bottom - 8);
    span.classList.add("over");
  });
}

// A tick marks the token that was taken.
function candidate({ id, text, logprob }, taken) {
  const share =
    logprob === null ? "–" : Math.exp(logprob === "-inf" ? -Infinity : logprob).toFixed(3);
  const mark = id === taken ? "✓" : " ";
  return `${mark}${share.padStart(6)}  ${text === null ? `id ${id}` : JSON.stringify(text)}`;
}
