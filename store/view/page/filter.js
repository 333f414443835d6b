// The box of the filter: the words that may follow are the server's, arrows choose one, and Tab takes
// it or ends the word that has begun. Where no word has begun, Tab leaves the box.

import { afterPause, getJson } from "/page/api.js";
import { $, element, showError } from "/page/dom.js";
import { change } from "/page/state.js";

const WORD = /[A-Za-z_]\w*$/; // that is being typed

let chosen = -1;
let base = "";
let shown = () => ({}); // the filter and the order of the table
const words = afterPause(60);

export const setBase = (path, query) => {
  base = path;
  shown = query;
};

// Filter or sort so, if the server can. Else it says why, and table, address and history stay.
export async function attempt(values, keep = true) {
  const { filter, sort, descending } = { ...shown(), ...values };
  try {
    await getJson(`${base}/table`, { filter, sort, descending, count: 0 });
  } catch (error) {
    explain(error, filter);
    return;
  }
  explain(null);
  change(values, keep);
}

// Why a filter or an order cannot be had, with a caret below the place; null: nothing is wrong.
export function explain(error, text = "") {
  const [, at, said] = error?.message.match(/^filter, character (\d+): (.*)$/s) ?? [];
  const box = $("#filter");
  const isFilter = Boolean(error?.message.startsWith("filter"));
  box.classList.toggle("bad", isFilter);
  box.setAttribute("aria-invalid", isFilter);
  $("#caret").hidden = at === undefined;
  if (at === undefined) {
    showError(error);
    return;
  }
  const cut = Math.max(0, at - 60); // what comes long before it
  $("#caret").textContent = `${text.slice(cut, cut + 120)}\n${" ".repeat(at - cut)}^`;
  const [what, ...cure] = said.split(/: (?=[^:]*\^)|; /);
  showError(new Error([what, ...cure.filter((part) => !part.includes("^"))].join("; ")));
  if (document.activeElement === box) box.setSelectionRange(at, at);
}

export function start(onFilter) {
  const box = $("#filter");
  box.addEventListener("input", ask);
  box.addEventListener("focus", ask);
  box.addEventListener("blur", () => setTimeout(hide, 150));
  box.addEventListener("keydown", (event) => {
    const items = [...$("#completions").children];
    const isOpen = !$("#completions").hidden && items.length;
    if (event.key === "Escape") {
      if (isOpen) hide();
      else box.blur();
      return;
    }
    if (event.key === "Enter" && !(isOpen && chosen >= 0)) {
      hide();
      onFilter(box.value.trim());
    } else if (event.key === "Enter" || (event.key === "Tab" && isOpen && (chosen >= 0 || begun())))
      take(items[Math.max(0, chosen)].textContent);
    else if (isOpen && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : items.length - 1)) % items.length;
      items.forEach((item, i) => {
        item.classList.toggle("on", i === chosen);
        item.setAttribute("aria-selected", i === chosen);
        item.id = i === chosen ? "completion" : "";
      });
      box.setAttribute("aria-activedescendant", "completion");
      items[chosen].scrollIntoView({ block: "nearest" });
    } else return;
    event.preventDefault();
  });
}

const textBefore = () => $("#filter").value.slice(0, $("#filter").selectionStart);
const begun = () => textBefore().match(WORD)?.[0];

function hide() {
  words.stop();
  $("#completions").hidden = true;
  $("#filter").setAttribute("aria-expanded", false);
  $("#filter").removeAttribute("aria-activedescendant");
  chosen = -1;
}

const ask = () =>
  words.ask(
    () => getJson(`${base}/complete`, { text: textBefore() }).catch(() => []), // no help is no error
    offer,
  );

function offer(found) {
  if (document.activeElement !== $("#filter")) return;
  const chooses = (word) => (event) => {
    event.preventDefault();
    take(word);
  };
  const items = found.map((word) =>
    element("li", { role: "option", "aria-selected": false, onmousedown: chooses(word) }, word),
  );
  $("#completions").replaceChildren(...items);
  $("#completions").hidden = !found.length;
  $("#filter").setAttribute("aria-expanded", found.length > 0);
  chosen = -1;
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
