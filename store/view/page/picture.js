// Numbers as a picture of cells: tokens by layers or heads, layers by heads, ranks by ranks.

import { element, numberText, wide } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { canvasOf, color, colorOf, downwards, MONO, shareOf, SMALL } from "/page/paint.js";

const LEFT = 38; // pixels for the names of lines
const BOTTOM = 18;
const TEXTS = 84; // pixels for the texts of tokens below
const MAX_COLUMNS = 8000; // browsers cut a canvas at some 16,000 to 65,000 pixels
const MISSING = [128, 128, 128, 70]; // a cell that is NaN

// Numbers from the 1st to the 99th percentile: one huge norm, as that of the first token, would
// blank the rest.
export function limits(values) {
  const finite = values.filter(Number.isFinite).sort();
  if (!finite.length) return [NaN, NaN];
  return [
    finite[Math.floor(0.01 * (finite.length - 1))],
    finite[Math.ceil(0.99 * (finite.length - 1))],
  ];
}

export const textOfToken = (trace, t) =>
  trace.token_texts ? JSON.stringify(trace.token_texts[t]) : `id ${trace.tokens[t] ?? "–"}`;

export const shortText = (trace, t) => {
  const text = (trace.token_texts ? trace.token_texts[t] : String(trace.tokens[t] ?? "")) ?? "";
  return text.trim() === "" ? "␣" : text.trim().slice(0, 12);
};

// nx columns and ny lines, the first line below, of cells of `size` pixels; levelOf(column, line):
// from 0 to 1, or NaN; names: of the lines, of which `chosen` stands out; ground: a colour below
// the cells, which then have no frame. textOf, choose: of a column and a line, as in `explore`.
export function cells(nx, ny, [across, tall], levelOf, looks) {
  const { names = [], chosen, ground, label, textOf, choose, bottom = 0 } = looks;
  const left = names.length ? LEFT : 0;
  const [width, height] = [across * nx, tall * ny];
  const [canvas, context] = canvasOf(left + width + (ground ? 0 : 1), height + bottom);
  if (ground) {
    context.fillStyle = color(ground);
    context.fillRect(left, 0, width, height);
  }
  context.imageSmoothingEnabled = false;
  if (nx && ny) context.drawImage(pixels(nx, ny, levelOf), left, 0, width, height);
  context.strokeStyle = color("--line"); // else low numbers look like no picture
  if (!ground) context.strokeRect(left - 0.5, 0.5, width, height - 1);
  context.font = SMALL;
  context.textAlign = "right";
  for (let line = 0; line < names.length; line += Math.ceil(14 / tall)) {
    context.fillStyle = color(line === chosen ? "--ink" : "--soft");
    context.fillText(names[line], left - 6, height - (line + 0.5) * tall + 4);
  }
  context.textAlign = "left";
  context.fillStyle = color("--soft");
  explore(canvas, {
    nx,
    ny,
    label,
    cellAt: (x, y) => [Math.floor((x - left) / across), Math.floor(y / tall)],
    placeOf: (i, j) => [left + (i + 0.5) * across, (j + 0.5) * tall],
    textOf: (i, j) => textOf(i, ny - 1 - j),
    choose: choose && ((i, j) => choose(i, ny - 1 - j)),
  });
  return { canvas, context, left, height };
}

// One pixel for each cell.
function pixels(nx, ny, levelOf) {
  const image = new ImageData(nx, ny);
  const ink = colorOf("--heat");
  for (let column = 0; column < nx; column += 1) {
    for (let line = 0; line < ny; line += 1) {
      const level = levelOf(column, line);
      const at = 4 * ((ny - 1 - line) * nx + column);
      image.data.set(Number.isNaN(level) ? MISSING : [...ink, 255 * level], at);
    }
  }
  const canvas = element("canvas", { width: nx, height: ny });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

export const levelIn = (value, between) => (Number.isNaN(value) ? value : shareOf(value, between));

// Tokens from left to right. values: (tokens, lines); names: of the lines; between: two numbers
// that the colours span, or two of each line; what(line): for the tip.
export function picture(trace, width, { values, names, between, what, label, choose }) {
  const nLines = names.length;
  const nTokens = nLines ? values.length / nLines : 0;
  const each = Math.max(1, Math.ceil(nTokens / MAX_COLUMNS)); // tokens a column
  const nColumns = Math.ceil(nTokens / each);
  const across = Math.max(1, Math.min(40, Math.floor((width - LEFT) / Math.max(1, nColumns))));
  const tall = Math.max(2, Math.min(24, Math.floor(420 / Math.max(1, nLines))));
  const hasTexts = across >= 12 && each === 1;
  const valueAt = (column, line) => {
    let most = NaN; // of the tokens that a column pools
    for (let t = column * each; t < Math.min(nTokens, (column + 1) * each); t += 1) {
      const value = values[t * nLines + line];
      if (!(value <= most)) most = Number.isNaN(value) ? most : value;
    }
    return most;
  };
  const limitsOf = (line) => (Array.isArray(between[0]) ? between[line] : between);
  const level = (column, line) => levelIn(valueAt(column, line), limitsOf(line));
  const { canvas, context, left, height } = cells(nColumns, nLines, [across, tall], level, {
    names,
    bottom: hasTexts ? TEXTS : BOTTOM,
    label: `${label}${each > 1 ? `, the highest of each ${each}` : ""}; arrow keys walk through its cells`,
    textOf: (column, line) => {
      const t = column * each;
      const part = trace.prompt_len ? (t < trace.prompt_len ? ", prompt" : ", answer") : "";
      const pooled = each > 1 ? ` and ${each - 1} more, the highest` : "";
      return `token ${t} ${textOfToken(trace, t)}${pooled}${part}\n${what(line)} ${numberText(valueAt(column, line))}`;
    },
    choose,
  });
  canvas.style.maxWidth = "none";
  if (hasTexts) drawTexts(context, trace, nTokens, left, across, height);
  else drawNumbers(context, nTokens, left, across / each, height);
  if (trace.prompt_len > 0 && trace.prompt_len < nTokens) {
    context.fillStyle = color("--ink");
    context.fillRect(left + (trace.prompt_len * across) / each - 1, 0, 2, height);
  }
  const pooled = each > 1 ? `a column is the highest of ${each} tokens` : "";
  return wide(canvas, width, pooled);
}

function drawTexts(context, trace, nTokens, left, across, height) {
  context.font = `11px ${MONO}`;
  for (let t = 0; t < nTokens; t += 1) {
    context.fillStyle = color(t < trace.prompt_len ? "--soft" : "--ink");
    downwards(context, shortText(trace, t), left + (t + 0.5) * across, height + 6, 4);
  }
}

function drawNumbers(context, nTokens, left, step, height) {
  const every = Math.max(1, Math.min(Math.ceil(nTokens / 8), Math.ceil(150 / step)));
  for (let t = 0; t < nTokens; t += every) context.fillText(t, left + t * step, height + 14);
}
