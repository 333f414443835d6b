// Draws a map: an own loop over the raw coordinates, which at millions of points takes a few
// hundredths of a second. Of many points it shows their density, of few each one as a disc; a
// pixel has the mean colour of its points.

import { element, svg } from "/page/dom.js";
import { colorOf } from "/page/paint.js";

const FEW = 30_000; // points in sight that are drawn as discs
const MAX_RATIO = 2;

export class Plot {
  constructor() {
    this.canvas = element("canvas", { tabIndex: 0 });
    this.over = svg("svg", { class: "over picture" }); // marks, drawn without the points
    this.frame = element("div.map-frame", this.canvas, this.over);
    this.points = new Float32Array(0);
    this.levels = null; // a colour's number for each row
    this.mask = null; // bits of the rows of the filter; null: all
    this.colors = [];
    this.isCross = (_level) => false; // whether points of a level are crosses, not discs
    this.few = [new Uint32Array(FEW), new Uint32Array(FEW)]; // rows of discs: faint, strong
    this.box = [-1, 1, -1, 1]; // what zoom 1 shows: x0, x1, y0, y1
    this.view = { x: 0, y: 0, zoom: 1 };
    this.marks = () => []; // what lies over the points
    this.inSight = 0;
    this.request = 0;
    this.timer = 0;
    this.onRest = () => {};
    this.onPaint = () => {};
    new ResizeObserver(() => this.resize()).observe(this.frame);
  }

  get n() {
    return this.points.length / 2;
  }

  place(points, box) {
    this.points = points;
    this.box = box;
  }

  // Pixels for each unit of the axes.
  get scale() {
    const [x0, x1, y0, y1] = this.box;
    const { zoom } = this.view;
    return [(zoom * this.width) / (x1 - x0), (zoom * this.height) / (y1 - y0)];
  }

  placeOf([x, y]) {
    const [sx, sy] = this.scale;
    return [this.width / 2 + (x - this.view.x) * sx, this.height / 2 - (y - this.view.y) * sy];
  }

  pointAt(/** @type {number[]} */ [px, py]) {
    const [sx, sy] = this.scale;
    return [this.view.x + (px - this.width / 2) / sx, this.view.y - (py - this.height / 2) / sy];
  }

  pointOf(row) {
    return this.points.subarray(2 * row, 2 * row + 2);
  }

  isShown = (row) => this.mask === null || ((this.mask[row >> 3] >> (row & 7)) & 1) === 1;

  // The view of all points.
  get fitted() {
    const [x0, x1, y0, y1] = this.box;
    return { x: (x0 + x1) / 2, y: (y0 + y1) / 2, zoom: 1 };
  }

  fit() {
    this.look(this.fitted);
  }

  pan(dx, dy) {
    const [sx, sy] = this.scale;
    this.look({ ...this.view, x: this.view.x - dx / sx, y: this.view.y + dy / sy });
  }

  // Zoom so that what is at a place stays there.
  zoomAt(factor, /** @type {number[]} */ place = [this.width / 2, this.height / 2]) {
    const [x, y] = this.pointAt(place);
    const zoom = Math.min(1e5, Math.max(0.1, this.view.zoom * factor));
    const kept = this.view.zoom / zoom;
    this.look({ x: x + (this.view.x - x) * kept, y: y + (this.view.y - y) * kept, zoom });
  }

