// What the page shows, all of it in the fragment of the URL, so that a link shows the same.

import { numberText } from "/page/dom.js";

const KEYS =
  "store trace filter sort descending row columns tab color layer beside what score other threshold edge " +
  "map paint view first head scale widths pin split log disagree range one near"; // in this order
const EMPTY = Object.fromEntries(KEYS.split(" ").map((key) => [key, ""]));
const DEFAULTS = { ...EMPTY, store: "0", tab: "trace" };

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(
    Object.entries(DEFAULTS).map(([key, value]) => [key, given.get(key) ?? value]),
  );
}

const hasAddress = location.protocol !== "about:"; // a page within a notebook has none
export let state = read();
const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

function tell(before) {
  const changed = new Set(Object.keys(state).filter((key) => state[key] !== before[key]));
  if (changed.size) for (const listener of listeners) listener(changed);
}

// Change the state; `keep` makes a new entry of the browser's history.
export function change(values, keep = false) {
  const before = state;
  state = { ...state };
  for (const [key, value] of Object.entries(values)) state[key] = String(value ?? "");
  const isNew = Object.keys(state).some((key) => state[key] !== before[key]);
  const differs = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]);
  const url = `${location.pathname}#${new URLSearchParams(differs)}`;
  if (hasAddress) history[keep && isNew ? "pushState" : "replaceState"](null, "", url);
  tell(before);
}

// Another store: nothing that was said of the last one is kept but the tab.
export const changeStore = (store) => change({ ...DEFAULTS, tab: state.tab, store }, true);

// What the address says and the page cannot show: key -> a sentence.
export const ignored = new Map();

// The value of a key if it is one that there is, else another one, which is said.
export function oneOf(key, known, instead) {
  const value = state[key];
  ignored.delete(key);
  if (value === "" || known.includes(value)) return value === "" ? instead : value;
  const used = instead === "" ? "it is left out" : `${instead} is shown`;
  ignored.set(key, `${key}=${value.slice(0, 60)} is not in this store: ${used}`);
  return instead;
}

// The same of a number between two limits.
export function numberOf(key, [low, high], instead) {
  const value = Number(state[key]);
  const expected = high < Number.MAX_VALUE ? `${low} to ${high}` : "a number";
  ignored.delete(key);
  if (state[key] === "" || (value >= low && value <= high))
    return state[key] === "" ? instead : value;
  const shown = numberText(instead);
  ignored.set(key, `${key}=${state[key].slice(0, 60)}: expected ${expected}, ${shown} is shown`);
  return instead;
}

function follow() {
  const before = state;
  state = read();
  tell(before);
}
addEventListener("popstate", follow);
addEventListener("hashchange", follow);
