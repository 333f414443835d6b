// The colours of the page, as its style names them.

export const color = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Red, green and blue of a colour: #rrggbb, or numbers with spaces between them.
export const partsOf = (text) =>
  text.startsWith("#")
    ? [1, 3, 5].map((at) => Number.parseInt(text.slice(at, at + 2), 16))
    : text.split(/\s+/).map(Number);
export const colorOf = (name) => partsOf(color(name));

// Behind a text: the strongest leaves it readable.
export const heat = (level) =>
  `rgb(var(--heat) / calc(var(--heat-most) * ${Math.min(1, Math.max(0, level)).toFixed(3)}))`;

// Where a value lies between limits, from 0 to 1; NaN is nowhere.
export const shareOf = (value, /** @type {number[]} */ [low, high]) => {
  if (Number.isNaN(value)) return NaN;
  if (value > high || value < low) return value > high ? 1 : 0;
  return high > low ? (value - low) / (high - low) : 0.5;
};
