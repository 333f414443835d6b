// Which map shows a layer, and the command that makes one.

import { command, element, soft } from "/page/dom.js";
import { state } from "/page/state.js";

// Of several maps of a layer the one that was made as the map on the screen was.
export function mapOfLayer(/** @type {Store} */ store, layer) {
  const found = store.maps.filter((map) => map.layer === layer);
  const now = store.maps.find((map) => map.name === state.map);
  const isLike = (map) => map.column === now?.column && map.method === now?.method;
  return found.find(isLike) ?? found[0];
}

// How a map of a layer is made; of the last layer where none is named.
export function mapAdvice(/** @type {Store} */ store, layer) {
  if (!store.states) return soft("this store has no states to draw a map of");
  const { column, layers, is_there: isThere } = store.states;
  const option = layers.length ? ` --layer ${layer ?? layers.at(-1)}` : "";
  const lines = [`python -m store project ${store.path} --column ${column}${option}`];
  if (!isThere) lines.unshift(`python -m store derive ${store.path} ${column}`);
  const why =
    layer === undefined
      ? "This store has no map. A map places each trace by its state in one layer; this makes one:"
      : `There is no map of layer ${layer}. This makes one:`;
  return element(
    "div",
    element("p", why),
    command(lines.join("\n")),
    soft("The page then offers the new generation of the store."),
  );
}