  look(view) {
    this.view = view;
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.onRest(), 180);
  }

  resize() {
    const { clientWidth, clientHeight } = this.frame;
    if (!clientWidth || !clientHeight) return;
    if (clientWidth === this.width && clientHeight === this.height) return;
    this.width = clientWidth;
    this.height = clientHeight;
    this.paint();
  }

  // Draw at the next frame.
  draw() {
    if (this.request) return;
    this.request = requestAnimationFrame(() => {
      this.request = 0;
      this.paint();
    });
  }

  paint() {
    if (!this.width) return;
    const ratio = Math.min(MAX_RATIO, devicePixelRatio || 1);
    const [w, h] = [this.width, this.height].map((size) => Math.round(size * ratio));
    if (this.canvas.width !== w || this.canvas.height !== h) {
      Object.assign(this.canvas, { width: w, height: h });
      this.sums = new Float32Array(4 * w * h); // red, green, blue, weight of each pixel
      this.faint = new Float32Array(w * h); // points that the filter leaves out
      this.image = new ImageData(w, h);
    }
    const [others, strong] = this.count(w, h, ratio);
    if (strong <= FEW) this.stampStrong(strong, w, h, ratio);
    if (others <= FEW) this.stampFaint(others, w, h, ratio);
    this.colour(strong <= FEW);
    this.inSight = strong;
    // pixels that a loop wrote stay in main memory: the processor of graphics has nothing to add
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    context.putImageData(this.image, 0, 0);
    this.paintMarks();
    this.onPaint();
  }

  paintMarks() {
    if (this.width) this.over.replaceChildren(...this.marks());
  }

  // Where coordinates lie in the picture: x * sx + ox, oy - y * sy.
  affine(w, h, ratio) {
    const [sx, sy] = this.scale.map((size) => size * ratio);
    return [sx, sy, w / 2 - this.view.x * sx, h / 2 + this.view.y * sy];
  }

  // Add every point to its pixel. Returns how many are in sight, faint ones and strong ones.
  count(w, h, ratio) {
    const { points, mask, sums, faint } = this;
    const add = this.adder();
    const [sx, sy, ox, oy] = this.affine(w, h, ratio);
    const [otherRows, rows] = this.few;
    let [strong, others] = [0, 0];
    sums.fill(0);
    faint.fill(0);
    for (let i = 0, end = points.length / 2; i < end; i += 1) {
      const x = points[2 * i] * sx + ox;
      const y = oy - points[2 * i + 1] * sy;
      if (!(x >= 0 && x < w && y >= 0 && y < h)) continue; // or NaN
      const pixel = (y | 0) * w + (x | 0);
      if (mask !== null && ((mask[i >> 3] >> (i & 7)) & 1) === 0) {
        if (others < FEW) otherRows[others] = i;
        others += 1;
        faint[pixel] += 1;
        continue;
      }
      if (strong < FEW) rows[strong] = i;
      strong += 1;
      add(pixel, i, 1);
    }
    return [others, strong];
  }

  // Adds a row to a pixel, of which it covers a part.
  adder() {
    const { levels, sums, colors } = this;
    const [red, green, blue, weights] = colors;
    return (pixel, row, cover) => {
      const level = levels === null ? 0 : levels[row];
      const weight = weights[level] * cover;
      const at = 4 * pixel;
      sums[at] += red[level] * weight;
      sums[at + 1] += green[level] * weight;
      sums[at + 2] += blue[level] * weight;
      sums[at + 3] += weight;
    };
  }

  // Draw few points as discs, the larger the fewer there are; `add(pixel, row, cover)` for each
  // pixel of a disc.
  stamp(rows, n, w, h, ratio, add) {
    const { points } = this;
    const [sx, sy, ox, oy] = this.affine(w, h, ratio);
    const radius = ratio * Math.max(1.3, Math.min(4.5, 7 - 1.3 * Math.log10(n + 1)));
    const [disc, cross] = [discOf(radius), crossOf(radius)];
    const crosses = this.levels && Array.from({ length: 256 }, (_, level) => this.isCross(level));
    for (let k = 0; k < n; k += 1) {
      const i = rows[k];
      const x = Math.floor(points[2 * i] * sx + ox);
      const y = Math.floor(oy - points[2 * i + 1] * sy);
      for (const [dx, dy, cover] of crosses?.[this.levels[i]] ? cross : disc) {
        const [px, py] = [x + dx, y + dy];
        if (px >= 0 && px < w && py >= 0 && py < h) add(py * w + px, i, cover);
      }
    }
  }

  stampStrong(n, ...size) {
    this.sums.fill(0);
    this.stamp(this.few[1], n, ...size, this.adder());
  }

  stampFaint(n, ...size) {
    const { faint } = this;
    faint.fill(0);
    this.stamp(this.few[0], n, ...size, (pixel, _, cover) => {
      faint[pixel] = Math.max(faint[pixel], cover);
    });
  }

  // The sums as pixels: the mean colour, the more solid the more points there are.
  colour(isFew) {
    const { sums, faint } = this;
    const pixels = new Uint32Array(this.image.data.buffer);
    const [r, g, b] = colorOf("--unknown");
    const grey = (b << 16) | (g << 8) | r;
    let most = 1;
    for (let at = 3; at < sums.length; at += 4) if (sums[at] > most) most = sums[at];
    const tone = 0.7 / Math.log1p(most);
    for (let p = 0, at = 0; p < pixels.length; p += 1, at += 4) {
      const weight = sums[at + 3];
      if (weight > 0) {
        const share = isFew ? 1 - Math.exp(-2 * weight) : 0.3 + tone * Math.log1p(weight);
        const red = (sums[at] / weight + 0.5) | 0;
        const green = (sums[at + 1] / weight + 0.5) | 0;
        const blue = (sums[at + 2] / weight + 0.5) | 0;
        pixels[p] = ((255 * Math.min(1, share)) << 24) | (blue << 16) | (green << 8) | red;
      } else if (faint[p] > 0) {
        const cover = Math.min(1, faint[p]);
        const share = Math.min(0.34, 0.2 * cover + 0.03 * Math.log1p(faint[p]));
        pixels[p] = ((255 * share) << 24) | grey;
      } else pixels[p] = 0;
    }
  }
}

// The same of a cross that is a little wider: another sign beside another colour.
const crossOf = (radius) =>
  discOf(1.35 * radius).filter(
    ([x, y]) => Math.abs(Math.abs(x) - Math.abs(y)) <= Math.max(1, radius / 4),
  );

// The pixels of a disc: their offsets, and how much of each it covers.
function discOf(radius) {
  const reach = Math.ceil(radius);
  const found = [];
  for (let dy = -reach; dy <= reach; dy += 1) {
    for (let dx = -reach; dx <= reach; dx += 1) {
      const cover = Math.min(1, radius + 0.5 - Math.hypot(dx, dy));
      if (cover > 0) found.push([dx, dy, cover]);
    }
  }
  return found;
}
