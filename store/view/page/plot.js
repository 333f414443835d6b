// Drawings: marks between axes, in SVG.

import { numberText, svg } from "/page/dom.js";

const FONT = { "font-family": "system-ui, sans-serif", "font-size": 11 };
export const MONO = "ui-monospace, 'DejaVu Sans Mono', monospace";
const NOT_IN_XML = /\p{Cc}|\ufffe|\uffff/gu;

export const drawing = (width, height, ...children) =>
  svg(
    "svg",
    { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, ...FONT },
    ...children,
  );

export const text = (x, y, said, looks = {}) => {
  const readable = String(said).toWellFormed().replaceAll(NOT_IN_XML, "·");
  return svg("text", { x, y, fill: "var(--soft)", ...looks }, readable);
};

// A text that is read downwards.
export const downwards = (x, y, said, looks = {}) =>
  text(0, 0, said, { transform: `translate(${x} ${y}) rotate(90)`, dy: 4, ...looks });

export const rect = (x, y, width, height, fill) => svg("rect", { x, y, width, height, fill });

export const line = (places, stroke, looks = {}) =>
  svg("polyline", { points: places.join(" "), fill: "none", stroke, ...looks });

export const dot = (/** @type {number[]} */ [cx, cy], r, looks = {}) =>
  svg("circle", { cx, cy, r, fill: "var(--mark)", ...looks });

// Where the numbers between two others lie, from one pixel to another; `bend` is the logarithm,
// say.
export function axis([low, high], [from, to], ticks, textOf = numberText, bend = (value) => value) {
  const share = (value) => (bend(value) - bend(low)) / (bend(high) - bend(low) || 1);
  return { from, to, ticks, textOf, at: (value) => from + share(value) * (to - from) };
}

// A drawing with an axis below, and one at the left whose ticks are lines across.
export function plot(width, height, x, y, ...marks) {
  const across = y.ticks.flatMap((tick) => {
    const ends = [x.from, x.to].map((end) => [end, y.at(tick)]);
    const name = text(x.from - 6, y.at(tick) + 4, y.textOf(tick), { "text-anchor": "end" });
    return [line(ends, "var(--line)"), name];
  });
  const below = x.ticks.map((tick) => {
    const at = x.at(tick);
    const anchor = at > width - 20 ? "end" : at < x.from + 1 ? "start" : "middle";
    return text(at, y.from + 14, x.textOf(tick), { "text-anchor": anchor });
  });
  return drawing(width, height, ...across, ...below, ...marks);
}
