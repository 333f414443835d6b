// A list of traces with a number each; a click opens one.

import { button, element, labelClass, soft } from "/page/dom.js";
import { change } from "/page/state.js";

const N_LISTED = 8;

// numberOf(i): the text of the number of the i-th.
export function traceList({ rows, columns }, numberOf) {
  if (!rows.length) return soft("none");
  const text = (className, text) => element("span", { className, dir: "auto" }, text);
  const lines = rows.map((row, i) =>
    element(
      "li",
      {},
      element(
        "button",
        { className: "line", onclick: () => change({ row, tab: "trace" }, true) },
        text(`figure ${labelClass(columns.label?.[i])}`, numberOf(i)),
        text("grow", columns.question?.[i] ?? columns.trace_id[i]),
        text("soft grow", columns.answer?.[i] ?? ""),
      ),
    ),
  );
  const place = element("ul", { className: "list" }, ...lines.slice(0, N_LISTED));
  const rest = lines.slice(N_LISTED);
  const more = (event) => {
    event.currentTarget.parentElement.replaceWith(...rest);
    rest[0].firstChild.focus();
  };
  if (rest.length)
    place.append(
      element("li", {}, button(`${rest.length} more`, more, { className: "line soft" })),
    );
  return place;
}
