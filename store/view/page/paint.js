// Canvases and the colours of the page, as its style names them.

import { element } from "/page/dom.js";

export const SMALL = "11px system-ui, sans-serif";
export const MONO = "ui-monospace, 'DejaVu Sans Mono', monospace";

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

// Where a value lies between limits, from 0 to 1.
export const shareOf = (value, [low, high]) => {
  if (value > high || value < low) return value > high ? 1 : 0;
  return high > low ? (value - low) / (high - low) : 0.5;
};

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

// A line through places, or round them.
export function outline(context, places, { stroke, dash = [], width = 1, isClosed = false }) {
  context.beginPath();
  for (const [x, y] of places) context.lineTo(x, y);
  if (isClosed) context.closePath();
  context.setLineDash(dash);
  context.lineWidth = width;
  context.strokeStyle = color(stroke);
  context.stroke();
  context.setLineDash([]);
}

// Texts that are read downwards: of each place, from a height on.
export function downwards(context, text, x, y, dy) {
  context.save();
  context.translate(x, y);
  context.rotate(Math.PI / 2);
  context.fillText(text, 0, dy);
  context.restore();
}
