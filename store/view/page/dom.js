// Elements and numbers. Texts of a store only ever become text nodes.

export const $ = (selector) => document.querySelector(selector);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(
    ...children.filter((child) => child !== null && child !== undefined && child !== false),
  );
  return made;
}

export const soft = (...children) => element("p", { className: "soft" }, ...children);
export const bar = (...children) => element("div", { className: "bar" }, ...children);
export const title = (...children) => element("h3", {}, ...children);
export const prose = (text) => element("p", { className: "prose", dir: "auto" }, text);
export const button = (text, onclick, properties = {}) =>
  element("button", { ...properties, onclick }, text);

// A menu of names; onPick(name): one was chosen.
export const menu = (label, names, chosen, onPick, textOf = (name) => name) =>
  element(
    "select",
    { "aria-label": label, onchange: (event) => onPick(event.target.value) },
    ...names.map((name) =>
      element("option", { value: name, selected: name === chosen }, textOf(name)),
    ),
  );

// An input of a type, which says what it is for.
export const input = (type, label, onchange, properties) =>
  element("input", { type, "aria-label": label, onchange, ...properties });

export function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
}

// What an object holds by a name of a store, which may be one that every object has.
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// The colour of a label: of 0 and 1 alone, since a store's labels may be texts.
export const labelClass = (value) => (value === 0 || value === 1 ? `label-${value}` : "");

export const countText = (n) => n.toLocaleString("en-US");

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export const heat = (level) =>
  `rgb(${color("--heat")} / ${(0.75 * Math.min(1, Math.max(0, level))).toFixed(3)})`;

// A canvas of the size of its place, sharp on every display; draws in CSS pixels.
export function canvasOf(width, height) {
  const ratio = devicePixelRatio || 1;
  const canvas = element("canvas", {
    width: Math.round(width * ratio),
    height: Math.round(height * ratio),
  });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [canvas, context];
}

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
