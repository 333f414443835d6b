// The tokens of a trace, coloured by a column, and what else was likely at each of them.

import { getJson } from "/page/api.js";
import {
  bar,
  button,
  countText,
  element,
  heat,
  numberText,
  showError,
  showTip,
  soft,
  title,
} from "/page/dom.js";
import { state } from "/page/state.js";

const PART = 4000; // tokens in the document at once
export const SURPRISING_WHEN_LOW = /logprob/;

export function tokens(store, base, row, trace, color, colors, marks, [low, high]) {
  const n = trace.tokens.length;
  if (!n)
    return soft(store.tokens.length ? "this trace has no tokens" : "this store has no tokens");
  const place = element("div", {
    className: "walk",
    tabIndex: 0,
    role: "group",
    "aria-label": "tokens; arrow keys walk through them",
  });
  const drawPart = (from) => {
    const to = Math.min(n, from + PART);
    const plain = state.scale === "answer" ? trace.prompt_len : 0; // tokens without a colour
    const cut = Math.min(Math.max(trace.prompt_len, from), to);
    const group = (a, b) => {
      const line = element("p", {
        className: trace.token_texts ? "tokens" : "tokens ids",
        dir: trace.token_texts ? "auto" : "ltr",
      });
      for (let i = a; i < b; i += 1)
        line.append(
          token(
            trace,
            i,
            i < plain ? null : colors,
            low,
            high,
            marks,
            SURPRISING_WHEN_LOW.test(color),
          ),
        );
      return line;
    };
    const parts = [];
    if (cut > from) parts.push(title(`prompt, ${tokensText(trace.prompt_len)}`), group(from, cut));
    if (to > cut)
      parts.push(
        title(trace.prompt_len ? `answer, ${tokensText(n - trace.prompt_len)}` : tokensText(n)),
        group(cut, to),
      );
    if (n > PART) {
      parts.unshift(
        bar(
          button("earlier", () => drawPart(Math.max(0, from - PART)), { disabled: from === 0 }),
          element(
            "span",
            { className: "soft" },
            `tokens ${countText(from)} to ${countText(to - 1)} of ${countText(n)}`,
          ),
          button("later", () => drawPart(from + PART), { disabled: to === n }),
          trace.prompt_len > 0 &&
            trace.prompt_len < n &&
            button("answer", () => drawPart(trace.prompt_len)),
        ),
      );
    }
    place.replaceChildren(...parts);
  };
  drawPart(0);
  hover(place, base, row, trace, color, colors);
  return place;
}

const tokensText = (n) => (n === 1 ? "1 token" : `${countText(n)} tokens`);

function token(trace, i, colors, low, high, marks, isReversed) {
  const text = trace.token_texts ? trace.token_texts[i] : String(trace.tokens[i]);
  const made = element("span", {}, trace.token_texts ? visible(text) : text);
  made.dataset.i = i;
  const value = colors?.[i];
  if (Number.isFinite(value)) {
    const level = high > low ? (value - low) / (high - low) : 0.5;
    made.style.backgroundColor = heat(isReversed ? 1 - level : level);
  }
  if (marks?.[i] === 1) made.classList.add("marked");
  if (text === "") made.classList.add("special");
  return made;
}

const visible = (text) => (text === "" ? "·" : text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥"));

function hover(place, base, row, trace, name, colors) {
  let over = -1;
  let wait = 0;
  const show = (i, x, y) => {
    if (i === over) return;
    over = i;
    clearTimeout(wait);
    for (const each of place.querySelectorAll(".over")) each.classList.remove("over");
    if (i < 0) {
      showTip("");
      return;
    }
    const head = [
      `token ${i}, id ${trace.tokens[i]}`,
      ...(colors ? [`${name} ${numberText(colors[i])}`] : []),
    ];
    showTip(head.join("\n"), x, y);
    wait = setTimeout(async () => {
      try {
        const likely = await getJson(`${base}/trace/${row}/candidates/${i}`);
        const lines = likely.map(
          (item) =>
            `${(item.logprob === null ? "–" : Math.exp(item.logprob).toFixed(3)).padStart(6)}  ${item.text === null ? known(trace, item.id) : JSON.stringify(item.text)}`,
        );
        if (over === i && lines.length)
          showTip([...head, "", "most likely here:", ...lines].join("\n"), x, y);
      } catch (error) {
        showError(error);
      }
    }, 80);
  };
  place.addEventListener("pointerover", (event) =>
    show(Number(event.target.dataset?.i ?? -1), event.clientX, event.clientY),
  );
  for (const end of ["pointerleave", "blur"]) place.addEventListener(end, () => show(-1, 0, 0));
  place.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target !== place || event.altKey || event.ctrlKey || event.metaKey) return;
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

// Without a tokenizer, the text of an id is known if the trace has a token of it.
function known(trace, id) {
  const i = trace.token_texts ? trace.tokens.indexOf(id) : -1;
  return i < 0 ? `id ${id}` : JSON.stringify(trace.token_texts[i]);
}
