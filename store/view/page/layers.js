// Tokens by layers of a trace, as a picture that the server reduced from the states.

import { getArray, getJson } from "/page/api.js";
import { canvasOf, color, element, numberText, showTip } from "/page/dom.js";
import { mapAdvice, mapOfLayer } from "/page/map.js";
import { change, state } from "/page/state.js";

const NAMES = {
  norm: "norm of the state",
  cosine: "cosine to the layer below",
  lens_entropy: "entropy of the logit lens",
};
const LEFT = 34;
const BOTTOM = 18;
const MAX_COLUMNS = 8000; // browsers cut a canvas at some 16,000 to 65,000 pixels

export async function showLayers(panel, base, store, row) {
  if (!store.pictures.length) {
    panel.replaceChildren(
      element("p", { className: "soft" }, "this store has no hidden_states and no lens_entropy"),
    );
    return;
  }
  const what = store.pictures.includes(state.what) ? state.what : store.pictures[0];
  const [
    trace,
    {
      values,
      shape: [nTokens, nLayers],
    },
  ] = await Promise.all([
    getJson(`${base}/trace/${row}`),
    getArray(`${base}/trace/${row}/layers/${what}`),
  ]);
  const select = element(
    "select",
    {
      "aria-label": "what the picture shows",
      onchange: (event) => change({ what: event.target.value }),
    },
    ...store.pictures.map((name) =>
      element("option", { value: name, selected: name === what }, NAMES[name] ?? name),
    ),
  );
  const [low, high] = limits(values);
  const legend = element(
    "span",
    { className: "legend full" },
    numberText(low),
    element("i"),
    numberText(high),
  );
  const each = Math.max(1, Math.ceil(nTokens / MAX_COLUMNS)); // tokens a column
  const nColumns = Math.ceil(nTokens / each);
  const cell = Math.max(
    1,
    Math.min(24, Math.floor((panel.clientWidth - LEFT - 30) / Math.max(1, nColumns))),
  );
  const tall = Math.max(2, Math.min(22, Math.floor(420 / Math.max(1, nLayers))));
  const [canvas, context] = canvasOf(LEFT + cell * nColumns, tall * nLayers + BOTTOM);
  canvas.style.maxWidth = "none";
  context.imageSmoothingEnabled = false;
  if (nTokens)
    context.drawImage(
      pixels(values, nTokens, nLayers, each, low, high),
      LEFT,
      0,
      cell * nColumns,
      tall * nLayers,
    );
  axes(context, store, nTokens, nLayers, cell / each, tall, trace.prompt_len);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const t = Math.floor(((event.clientX - box.left - LEFT) * each) / cell);
    const l = nLayers - 1 - Math.floor((event.clientY - box.top) / tall);
    if (t < 0 || t >= nTokens || l < 0 || l >= nLayers) {
      showTip("");
      return;
    }
    const text = trace.token_texts
      ? JSON.stringify(trace.token_texts[t])
      : `id ${trace.tokens[t] ?? "–"}`;
    showTip(
      `token ${t} ${text}\nlayer ${store.layers[l] ?? l}\n${what} ${numberText(values[t * nLayers + l])}`,
      event.clientX,
      event.clientY,
    );
  });
  canvas.addEventListener("pointerleave", () => showTip(""));
  const advice = element("div");
  const toMap = (layer) => {
    const map = mapOfLayer(store, layer);
    if (map) change({ tab: "map", map: map.name, view: "" }, true);
    else advice.replaceChildren(mapAdvice(store, layer));
  };
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const l = nLayers - 1 - Math.floor((event.clientY - box.top) / tall);
    if (l >= 0 && l < nLayers) toMap(store.layers[l] ?? l + 1);
  });
  canvas.style.cursor = "pointer";
  const maps = element(
    "select",
    { "aria-label": "map of a layer", onchange: (event) => toMap(Number(event.target.value)) },
    element("option", { value: "", disabled: true, selected: true }, "map of layer …"),
    ...store.layers.map((layer) =>
      element("option", { value: layer }, `${layer}${mapOfLayer(store, layer) ? "" : " (none yet)"}`),
    ),
  );
  const frame = element("div", {}, canvas);
  frame.style.overflowX = "auto";
  panel.replaceChildren(
    element("h2", {}, trace.texts.trace_id),
    element("div", { className: "bar" }, select, legend, store.layers.length ? maps : ""),
    frame,
    element(
      "p",
      { className: "soft" },
      "tokens from left to right, layers from below; the line is where the answer begins; " +
        "a click leads to the map of the layer",
    ),
    advice,
  );
}

// One pixel for each token and layer, the lowest layer below; of many tokens every n-th.
function pixels(values, nTokens, nLayers, each, low, high) {
  const nColumns = Math.ceil(nTokens / each);
  const image = new ImageData(nColumns, nLayers);
  const ink = color("--heat").split(/\s+/).map(Number);
  for (let column = 0; column < nColumns; column += 1) {
    for (let layer = 0; layer < nLayers; layer += 1) {
      const value = values[column * each * nLayers + layer];
      const at = 4 * ((nLayers - 1 - layer) * nColumns + column);
      const share = high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;
      image.data.set(Number.isFinite(value) ? [...ink, 255 * share] : [128, 128, 128, 70], at);
    }
  }
  const canvas = element("canvas", { width: nColumns, height: nLayers });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// From the 1st to the 99th percentile: one huge norm, as that of the first token, would blank the rest.
function limits(values) {
  const finite = values.filter(Number.isFinite).sort();
  if (!finite.length) return [NaN, NaN];
  return [
    finite[Math.floor(0.01 * (finite.length - 1))],
    finite[Math.ceil(0.99 * (finite.length - 1))],
  ];
}

function axes(context, store, nTokens, nLayers, cell, tall, promptLength) {
  context.fillStyle = color("--soft");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  const every = Math.ceil(14 / tall);
  for (let l = 0; l < nLayers; l += every)
    context.fillText(store.layers[l] ?? l, LEFT - 6, (nLayers - l) * tall - tall / 2 + 4);
  context.textAlign = "left";
  const step = Math.max(1, Math.ceil(nTokens / 8));
  for (let t = 0; t < nTokens; t += step) context.fillText(t, LEFT + t * cell, nLayers * tall + 14);
  if (promptLength > 0 && promptLength < nTokens) {
    context.fillStyle = color("--ink");
    context.fillRect(LEFT + promptLength * cell - 1, 0, 2, nLayers * tall);
  }
}
