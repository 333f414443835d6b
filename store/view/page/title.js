// What the page says above the table: what this is, which rows of it, and what it cannot show.

import { $, button, countText, element } from "/page/dom.js";
import { attempt } from "/page/filter.js";
import { conditions } from "/page/narrow.js";
import { ignored, state } from "/page/state.js";

// What this is: the store, its traces, classes and model, and the runs beside it.
export function showTitle(
  /** @type {Store} */ { name, rows, labels, counts, models, runs, exported_of: all },
) {
  const classes = counts.map((n, i) => `${countText(n)} ${labels[i]}`).join(", ");
  const of = all === undefined ? "" : ` of ${countText(all)}`;
  const traces = `${countText(rows)}${of} ${rows === 1 ? "trace" : "traces"}`;
  const parts = [models.length && `of ${models.join(", ")}`, classes];
  const about = [traces, ...parts].filter(Boolean).join(" · ");
  const links = runs.map((run) => [
    ", ",
    run.report ? element("a", { href: run.report, title: "its report" }, run.name) : run.name,
    run.is_foreign ? " (of another store, joined by trace_id)" : "",
  ]);
  const named = runs.length
    ? [` · ${runs.length > 1 ? "runs" : "run"} `, ...links.flat().slice(1)]
    : [];
  $("#what").replaceChildren(name, element("small", ` ${about}`, ...named));
  document.title = `${name} – traces`;
}

// The conditions of the filter, each of which a click leaves out.
export function showChips() {
  const parts = conditions(state.filter);
  const chipOf = (part, i) => {
    const rest = parts.filter((_, at) => at !== i).join(" and ");
    const text = part.replace(/^inside\(\s*(\w+).*$/s, "lasso on $1");
    return button(`${text} ×`, () => attempt({ filter: rest }), {
      className: "chip",
      title: "leave this condition out",
    });
  };
  $("#chips").replaceChildren(...parts.map(chipOf));
  $("#chips").hidden = !parts.length;
}

// What the address says and the page cannot show.
export function showIgnored() {
  $("#ignored").textContent = [...ignored.values()].join("; ");
  $("#ignored").hidden = !ignored.size;
}
