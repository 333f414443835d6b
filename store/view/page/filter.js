// The box of the filter: the words that may follow are the server's, arrows choose one, and Tab takes
// it or ends the word that has begun. Where no word has begun, Tab leaves the box.

import { getJson } from "/page/api.js";
import { $, element } from "/page/dom.js";

let chosen = -1;
let base = "";
let wait = 0;
let asked = 0;

const WORD = /[A-Za-z_]\w*$/; // that is being typed

export const setBase = (path) => {
  base = path;
};

export function start(onFilter) {
  const box = $("#filter");
  box.addEventListener("input", () => {
    ask();
  });
  box.addEventListener("focus", () => {
    ask();
  });
  box.addEventListener("blur", () => setTimeout(hide, 150));
  box.addEventListener("keydown", (event) => {
    const items = [...$("#completions").children];
    const isOpen = !$("#completions").hidden && items.length;
    if (event.key === "Enter") {
      if (isOpen && chosen >= 0) take(items[chosen].textContent);
      else {
        hide();
        onFilter(box.value.trim());
      }
      event.preventDefault();
    } else if (event.key === "Tab" && isOpen && (chosen >= 0 || begun() !== "")) {
      take(items[Math.max(0, chosen)].textContent);
      event.preventDefault();
    } else if (isOpen && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : items.length - 1)) % items.length;
      items.forEach((item, i) => item.classList.toggle("on", i === chosen));
      items[chosen].scrollIntoView({ block: "nearest" });
      event.preventDefault();
    } else if (event.key === "Escape") {
      if (isOpen) hide();
      else box.blur();
    }
  });
}

const textBefore = () => $("#filter").value.slice(0, $("#filter").selectionStart);
const begun = () => textBefore().match(WORD)?.[0] ?? "";

const hide = () => {
  clearTimeout(wait);
  asked += 1; // what is under way comes too late
  $("#completions").hidden = true;
  chosen = -1;
};

function ask() {
  clearTimeout(wait);
  const mine = (asked += 1);
  wait = setTimeout(async () => {
    const text = textBefore();
    let words = [];
    try {
      words = await getJson(`${base}/complete`, { text });
    } catch {
      /* no help is no error */
    }
    if (mine !== asked || document.activeElement !== $("#filter")) return;
    $("#completions").replaceChildren(
      ...words.map((word) =>
        element(
          "li",
          {
            role: "option",
            onmousedown: (event) => {
              event.preventDefault();
              take(word);
            },
          },
          word,
        ),
      ),
    );
    $("#completions").hidden = !words.length;
    chosen = -1;
  }, 60);
}

function take(word) {
  const box = $("#filter");
  const before = textBefore().replace(WORD, "");
  const after = box.value.slice(box.selectionStart);
  const gap = before && !/[\s(]$/.test(before) ? " " : "";
  box.value = `${before}${gap}${word} ${after}`;
  const cursor = (before + gap + word).length + 1;
  box.setSelectionRange(cursor, cursor);
  ask();
}
