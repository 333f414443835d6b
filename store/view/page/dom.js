// Elements and numbers. Texts of a store only ever become text nodes.

/** @returns {any} */
export const $ = (selector) => document.querySelector(selector);

/**
 * An element "tag.class.class", with properties, if the first part is none of its children.
 * @returns {any}
 */
export function element(name, ...parts) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  const properties = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...parts.filter((part) => (part ?? false) !== false));
  return made;
}

/**
 * A part of a picture. Colours are names of the style, as var(--ink): a file has them resolved.
 * @returns {any}
 */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const soft = (...parts) => element("p.soft", ...parts);
export const remark = (...parts) => element("span.soft", ...parts);
export const bar = (...parts) => element("div.bar", ...parts);
export const title = (...parts) => element("h3", ...parts);
export const heading = (...children) => element("h2", { dir: "auto" }, ...children);
export const prose = (text) => element("p.prose", { dir: "auto" }, text);
export const command = (text) => element("pre.command", text);
export const button = (text, onclick, properties = {}) =>
  element("button", { ...properties, onclick }, text);

// A picture that scrolls to the right where it is wider than its place; says so, and what else is
// to be said of it.
export function wide(picture, place = Infinity, note = "") {
  const share = place / picture.width.baseVal.value;
  const cue =
    share < 0.99 ? `${Math.round(100 * share)}% of it is in sight: scroll to the right` : "";
  const said = [note, cue].filter(Boolean).join("; ");
  return element("div.wide", picture, said && element("p.soft.cue", said));
}

// Two numbers, and the colours between them.
export const legendOf = (
  /** @type {number[]} */ [low, high],
  className = "legend full",
  ramp = element("i"),
) => element("span", { className }, numberText(low), ramp, numberText(high));

// A sign of a colour, and what it means.
export function entry(sign, color, text) {
  const made = element("b", `${sign} `);
  made.style.color = color;
  return remark(made, text);
}

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
export const pick = (label, ...choice) => element("label", `${label} `, menu(label, ...choice));

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
    `${text} `,
    element("input", {
      type: "range",
      "aria-label": label,
      onchange: (event) => onPick(event.target.value),
      ...limits,
    }),
  );

// A number as JSON has it: missing ones are null, infinite ones texts.
export const numberOf = (/** @type {Cell} */ value) =>
  value === null ? NaN : Number(String(value).replace("inf", "Infinity"));

export function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size === Infinity) return value > 0 ? "inf" : "-inf"; // as filters have it
  if (Number.isInteger(value) && size <= 2 ** 53) return String(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return size >= 1e3 ? value.toFixed(0) : value.toPrecision(4); // never with an exponent
}

// Two numbers, with as many digits as tell them apart.
export function numberTexts(a, b) {
  let texts = [numberText(a), numberText(b)];
  const least = Math.abs(a) < 1e5 ? 5 : 6; // those before the point
  for (let digits = least; a !== b && texts[0] === texts[1] && digits <= 17; digits += 1)
    texts = [a.toPrecision(digits), b.toPrecision(digits)];
  return texts;
}

export const countText = (n) => n.toLocaleString("en-US");

// What an object holds by a name of a store, which may be one that every object has.
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// The colour of a label: of 0 and 1 alone, since a store's labels may be texts.
export const labelClass = (value) => (value === 0 || value === 1 ? `label-${value}` : "");

export function showError(error) {
  $("#error").textContent = error ? error.message : "";
  $("#error").hidden = !error;
}

let tipPlace = [0, 0];

// A text beside a place of the window; without one, where the last text was.
export function showTip(text, /** @type {number[]} */ place = tipPlace) {
  const tip = $("#tip");
  const [x, y] = place;
  tipPlace = place;
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
  const below = y + 18 + tip.offsetHeight < innerHeight;
  tip.style.top = `${Math.max(4, below ? y + 16 : y - tip.offsetHeight - 12)}px`;
}

export const hasModifier = (event) => event.ctrlKey || event.metaKey || event.altKey;

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Where an arrow key leads, to the right and downwards; of any other key: nowhere.
export const arrowOf = (event) => (hasModifier(event) ? undefined : ARROWS[event.key]);
