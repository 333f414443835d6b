// Which texts a column has, and how often: duplicates, and the groups of a name.

import { getJson } from "/page/api.js";
import { countText, element, soft, title } from "/page/dom.js";
import { narrowed } from "/page/narrow.js";
import { attempt } from "/page/filter.js";
import { state } from "/page/state.js";

const LONGEST = 300; // characters of a text in an answer

const quoted = (text) => `"${text.replaceAll(/["\\]/g, "\\$&")}"`;

export async function showGroups(base, query, name, place) {
  const found = await getJson(`${base}/groups`, { ...query, column: name });
  const choose = (text) => {
    const sign = text.length < LONGEST ? "==" : "contains";
    attempt({ filter: narrowed(state.filter, `${name} ${sign} ${quoted(text)}`, []) });
  };
  const lines = found.groups.map(([text, n]) =>
    element(
      "li",
      {},
      element(
        "button",
        { className: "line", title: "these rows in the table", onclick: () => choose(text) },
        element("span", { className: "figure" }, countText(n)),
        element("span", { className: "grow", dir: "auto" }, text || "(empty)"),
      ),
    ),
  );
  const rest = found.n - lines.length;
  place(
    element(
      "div",
      { className: "groups" },
      title(`${name}: ${countText(found.n)} texts, ${countText(found.repeated)} of them repeated`),
      element("ul", { className: "list" }, ...lines),
      rest > 0 && soft(`and ${countText(rest)} more texts, not more frequent`),
    ),
  );
}
