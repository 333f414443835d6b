// Arcs above the tokens of a trace: the strongest edges of its attention graph in a layer.

import { getJson } from "/page/api.js";
import {
  bar,
  checkbox,
  countText,
  heading,
  numberOf as asNumber,
  numberText,
  pick,
  slider,
  soft,
  svg,
  wide,
} from "/page/dom.js";
import { explore } from "/page/explore.js";
import { headParts } from "/page/heads.js";
import { shortText, textOfToken } from "/page/picture.js";
import { colorOf } from "/page/paint.js";
import { downwards, drawing, MONO } from "/page/plot.js";
import { change, numberOf, oneOf, state } from "/page/state.js";

const DEFAULT_THRESHOLD = 0.1;
const MIN_STEP = 11; // pixels a token
const MAX_WIDTH = 30_000; // more texts of tokens would be slow

export async function showAttention(/** @type {Shown} */ { base, store, row, width }) {
  const layers = allLayers(store);
  if (!layers.length) return [soft("this store has no attn_mean, attn_diag or attn_colsum")];
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
  return [
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
  ];
}

// As the model numbers them: heads may have been kept of more layers than their mean.
export const allLayers = (/** @type {Store} */ { attention, heads, head_edges: edges }) =>
  [...new Set([...attention, ...Object.values(heads).flat(), ...(edges?.layers ?? [])])].sort(
    (a, b) => a - b,
  );

function arcs(/** @type {Trace} */ trace, /** @type {Edges} */ edges, width, head, isPart) {
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

function draw(/** @type {Trace} */ trace, /** @type {Edges} */ edges, place) {
  const { queries, keys } = edges;
  const weights = edges.weights.map((weight) => Math.min(1, asNumber(weight))); // Infinity is none
  const n = trace.tokens.length;
  const step = Math.max(MIN_STEP, Math.min(60, Math.floor(place / Math.max(1, n))));
  const reach = queries.reduce((most, query, i) => Math.max(most, query - keys[i]), 1);
  const tall = Math.min(320, Math.max(60, (reach * step) / 2 + 20));
  const width = Math.min(MAX_WIDTH, Math.max(place, n * step));
  const x = (i) => (i + 0.5) * step;
  const arcs = [...weights.keys()].map((e) => {
    const [from, to] = [x(keys[e]), x(queries[e])];
    const up = ((queries[e] - keys[e]) / reach) * (tall - 8);
    const d = `M ${from} ${tall} A ${(to - from) / 2} ${up} 0 0 1 ${to} ${tall}`;
    return svg("path", { d, "stroke-width": 0.5 + 3.5 * weights[e] });
  });
  const nShown = Math.min(n, Math.floor(width / step));
  const names = Array.from({ length: nShown }, (_, i) =>
    downwards(x(i), tall + 6, shortText(trace, i), { "font-family": MONO, "font-size": 12 }),
  );
  const paint = (over) => {
    arcs.forEach((arc, e) => {
      const isOver = over < 0 || queries[e] === over || keys[e] === over;
      arc.setAttribute("stroke-opacity", isOver ? 0.15 + 0.85 * weights[e] : 0.06);
    });
    names.forEach((name, i) => {
      const usual = i < trace.prompt_len ? "--soft" : "--ink";
      name.setAttribute("fill", `var(${i === over ? "--mark" : usual})`);
    });
  };
  const strong = { fill: "none", stroke: `rgb(${colorOf("--heat")})` };
  const picture = drawing(width, tall + 100, svg("g", strong, ...arcs.toReversed()), ...names);
  paint(-1);
  const textOf = (e) =>
    `${textOfToken(trace, queries[e])} → ${textOfToken(trace, keys[e])}  ${numberText(weights[e])}`;
  explore(picture, {
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
  return picture;
}
