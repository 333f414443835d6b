// Lists of lines to choose from: traces with a number each, and the texts of a column.

import { getJson } from "/page/api.js";
import { button, countText, element, labelClass, soft, title } from "/page/dom.js";
import { quoted, show } from "/page/narrow.js";
import { change } from "/page/state.js";

const N_LISTED = 8;
const LONGEST = 300; // characters of a text in an answer

// A line with a figure, and texts of which the first stands out.
function line(figure, texts, onclick, color = "") {
  const spans = texts.map((text, i) =>
    element(i ? "span.soft.grow" : "span.grow", { dir: "auto" }, text),
  );
  const number = element("span", { className: `figure ${color}` }, figure);
  return element("li", element("button.line", { onclick }, number, ...spans));
}

// numberOf(i): the text of the number of the i-th trace; a click opens it.
export function traceList(/** @type {Listed} */ { rows, columns }, numberOf) {
  if (!rows.length) return soft("none");
  const lines = rows.map((row, i) => {
    const texts = [columns.question?.[i] ?? columns.trace_id[i], columns.answer?.[i] ?? ""];
    const open = () => change({ row, tab: "trace" }, true);
    return line(numberOf(i), texts, open, labelClass(columns.label?.[i]));
  });
  const rest = lines.splice(N_LISTED);
  const more = (event) => {
    event.currentTarget.parentElement.replaceWith(...rest);
    rest[0].firstChild.focus();
  };
  if (rest.length)
    lines.push(element("li", button(`${rest.length} more`, more, { className: "line soft" })));
  return element("ul.list", ...lines);
}

// Which texts a column has, and how often: duplicates, and the groups of a name.
export async function showGroups(base, query, name) {
  const found = await getJson(`${base}/groups`, { ...query, column: name });
  const choose = (text) => {
    const sign = text.length < LONGEST ? "==" : "contains";
    show(`${name} ${sign} ${quoted(text)}`, []);
  };
  const lines = found.groups.map(([text, n]) =>
    line(countText(n), [text || "(empty)"], () => choose(text)),
  );
  const rest = found.n - lines.length;
  return [
    element(
      "div.groups",
      title(`${name}: ${countText(found.n)} texts, ${countText(found.repeated)} of them repeated`),
      element("ul.list", ...lines),
      rest > 0 && soft(`and ${countText(rest)} more texts, not more frequent`),
    ),
  ];
}
