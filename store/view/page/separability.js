// Which layers tell the labels apart: what a run's probes of each layer reach, as lines.

import { command, element, numberText, soft, title } from "/page/dom.js";
import { explore } from "/page/explore.js";
import { entry } from "/page/histogram.js";
import { canvasOf, color, outline, SMALL } from "/page/paint.js";

const COLORS = ["--ramp-0", "--ramp-3", "--ramp-2", "--ramp-1"];
const DASHES = [[], [6, 3], [2, 2], [8, 2, 2, 2]];
const [TALL, LEFT, BELOW, ABOVE] = [150, 40, 20, 8];
const LOWEST = 0.4;

// choose(layer): a click leads to its map.
export function separability(store, place, choose) {
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
  const width = Math.min(place, 620);
  const step = (width - LEFT - 16) / Math.max(1, layers.length - 1);
  const x = (i) => LEFT + i * step;
  const y = (area) => ABOVE + ((1 - Math.max(LOWEST, area)) / (1 - LOWEST)) * TALL;
  const [canvas, context] = canvasOf(width, ABOVE + TALL + BELOW);
  context.font = SMALL;
  context.fillStyle = color("--soft");
  for (const tick of [0.5, 0.75, 1]) {
    outline(
      context,
      [
        [LEFT, y(tick)],
        [width, y(tick)],
      ],
      { stroke: "--line" },
    );
    context.textAlign = "right";
    context.fillText(tick, LEFT - 6, y(tick) + 4);
  }
  context.textAlign = "center";
  const every = Math.ceil(26 / step);
  layers.forEach((layer, i) => i % every || context.fillText(layer, x(i), ABOVE + TALL + 15));
  lines.forEach(({ areas }, n) => {
    const known = [...layers.keys()].filter((i) => layers[i] in areas);
    const places = known.map((i) => [x(i), y(areas[layers[i]])]);
    outline(context, places, { stroke: COLORS[n % 4], dash: DASHES[(n >> 2) % 4], width: 2 });
  });
  const valueIn = ({ name, areas }, i) => `${numberText(areas[layers[i]])}  ${name}`;
  explore(canvas, {
    nx: layers.length,
    label: `AUROC of probes in ${layers.length} layers; arrow keys walk, Enter shows the map`,
    cellAt: (px) => [Math.round((px - LEFT) / step), 0],
    placeOf: (i) => [x(i), TALL / 2],
    textOf: (i) => [`layer ${layers[i]}`, ...lines.map((line) => valueIn(line, i))].join("\n"),
    choose: (i) => choose(layers[i]),
  });
  const key = lines.map(({ name }, n) =>
    entry(["━", "╍", "┅", "┉"][(n >> 2) % 4], color(COLORS[n % 4]), `${name}  `),
  );
  return [
    about,
    canvas,
    soft(...key),
    soft("0.5: by chance; a click leads to the map of the layer"),
  ];
}

const advice = ({ path }) =>
  element(
    "details",
    { className: "soft small" },
    element("summary", {}, "which layers tell the labels apart?"),
    command(
      `python -m train --store ${path} --only logreg_best --output-dir runs/layers\npython -m store view ${path} --run runs/layers`,
    ),
  );
