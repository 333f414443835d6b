// Heads of attention in a trace: of each layer one number a head, and of a layer one a token.

import { getArray } from "/page/api.js";
import { bar, canvasOf, color, element, menu, numberText, own, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { legendOf, limits, picture, shareOf } from "/page/picture.js";
import { change, state } from "/page/state.js";

const MEANINGS = {
  attn_colsum: "attention that each token receives, from those that could attend to it, on average",
  attn_diag: "attention that each token pays to itself",
};
const SUMMARIES = {
  attn_colsum: "share of all attention that goes to the first token",
  attn_diag: "attention to the token itself, mean over the tokens",
};

// The parts for the tab attention; layer: as the model numbers it; onLayer(number): one was chosen.
export async function headParts(base, store, row, trace, layer, width, onLayer) {
  const names = Object.keys(store.heads);
  if (!names.length) return [];
  const first = ["attn_colsum", "attn_diag"].find((name) => names.includes(name)) ?? names[0];
  const name = names.includes(state.head) ? state.head : first;
  const layers = store.heads[name];
  const at = layers.indexOf(layer);
  const path = `${base}/trace/${row}/heads/${encodeURIComponent(name)}`;
  const [summary, inLayer] = await Promise.all([
    getArray(path),
    at < 0 ? null : getArray(path, { layer: at }),
  ]);
  const select = menu("heads by", names, name, (head) => change({ head }));
  const parts = [
    title("heads"),
    bar(element("label", {}, "heads by ", select)),
    ...grid(
      summary,
      layers,
      layer,
      own(SUMMARIES, name) ?? `${name}, mean over the tokens`,
      onLayer,
    ),
  ];
  if (!inLayer) return parts;
  const [nTokens, nHeads] = inLayer.shape;
  const between = limits(inLayer.values);
  return [
    ...parts,
    title(`layer ${layer}, heads upwards: ${own(MEANINGS, name) ?? name}  `, legendOf(between)),
    picture(trace, {
      values: inLayer.values,
      nTokens,
      lines: Array.from({ length: nHeads }, (_, head) => head),
      between,
      what: (head) => `layer ${layer}, head ${head}\n${name}`,
      label: `${name}, ${nTokens} tokens by ${nHeads} heads`,
      width,
    }),
  ];
}

function grid({ values, shape: [nLayers, nHeads] }, layers, chosen, title, onLayer) {
  const [left, wide] = [34, Math.max(10, Math.min(26, Math.floor(300 / nHeads)))];
  const tall = Math.max(4, Math.min(20, Math.floor(360 / nLayers)));
  const between = limits(values);
  const [canvas, context] = canvasOf(left + wide * nHeads + 2, tall * nLayers + 18);
  const ink = color("--heat");
  context.font = "11px system-ui, sans-serif";
  for (let layer = 0; layer < nLayers; layer += 1) {
    const y = (nLayers - 1 - layer) * tall;
    for (let head = 0; head < nHeads; head += 1) {
      const value = values[layer * nHeads + head];
      const level = shareOf(value, between);
      context.fillStyle = Number.isFinite(value)
        ? `rgb(${ink} / ${level})`
        : "rgb(128 128 128 / 0.3)";
      context.fillRect(left + head * wide, y, wide, tall);
    }
    context.fillStyle = color(layers[layer] === chosen ? "--ink" : "--soft");
    context.textAlign = "right";
    if (layer % Math.ceil(14 / tall) === 0)
      context.fillText(layers[layer], left - 6, y + tall / 2 + 4);
    if (layers[layer] === chosen) {
      context.strokeStyle = color("--ink");
      context.strokeRect(left + 0.5, y + 0.5, wide * nHeads, tall - 1);
    }
  }
  context.strokeStyle = color("--line");
  context.strokeRect(left - 0.5, 0.5, wide * nHeads + 1, tall * nLayers - 1);
  context.textAlign = "left";
  context.fillStyle = color("--soft");
  for (let head = 0; head < nHeads; head += Math.ceil(18 / wide))
    context.fillText(head, left + head * wide + 2, nLayers * tall + 13);
  explore(canvas, {
    nx: nHeads,
    ny: nLayers,
    label: `${title}, ${nLayers} layers by ${nHeads} heads; arrow keys walk, Enter chooses a layer`,
    cellAt: (x, y) => [Math.floor((x - left) / wide), Math.floor(y / tall)],
    placeOf: (i, j) => [left + (i + 0.5) * wide, (j + 0.5) * tall],
    textOf: (head, j) => {
      const layer = nLayers - 1 - j;
      return `layer ${layers[layer]}, head ${head}\n${numberText(values[layer * nHeads + head])}\nclick: this layer`;
    },
    choose: (_, j) => onLayer(layers[nLayers - 1 - j]),
  });
  return [
    soft(`layers from below, heads to the right: ${title}  `, legendOf(between)),
    element("div", { className: "wide" }, canvas),
  ];
}
