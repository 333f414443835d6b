// Tokens by layers of a trace, as pictures that the server reduced from the states, and what the
// probes of single tokens say.

import { getArray, getJson } from "/page/api.js";
import { bar, checkbox, element, heading, legendOf, menu, soft, title } from "/page/dom.js";
import { mapAdvice, mapOfLayer } from "/page/map_advice.js";
import { limits, picture } from "/page/picture.js";
import { separability } from "/page/separability.js";
import { change, oneOf, state } from "/page/state.js";

const NAMES = {
  norm: "norm of the state",
  cosine: "cosine to the layer below",
  lens_entropy: "entropy of the logit lens",
};
const MEANINGS = {
  norm: "Euclidean length of each state",
  cosine: "1: the layer left the state's direction as it was; the lowest layer has none below",
  lens_entropy:
    "entropy in nats of the next token, as the model's last weights read it from this layer's state; low: the layer is sure",
};
const SCORES = /^score_token_/;

export async function showLayers(/** @type {Shown} */ { base, store, row, width }) {
  const probes = store.tokens.filter((name) => SCORES.test(name));
  if (!store.pictures.length && !probes.length)
    return [soft("this store has no hidden_states and no lens_entropy")];
  const advice = element("div");
  const toMap = (layer) => {
    const map = mapOfLayer(store, layer);
    if (map) change({ tab: "map", map: map.name, view: "" }, true);
    else advice.replaceChildren(mapAdvice(store, layer));
  };
  const what = oneOf("what", store.pictures, store.pictures[0]);
  const path = `${base}/trace/${row}`;
  const arrays = probes.map((name) => getArray(`${path}/tokens/${encodeURIComponent(name)}`));
  const [trace, found, scores] = await Promise.all([
    getJson(`${base}/trace/${row}`),
    what ? getArray(`${path}/layers/${what}`) : null,
    Promise.all(arrays),
  ]);
  const ends = trace.prompt_len ? "; the line is where the answer begins" : "";
  return [
    heading(trace.texts.trace_id),
    ...(found ? states(store, trace, what, found, width, toMap) : []),
    advice,
    ...probes.flatMap((name, i) => probe(trace, name, scores[i].values, width)),
    soft(`tokens from left to right${ends}`),
    ...separability(store, width, toMap),
  ];
}

function states(
  /** @type {Store} */ store,
  /** @type {Trace} */ trace,
  what,
  /** @type {Numbers} */ { values, shape: [nTokens, nLayers] },
  width,
  toMap,
) {
  const nameOf = (name) => NAMES[name] ?? name;
  const choose = (name) => change({ what: name });
  const select = menu("what the picture shows", store.pictures, what, choose, nameOf);
  const apart = state.range === "layer";
  const of = (layer) => limits(values.filter((_, i) => i % nLayers === layer));
  const between = apart ? Array.from({ length: nLayers }, (_, layer) => of(layer)) : limits(values);
  const names = Array.from({ length: nLayers }, (_, layer) => store.layers[layer] ?? layer + 1);
  return [
    bar(
      select,
      apart ? null : legendOf(between),
      checkbox("colours of each layer apart", apart, (isOn) =>
        change({ range: isOn ? "layer" : "" }),
      ),
    ),
    soft(
      `${MEANINGS[what]}. Layers from below, as the model numbers them; a click leads to the map of the layer`,
    ),
    picture(trace, width, {
      values,
      names,
      between,
      what: (layer) => `layer ${names[layer]}\n${nameOf(what)}`,
      label: `${nameOf(what)}, ${nTokens} tokens by ${nLayers} layers`,
      choose: (_, layer) => toMap(names[layer]),
    }),
  ];
}

function probe(/** @type {Trace} */ trace, name, values, width) {
  const between = limits(values);
  return [
    title(`${name}: how much a detector suspects each token  `, legendOf(between)),
    picture(trace, width, {
      values,
      names: [""],
      between,
      what: () => name,
      label: `${name}, ${values.length} tokens`,
    }),
  ];
}
