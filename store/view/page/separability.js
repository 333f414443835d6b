// Which layers tell the labels apart: what a run's probes of each layer reach, as lines.

import { command, element, entry, numberText, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { axis, line, plot } from "/page/plot.js";

const COLORS = [0, 3, 2, 1].map((n) => `var(--ramp-${n})`);
const DASHES = ["", "6 3", "2 2", "8 2 2 2"];
const SIGNS = ["━", "╍", "┅", "┉"];
const [WIDEST, HEIGHT, LEFT] = [620, 178, 40];
const LOWEST = 0.4;

// choose(layer): a click leads to its map.
export function separability(/** @type {Store} */ store, place, choose) {
  const lines = store.runs.flatMap(({ name: run, layers: probes }) =>
    Object.entries(probes).map(([probe, areas]) => ({
      name: store.runs.length > 1 ? `${probe} of ${run}` : probe,
      areas,
    })),
  );
  const about = title("AUROC of probes by layer, on validation");
  if (!lines.length) return store.layers.length ? [about, advice(store)] : [];
  const layers = [...new Set(lines.flatMap(({ areas }) => Object.keys(areas).map(Number)))];
  layers.sort((a, b) => a - b);
  const width = Math.min(place, WIDEST);
  const last = Math.max(1, layers.length - 1);
  const step = (width - LEFT - 16) / last;
  const ticks = [...layers.keys()].filter((i) => i % Math.ceil(26 / step) === 0);
  const x = axis([0, last], [LEFT, width - 16], ticks, (i) => String(layers[i]));
  const y = axis([LOWEST, 1], [HEIGHT - 20, 8], [0.5, 0.75, 1], String);
  const curve = ({ areas }, n) => {
    const known = [...layers.keys()].filter((i) => layers[i] in areas);
    const places = known.map((i) => [x.at(i), y.at(Math.max(LOWEST, areas[layers[i]]))]);
    const dash = { "stroke-width": 2, "stroke-dasharray": DASHES[(n >> 2) % 4] };
    return line(places, COLORS[n % 4], dash);
  };
  const picture = plot(width, HEIGHT, x, y, ...lines.map(curve));
  const valueIn = ({ name, areas }, i) => `${numberText(areas[layers[i]])}  ${name}`;
  explore(picture, {
    nx: layers.length,
    label: `AUROC of probes in ${layers.length} layers; arrow keys walk, Enter shows the map`,
    cellAt: (px) => [Math.round((px - LEFT) / step), 0],
    placeOf: (i) => [x.at(i), HEIGHT / 2],
    textOf: (i) => [`layer ${layers[i]}`, ...lines.map((each) => valueIn(each, i))].join("\n"),
    choose: (i) => choose(layers[i]),
  });
  const key = lines.map(({ name }, n) => entry(SIGNS[(n >> 2) % 4], COLORS[n % 4], `${name}  `));
  return [
    about,
    picture,
    soft(...key),
    soft("0.5: by chance; a click leads to the map of the layer"),
  ];
}

const advice = (/** @type {Store} */ { path }) =>
  element(
    "details.soft.small",
    element("summary", "which layers tell the labels apart?"),
    command(
      `python -m train --store ${path} --only logreg_best --output-dir runs/layers\npython -m store view ${path} --run runs/layers`,
    ),
  );
