// Arcs above the tokens of a trace: the strongest edges of its attention graph in a layer.

import { getJson } from "/page/api.js";
import { bar, canvasOf, color, countText, element, input, numberText, soft } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { headParts } from "/page/heads.js";
import { shortText, textOfToken } from "/page/picture.js";
import { change, state } from "/page/state.js";

const DEFAULT_THRESHOLD = 0.1;
const MIN_STEP = 11; // pixels a token
const MAX_WIDTH = 30_000; // browsers cut wider pictures

// Of the state; a change of it draws the tab again.
export const reads = ["row", "layer", "edge", "first", "head"];

export async function showAttention(panel, base, store, row) {
  const layers = allLayers(store);
  if (!layers.length) {
    panel.replaceChildren(soft("this store has no attn_mean, attn_diag or attn_colsum"));
    return;
  }
  const common = store.attention.length ? store.attention : layers;
  const layer =
    state.layer === ""
      ? layers.indexOf(common[common.length >> 1])
      : Math.min(layers.length - 1, Math.max(0, Number(state.layer) || 0));
  const at = store.attention.indexOf(layers[layer]);
  const threshold = state.edge === "" ? DEFAULT_THRESHOLD : Number(state.edge) || 0;
  const skip = state.first !== "1";
  const of = { threshold, skip_first: skip ? 1 : 0 };
  const [trace, edges] = await Promise.all([
    getJson(`${base}/trace/${row}`),
    at < 0 ? null : getJson(`${base}/trace/${row}/attention/${at}`, of),
  ]);
  const width = panel.clientWidth - 30;
  const heads = await headParts(base, store, row, trace, layers[layer], width, (number) =>
    change({ layer: layers.indexOf(number) }),
  );
  const toEdge = (event) => change({ edge: event.target.value });
  const controls = bar(
    element(
      "label",
      {},
      `layer ${layers[layer]} `,
      input("range", "layer", (event) => change({ layer: event.target.value }), {
        "aria-valuetext": `layer ${layers[layer]}`,
        min: 0,
        max: layers.length - 1,
        value: layer,
      }),
    ),
    edges &&
      element(
        "label",
        {},
        `at least ${threshold} `,
        input("range", "least weight of an edge", toEdge, {
          min: 0,
          max: 1,
          step: 0.01,
          value: threshold,
        }),
      ),
    edges &&
      element(
        "label",
        {},
        input(
          "checkbox",
          "without the first token",
          (event) => change({ first: event.target.checked ? "" : "1" }),
          { checked: skip },
        ),
        " without the first token",
      ),
  );
  const body = [element("h2", { dir: "auto" }, trace.texts.trace_id), controls];
  if (edges) body.push(...arcs(trace, edges, width));
  else if (store.attention.length) body.push(soft(`attn_mean has no layer ${layers[layer]}`));
  panel.replaceChildren(...body, ...heads);
}

// As the model numbers them: heads may have been kept of more layers than their mean.
export const allLayers = ({ attention, heads }) =>
  [...new Set([...attention, ...Object.values(heads).flat()])].sort((a, b) => a - b);

function arcs(trace, edges, width) {
  const n = edges.weights.length;
  const note = soft(
    n
      ? `the ${n} strongest of ${edges.n_above} edges, mean over heads: an arc joins a token with one before it that it attends to, the stronger the more`
      : "no edge is that strong: move the threshold to the left",
  );
  const nShown = Math.floor(MAX_WIDTH / MIN_STEP);
  if (trace.tokens.length > nShown)
    note.append(`; the first ${countText(nShown)} tokens are drawn`);
  return [element("div", { className: "wide" }, draw(trace, edges, width)), note];
}

function draw(trace, edges, place) {
  const labels = trace.tokens.map((_, t) => shortText(trace, t));
  const n = labels.length;
  const step = Math.max(MIN_STEP, Math.min(60, Math.floor(place / Math.max(1, n))));
  const reach = edges.queries.reduce((most, query, i) => Math.max(most, query - edges.keys[i]), 1);
  const tall = Math.min(320, Math.max(60, (reach * step) / 2 + 20));
  const width = Math.min(MAX_WIDTH, Math.max(place, n * step));
  const [canvas, context] = canvasOf(width, tall + 100);
  canvas.style.maxWidth = "none";
  const x = (i) => (i + 0.5) * step;
  const [red, green, blue] = color("--heat").split(/\s+/).map(Number);
  const paint = (over) => {
    context.clearRect(0, 0, width, tall + 100);
    for (let i = edges.weights.length - 1; i >= 0; i -= 1) {
      const [query, key, weight] = [edges.queries[i], edges.keys[i], edges.weights[i]];
      const isOver = over < 0 || query === over || key === over;
      context.strokeStyle = `rgba(${red},${green},${blue},${isOver ? 0.15 + 0.85 * weight : 0.06})`;
      context.lineWidth = 0.5 + 3.5 * weight;
      context.beginPath();
      context.ellipse(
        (x(query) + x(key)) / 2,
        tall,
        (x(query) - x(key)) / 2,
        ((query - key) / reach) * (tall - 8),
        0,
        Math.PI,
        2 * Math.PI,
      );
      context.stroke();
    }
    context.font = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
    for (let i = 0; i < n && x(i) < width; i += 1) {
      context.fillStyle = color(i === over ? "--mark" : i < trace.prompt_len ? "--soft" : "--ink");
      context.save();
      context.translate(x(i) + 4, tall + 6);
      context.rotate(Math.PI / 2);
      context.fillText(labels[i], 0, 8);
      context.restore();
    }
  };
  paint(-1);
  explore(canvas, {
    nx: n,
    ny: 1,
    label: `attention between ${n} tokens; arrow keys walk through them`,
    cellAt: (px) => [Math.floor(px / step), 0],
    placeOf: (i) => [x(i), tall],
    textOf: (i) => {
      const lines = edges.queries.flatMap((query, e) =>
        query === i || edges.keys[e] === i
          ? [
              `${textOfToken(trace, query)} → ${textOfToken(trace, edges.keys[e])}  ${numberText(edges.weights[e])}`,
            ]
          : [],
      );
      return [`token ${i} ${textOfToken(trace, i)}`, ...lines.slice(0, 10)].join("\n");
    },
    onCell: paint,
  });
  return canvas;
}
