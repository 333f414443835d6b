// Elements and numbers. Texts of a store only ever become text nodes.

export const $ = (selector) => document.querySelector(selector);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => (child ?? false) !== false));
  return made;
}

const group =
  (tag, className) =>
  (...children) =>
    element(tag, { className }, ...children);
export const soft = group("p", "soft");
export const remark = group("span", "soft");
export const bar = group("div", "bar");
export const title = group("h3", "");
export const heading = (...children) => element("h2", { dir: "auto" }, ...children);
export const prose = (text) => element("p", { className: "prose", dir: "auto" }, text);
export const command = (text) => element("pre", { className: "command" }, text);
export const button = (text, onclick, properties = {}) =>
  element("button", { ...properties, onclick }, text);

// A picture that scrolls to the right where it is wider than its place; says so, and what else is
// to be said of it.
export function wide(picture, place = Infinity, note = "") {
  const share = place / Number.parseFloat(picture.style.width);
  const cue =
    share < 0.99 ? `${Math.round(100 * share)}% of it is in sight: scroll to the right` : "";
  const said = [note, cue].filter(Boolean).join("; ");
  return element(
    "div",
    { className: "wide" },
    picture,
    said && element("p", { className: "soft cue" }, said),
  );
}

// Two numbers, and the colours between them.
export const legendOf = ([low, high], className = "legend full", ramp = element("i")) =>
  element("span", { className }, numberText(low), ramp, numberText(high));

// A menu of names; onPick(name): one was chosen.
export const menu = (label, names, chosen, onPick, textOf = (name) => name) =>
  element(
    "select",
    { "aria-label": label, onchange: (event) => onPick(event.target.value) },
    ...names.map((name) =>
      element("option", { value: name, selected: name === chosen }, textOf(name)),
    ),
  );

// The same with its name before it.
export const pick = (label, ...choice) => element("label", {}, `${label} `, menu(label, ...choice));

// A box to tick; onPick(isOn).
export const checkbox = (text, checked, onPick, properties = {}) =>
  element(
    "label",
    properties,
    element("input", {
      type: "checkbox",
      "aria-label": text,
      checked,
      onchange: (event) => onPick(event.target.checked),
    }),
    ` ${text}`,
  );

// A slider behind its text; onPick(value).
export const slider = (text, label, limits, onPick) =>
  element(
    "label",
    {},
    `${text} `,
    element("input", {
      type: "range",
      "aria-label": label,
      onchange: (event) => onPick(event.target.value),
      ...limits,
    }),
  );

export function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
}

// Two numbers, with as many digits as tell them apart.
export function numberTexts(a, b) {
  let texts = [numberText(a), numberText(b)];
  for (let digits = 5; a !== b && texts[0] === texts[1] && digits <= 17; digits += 1)
    texts = [a.toPrecision(digits), b.toPrecision(digits)];
  return texts;
}

export const countText = (n) => n.toLocaleString("en-US");

// What an object holds by a name of a store, which may be one that every object has.
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// The colour of a label: of 0 and 1 alone, since a store's labels may be texts.
export const labelClass = (value) => (value === 0 || value === 1 ? `label-${value}` : "");

export function showError(error) {
  if (error?.name === "AbortError") return;
  $("#error").textContent = error ? error.message : "";
  $("#error").hidden = !error;
}

export function showTip(text, x, y) {
  const tip = $("#tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
  const below = y + 18 + tip.offsetHeight < innerHeight;
  tip.style.top = `${Math.max(4, below ? y + 16 : y - tip.offsetHeight - 12)}px`;
}

export const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;
