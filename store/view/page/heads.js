// Heads of attention in a trace: of each layer one number a head, and of a layer one a token.

import { getArray, isExported } from "/page/api.js";
import { bar, legendOf, numberText, own, pick, soft, title, wide } from "/page/dom.js";
import { shareOf } from "/page/paint.js";
import { cells, LEFT, limits, picture } from "/page/picture.js";
import { rect, text } from "/page/plot.js";
import { change, oneOf } from "/page/state.js";

const MEANINGS = {
  attn_colsum: "attention that each token receives, from those that could attend to it, on average",
  attn_diag: "attention that each token pays to itself",
};
const SUMMARIES = {
  attn_colsum: "share of all attention that goes to the first token",
  attn_diag: "attention to the token itself, mean over the tokens",
};

// The parts for the tab attention; layer: as the model numbers it; onLayer(number, head): one was chosen.
export async function headParts(
  base,
  /** @type {Store} */ store,
  row,
  /** @type {Trace} */ trace,
  layer,
  width,
  onLayer,
) {
  const names = Object.keys(store.heads);
  if (!names.length) return [];
  const first = Object.keys(MEANINGS).find((name) => names.includes(name)) ?? names[0];
  const name = oneOf("head", names, first);
  const layers = store.heads[name];
  const at = layers.indexOf(layer);
  const path = `${base}/trace/${row}/heads/${encodeURIComponent(name)}`;
  const [summary, inLayer] = await Promise.all([
    getArray(path),
    at < 0 || isExported ? null : getArray(path, { layer: at }),
  ]);
  const meaning = own(SUMMARIES, name) ?? `${name}, mean over the tokens`;
  const parts = [
    title("heads"),
    bar(pick("heads by", names, name, (head) => change({ head }))),
    ...grid(summary, layers, at, meaning, onLayer),
  ];
  if (!inLayer) return parts;
  const [nTokens, nHeads] = inLayer.shape;
  const between = limits(inLayer.values);
  return [
    ...parts,
    title(`layer ${layer}, heads upwards: ${own(MEANINGS, name) ?? name}  `, legendOf(between)),
    picture(trace, width, {
      values: inLayer.values,
      names: Array.from({ length: nHeads }, (_, head) => head),
      between,
      what: (head) => `layer ${layer}, head ${head}\n${name}`,
      label: `${name}, ${nTokens} tokens by ${nHeads} heads`,
    }),
  ];
}

function grid(
  /** @type {Numbers} */ { values, shape: [nLayers, nHeads] },
  layers,
  chosen,
  meaning,
  onLayer,
) {
  const across = Math.max(10, Math.min(26, Math.floor(300 / nHeads)));
  const tall = Math.max(4, Math.min(20, Math.floor(360 / nLayers)));
  const between = limits(values);
  const valueAt = (head, layer) => values[layer * nHeads + head];
  const level = (head, layer) => shareOf(valueAt(head, layer), between);
  const made = cells(nHeads, nLayers, [across, tall], level, {
    names: layers,
    chosen,
    bottom: 18,
    label: `${meaning}, ${nLayers} layers by ${nHeads} heads; arrow keys walk, Enter chooses it`,
    textOf: (head, layer) =>
      `layer ${layers[layer]}, head ${head}\n${numberText(valueAt(head, layer))}\nclick: this one`,
    choose: (head, layer) => onLayer(layers[layer], head),
  });
  if (chosen >= 0) {
    const top = (nLayers - chosen - 1) * tall;
    const mark = rect(LEFT + 0.5, top + 0.5, across * nHeads - 1, tall - 1, "none");
    mark.setAttribute("stroke", "var(--ink)");
    made.append(mark);
  }
  for (let head = 0; head < nHeads; head += Math.ceil(18 / across))
    made.append(text(LEFT + head * across + 2, tall * nLayers + 13, head));
  return [
    soft(`layers from below, heads to the right: ${meaning}  `, legendOf(between)),
    wide(made),
  ];
}
