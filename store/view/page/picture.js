// Numbers as a picture of cells: tokens by layers or heads, layers by heads, ranks by ranks.

import { element, numberText, svg, wide } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { colorOf, shareOf } from "/page/paint.js";
import { downwards, drawing, MONO, rect, text } from "/page/plot.js";

export const LEFT = 38; // pixels for the names of lines
const BOTTOM = 18;
const TEXTS = 84; // pixels for the texts of tokens below
const MAX_COLUMNS = 8000; // more than a screen shows, and a small part of what a browser draws
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

export const textOfToken = (/** @type {Trace} */ trace, t) =>
  trace.token_texts ? JSON.stringify(trace.token_texts[t]) : `id ${trace.tokens[t] ?? "–"}`;

export const shortText = (/** @type {Trace} */ trace, t) => {
  const text = (trace.token_texts ? trace.token_texts[t] : String(trace.tokens[t] ?? "")) ?? "";
  return text.trim() === "" ? "␣" : text.trim().slice(0, 12);
};

// nx columns and ny lines, the first line below, of cells of `size` pixels; levelOf(column, line):
// from 0 to 1, or NaN; names: of the lines, of which `chosen` stands out; bottom: pixels left below.
// textOf, choose: of a column and a line, as in `explore`.
export function cells(nx, ny, [across, tall], levelOf, looks) {
  const { names, chosen, label, textOf, choose, bottom = 0 } = looks;
  const [width, height] = [across * nx, tall * ny];
  const nameOf = (line) => {
    const fill = line === chosen ? "var(--ink)" : "var(--soft)";
    const look = { "text-anchor": "end", fill };
    return text(LEFT - 6, height - (line + 0.5) * tall + 4, names[line], look);
  };
  const every = Math.ceil(14 / tall);
  const named = [...names.keys()].filter((line) => line % every === 0);
  const frame = rect(LEFT - 0.5, 0.5, width, Math.max(0, height - 1), "none");
  frame.setAttribute("stroke", "var(--line)"); // else low numbers look like no picture
  const picture = drawing(LEFT + width + 1, height + bottom, frame, ...named.map(nameOf));
  if (nx && ny) {
    const whole = { preserveAspectRatio: "none", "image-rendering": "pixelated" };
    const href = pixels(nx, ny, levelOf);
    picture.prepend(svg("image", { x: LEFT, y: 0, width, height, href, ...whole }));
  }
  explore(picture, {
    nx,
    ny,
    label,
    cellAt: (x, y) => [Math.floor((x - LEFT) / across), Math.floor(y / tall)],
    placeOf: (i, j) => [LEFT + (i + 0.5) * across, (j + 0.5) * tall],
    textOf: (i, j) => textOf(i, ny - 1 - j),
    choose: choose && ((i, j) => choose(i, ny - 1 - j)),
  });
  return picture;
}

// An image of one pixel for each cell.
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
  return canvas.toDataURL();
}

// Tokens from left to right. values: (tokens, lines); names: of the lines; between: two numbers
// that the colours span, or two of each line; what(line): for the tip.
export function picture(
  /** @type {Trace} */ trace,
  width,
  { values, names, between, what, label, choose = undefined },
) {
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
  const level = (column, line) => shareOf(valueAt(column, line), limitsOf(line));
  const made = cells(nColumns, nLines, [across, tall], level, {
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
  const height = tall * nLines;
  const placeOf = (t) => LEFT + (t * across) / each;
  made.append(
    ...(hasTexts
      ? textsBelow(trace, nTokens, (t) => placeOf(t + 0.5), height)
      : numbersBelow(nTokens, placeOf, height)),
  );
  if (trace.prompt_len > 0 && trace.prompt_len < nTokens)
    made.append(rect(placeOf(trace.prompt_len) - 1, 0, 2, height, "var(--ink)"));
  const pooled = each > 1 ? `a column is the highest of ${each} tokens` : "";
  return wide(made, width, pooled);
}

const textsBelow = (/** @type {Trace} */ trace, nTokens, placeOf, height) =>
  Array.from({ length: nTokens }, (_, t) =>
    downwards(placeOf(t), height + 6, shortText(trace, t), {
      fill: t < trace.prompt_len ? "var(--soft)" : "var(--ink)",
      "font-family": MONO,
    }),
  );

function numbersBelow(nTokens, placeOf, height) {
  const step = placeOf(1) - placeOf(0);
  const every = Math.max(1, Math.min(Math.ceil(nTokens / 8), Math.ceil(150 / step)));
  const shown = Array.from({ length: Math.ceil(nTokens / every) }, (_, i) => i * every);
  return shown.map((t) => text(placeOf(t), height + 14, t));
}
