// Tokens by lines, a number in each cell, as a picture: layers, heads, the scores of tokens.

import { canvasOf, color, element, numberText, soft } from "/page/dom.js";
import { explore } from "/page/explore.js";

const BOTTOM = 18;
const TEXTS = 84; // pixels for the texts of tokens below
const MAX_COLUMNS = 8000; // browsers cut a canvas at some 16,000 to 65,000 pixels

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

// Where a value lies between the limits, from 0 to 1.
export const shareOf = (value, [low, high]) =>
  high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;

export const legendOf = ([low, high]) =>
  element("span", { className: "legend full" }, numberText(low), element("i"), numberText(high));

export const textOfToken = (trace, t) =>
  trace.token_texts ? JSON.stringify(trace.token_texts[t]) : `id ${trace.tokens[t] ?? "–"}`;

export const shortText = (trace, t) => {
  const text = (trace.token_texts ? trace.token_texts[t] : String(trace.tokens[t] ?? "")) ?? "";
  return text.trim() === "" ? "␣" : text.trim().slice(0, 12);
};

// values: (tokens, lines), the first line below; names: of the lines; what(line): for the tip.
export function picture(
  trace,
  { values, nTokens, lines, between, what, label, width, choose, left = 34 },
) {
  const nLines = lines.length;
  const each = Math.max(1, Math.ceil(nTokens / MAX_COLUMNS)); // tokens a column
  const nColumns = Math.ceil(nTokens / each);
  const fits = Math.floor((width - left) / Math.max(1, nColumns));
  const cell = Math.max(1, Math.min(40, fits));
  const tall = Math.max(2, Math.min(24, Math.floor(420 / Math.max(1, nLines))));
  const hasTexts = cell >= 12 && each === 1;
  const height = tall * nLines;
  const [canvas, context] = canvasOf(
    left + cell * nColumns + 1,
    height + (hasTexts ? TEXTS : BOTTOM),
  );
  canvas.style.maxWidth = "none";
  context.imageSmoothingEnabled = false;
  if (nTokens && nLines)
    context.drawImage(
      pixels(values, nTokens, nLines, each, between),
      left,
      0,
      cell * nColumns,
      height,
    );
  context.strokeStyle = color("--line"); // else low numbers look like no picture
  context.strokeRect(left - 0.5, 0.5, cell * nColumns, height - 1);
  drawNames(context, lines, left, tall);
  if (hasTexts) drawTexts(context, trace, nTokens, left, cell, height);
  else drawNumbers(context, nTokens, left, cell / each, height);
  if (trace.prompt_len > 0 && trace.prompt_len < nTokens) {
    context.fillStyle = color("--ink");
    context.fillRect(left + (trace.prompt_len * cell) / each - 1, 0, 2, height);
  }
  explore(canvas, {
    nx: nColumns,
    ny: nLines,
    label: `${label}${each > 1 ? `, every ${each}th` : ""}; arrow keys walk through its cells`,
    cellAt: (x, y) => [Math.floor((x - left) / cell), Math.floor(y / tall)],
    placeOf: (i, j) => [left + (i + 0.5) * cell, (j + 0.5) * tall],
    textOf: (i, j) => {
      const [t, line] = [i * each, nLines - 1 - j];
      const part = trace.prompt_len ? (t < trace.prompt_len ? ", prompt" : ", answer") : "";
      return `token ${t} ${textOfToken(trace, t)}${part}\n${what(line)} ${numberText(values[t * nLines + line])}`;
    },
    choose: choose ? (i, j) => choose(i * each, nLines - 1 - j) : undefined,
  });
  const frame = element("div", { className: "wide" }, canvas);
  if (each > 1) frame.append(soft(`one token of each ${each} is drawn`));
  return frame;
}

// One pixel for each token and line, the first line below; of many tokens every n-th.
function pixels(values, nTokens, nLines, each, between) {
  const nColumns = Math.ceil(nTokens / each);
  const image = new ImageData(nColumns, nLines);
  const ink = color("--heat").split(/\s+/).map(Number);
  for (let column = 0; column < nColumns; column += 1) {
    for (let line = 0; line < nLines; line += 1) {
      const value = values[column * each * nLines + line];
      const at = 4 * ((nLines - 1 - line) * nColumns + column);
      const share = shareOf(value, between);
      image.data.set(Number.isFinite(value) ? [...ink, 255 * share] : [128, 128, 128, 70], at);
    }
  }
  const canvas = element("canvas", { width: nColumns, height: nLines });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function drawNames(context, lines, left, tall) {
  context.fillStyle = color("--soft");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  const every = Math.ceil(14 / tall);
  for (let line = 0; line < lines.length; line += every)
    context.fillText(lines[line], left - 6, (lines.length - line) * tall - tall / 2 + 4);
  context.textAlign = "left";
}

function drawTexts(context, trace, nTokens, left, cell, height) {
  context.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
  for (let t = 0; t < nTokens; t += 1) {
    context.fillStyle = color(t < trace.prompt_len ? "--soft" : "--ink");
    context.save();
    context.translate(left + (t + 0.5) * cell, height + 6);
    context.rotate(Math.PI / 2);
    context.fillText(shortText(trace, t), 0, 4);
    context.restore();
  }
}

function drawNumbers(context, nTokens, left, step, height) {
  const every = Math.max(1, Math.min(Math.ceil(nTokens / 8), Math.ceil(150 / step)));
  for (let t = 0; t < nTokens; t += every) context.fillText(t, left + t * step, height + 14);
}
