// Arithmetic of a map: where points lie, which one is nearest, and what a lasso becomes. Pure.

import { conditions } from "/page/narrow.js";

const SAMPLE = 20_000; // points that the first view is fitted to
const FAR = 1.8; // beyond so many times the middle 98%, a few points lie far out
const MAX_CORNERS = 48;
const MAX_DIGITS = 9; // of a float32

// The box that the first view shows: all points, or all but the few that lie far out.
export function fitBox(points) {
  const n = points.length / 2;
  const step = Math.max(1, Math.floor(n / SAMPLE));
  return [0, 1].flatMap((axis) => {
    const sample = [];
    for (let i = 0; i < n; i += step) {
      const value = points[2 * i + axis];
      if (Number.isFinite(value)) sample.push(value);
    }
    return limits(Float32Array.from(sample).sort(), points, axis);
  });
}

function limits(sample, points, axis) {
  if (!sample.length) return [-1, 1];
  const middle = [0.01, 0.99].map((share) => sample[Math.floor(share * (sample.length - 1))]);
  const centre = (middle[0] + middle[1]) / 2;
  const reach = ((middle[1] - middle[0]) / 2) * FAR;
  let [low, high] = [Infinity, -Infinity];
  for (let i = axis; i < points.length; i += 2) {
    const value = points[i];
    if (value < low && value !== -Infinity) low = value;
    if (value > high && value !== Infinity) high = value;
  }
  if (reach > 0) {
    low = Math.max(low, centre - reach);
    high = Math.min(high, centre + reach);
  }
  const margin = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

// The row nearest to a place, less than `radius` pixels away, and -1 where there is none. `scale` is
// pixels per unit of each axis; `isShown` says which rows count. A million points take about 1.5 ms,
// less than drawing them.
export function nearest(points, [x, y], [scaleX, scaleY], radius, isShown) {
  let [best, found] = [radius * radius, -1];
  for (let i = 0, n = points.length / 2; i < n; i += 1) {
    const a = (points[2 * i] - x) * scaleX;
    const b = (points[2 * i + 1] - y) * scaleY;
    const distance = a * a + b * b;
    if (distance < best && isShown(i)) [best, found] = [distance, i];
  }
  return found;
}

// Twice the area of the triangle of a corner and the two beside it.
function area(corners, i) {
  const [[ax, ay], [bx, by], [cx, cy]] = [-1, 0, 1].map((by) =>
    corners.at((i + by) % corners.length),
  );
  return Math.abs((bx - ax) * (cy - ay) - (cx - ax) * (by - ay));
}

// A number with as many digits as `step` needs, the size of a pixel.
function shortNumber(value, step) {
  const digits = Math.ceil(Math.log10(Math.max(Math.abs(value), step) / step)) + 1;
  return String(Number(value.toPrecision(Math.max(1, Math.min(MAX_DIGITS, digits)))));
}

// The text of the polygon that a path of pixels becomes; null where it does not fit in `room`
// characters. Corners that change its area least are left out first (Visvalingam and Whyatt, 1993).
export function polygonText(path, place, [stepX, stepY], room) {
  const cornerText = (corner) => {
    const [x, y] = place(corner);
    return `${shortNumber(x, stepX)},${shortNumber(y, stepY)}`;
  };
  const corners = [...path];
  while (corners.length >= 3) {
    const text = corners.length <= MAX_CORNERS ? corners.map(cornerText).join(" ") : null;
    if (text !== null && text.length <= room) return text;
    const areas = corners.map((_, i) => area(corners, i));
    corners.splice(areas.indexOf(Math.min(...areas)), 1);
  }
  return null;
}

// The corners of the polygons that a filter has on a map.
export function polygonsOf(filter, name) {
  const found = filter.matchAll(new RegExp(`inside\\(\\s*${name}\\s*,\\s*["']([^"']*)["']`, "g"));
  return [...found].map(([, text]) =>
    text
      .trim()
      .split(/\s+/)
      .map((corner) => corner.split(",").map(Number)),
  );
}

// The filter without the polygon that a lasso put at its end.
export const withoutLasso = (filter, name) =>
  filter.replace(new RegExp(`(^|\\s+and\\s+)inside\\(${name}, "[^"]*"\\)\\s*$`), "").trim();

// The filter with a polygon instead of the last one.
export const withLasso = (filter, name, polygon) =>
  [...conditions(withoutLasso(filter, name)), `inside(${name}, "${polygon}")`].join(" and ");
