// Arcs above the tokens of a trace: the strongest edges of its attention graph in a layer.

import { getJson } from "/page/api.js";
import {
  bar,
  checkbox,
  countText,
  heading,
  numberText,
  pick,
  slider,
  soft,
  wide,
} from "/page/dom.js";
import { explore } from "/page/explore.js";
import { headParts } from "/page/heads.js";
import { canvasOf, color, colorOf, downwards, MONO } from "/page/paint.js";
import { shortText, textOfToken } from "/page/picture.js";
import { change, numberOf, oneOf, state } from "/page/state.js";

const DEFAULT_THRESHOLD = 0.1;
const MIN_STEP = 11; // pixels a token
const MAX_WIDTH = 30_000; // browsers cut wider pictures

export async function showAttention(panel, base, store, row) {
  const layers = allLayers(store);
  if (!layers.length) {
    panel.replaceChildren(soft("this store has no attn_mean, attn_diag or attn_colsum"));
    return;
  }
  const common = store.attention.length ? store.attention : layers;
  const usual = layers.indexOf(common[common.length >> 1]);
  const layer = Math.floor(numberOf("layer", [0, layers.length - 1], usual));
  const { head_edges: ofHeads } = store;
  const numbers = Array.from({ length: ofHeads?.heads ?? 0 }, (_, head) => String(head));
  const head = oneOf("one", numbers, "");
  const at = (head === "" ? store.attention : ofHeads.layers).indexOf(layers[layer]);
  const threshold = numberOf("edge", [0, 1], DEFAULT_THRESHOLD);
  const skip = state.first !== "1";
  const of = { threshold, skip_first: skip ? 1 : 0, ...(head === "" ? {} : { head }) };
  const [trace, edges] = await Promise.all([
    getJson(`${base}/trace/${row}`),
    at < 0 ? null : getJson(`${base}/trace/${row}/attention/${at}`, of),
  ]);
  const width = panel.clientWidth - 30;
  const take = (number, head) =>
    change({ layer: layers.indexOf(number), ...(numbers.length ? { one: head } : {}) });
  const heads = await headParts(base, store, row, trace, layers[layer], width, take);
  const name = `layer ${layers[layer]}`;
  const ofLayers = { "aria-valuetext": name, min: 0, max: layers.length - 1, value: layer };
  const ofWeights = { min: 0, max: 1, step: 0.01, value: threshold };
  const edgeControls = edges
    ? [
        slider(`at least ${threshold}`, "least weight of an edge", ofWeights, (edge) =>
          change({ edge }),
        ),
        checkbox("without the first token", skip, (isOn) => change({ first: isOn ? "" : "1" })),
      ]
    : [];
  const column = head === "" ? "attn_mean" : ofHeads.column;
  const isThere = store.attention.length || head !== "";
  const none = isThere ? [soft(`${column} has no ${name}`)] : [];
  const parts = [
    heading(trace.texts.trace_id),
    bar(
      slider(name, "layer", ofLayers, (layer) => change({ layer })),
      numbers.length > 0 &&
        pick(
          "edges of",
          ["", ...numbers],
          head,
          (one) => change({ one }),
          (one) => (one === "" ? "all heads, mean" : `head ${one}`),
        ),
      ...edgeControls,
    ),
    ...(edges ? arcs(trace, edges, width, head, column === "attn_edges") : none),
    !ofHeads &&
      soft(
        "edges of one head: none is stored; extract --columns default,attn_edges,attn_edge_ends",
      ),
    ...heads,
  ].filter(Boolean);
  panel.replaceChildren(...parts);
}

// As the model numbers them: heads may have been kept of more layers than their mean.
export const allLayers = ({ attention, heads, head_edges: edges }) =>
  [...new Set([...attention, ...Object.values(heads).flat(), ...(edges?.layers ?? [])])].sort(
    (a, b) => a - b,
  );

function arcs(trace, edges, width, head, isPart) {
  const n = edges.weights.length;
  const note = soft(
    n
      ? `the ${n} strongest of ${edges.n_above} edges, ${head === "" ? "mean over heads" : `head ${head}`}: an arc joins a token with one before it that it attends to, the stronger the more`
      : "no edge is that strong: move the threshold to the left",
  );
  const nShown = Math.floor(MAX_WIDTH / MIN_STEP);
  if (isPart) note.append("; stored are those of .05 and more from the prompt's last token on");
  if (trace.tokens.length > nShown)
    note.append(`; the first ${countText(nShown)} tokens are drawn`);
  return [wide(draw(trace, edges, width), width), note];
}

function draw(trace, edges, place) {
  const { queries, keys, weights } = edges;
  const labels = trace.tokens.map((_, t) => shortText(trace, t));
  const n = labels.length;
  const step = Math.max(MIN_STEP, Math.min(60, Math.floor(place / Math.max(1, n))));
  const reach = queries.reduce((most, query, i) => Math.max(most, query - keys[i]), 1);
  const tall = Math.min(320, Math.max(60, (reach * step) / 2 + 20));
  const width = Math.min(MAX_WIDTH, Math.max(place, n * step));
  const [canvas, context] = canvasOf(width, tall + 100);
  canvas.style.maxWidth = "none";
  const x = (i) => (i + 0.5) * step;
  const ink = colorOf("--heat");
  const arc = (query, key, weight, isOver) => {
    context.strokeStyle = `rgba(${ink},${isOver ? 0.15 + 0.85 * weight : 0.06})`;
    context.lineWidth = 0.5 + 3.5 * weight;
    const [across, up] = [(x(query) - x(key)) / 2, ((query - key) / reach) * (tall - 8)];
    context.beginPath();
    context.ellipse((x(query) + x(key)) / 2, tall, across, up, 0, Math.PI, 2 * Math.PI);
    context.stroke();
  };
  const paint = (over) => {
    context.clearRect(0, 0, width, tall + 100);
    for (let i = weights.length - 1; i >= 0; i -= 1)
      arc(queries[i], keys[i], weights[i], over < 0 || queries[i] === over || keys[i] === over);
    context.font = `12px ${MONO}`;
    for (let i = 0; i < n && x(i) < width; i += 1) {
      context.fillStyle = color(i === over ? "--mark" : i < trace.prompt_len ? "--soft" : "--ink");
      downwards(context, labels[i], x(i) + 4, tall + 6, 8);
    }
  };
  paint(-1);
  const textOf = (e) =>
    `${textOfToken(trace, queries[e])} → ${textOfToken(trace, keys[e])}  ${numberText(weights[e])}`;
  explore(canvas, {
    nx: n,
    label: `attention between ${n} tokens; arrow keys walk through them`,
    cellAt: (px) => [Math.floor(px / step), 0],
    placeOf: (i) => [x(i), tall],
    textOf: (i) => {
      const mine = [...weights.keys()].filter((e) => queries[e] === i || keys[e] === i);
      return [`token ${i} ${textOfToken(trace, i)}`, ...mine.slice(0, 10).map(textOf)].join("\n");
    },
    onCell: paint,
  });
  return canvas;
}
