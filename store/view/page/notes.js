// What somebody notes about a trace, kept in a file beside the store; and traces that are like it.

import { getJson, post } from "/page/api.js";
import { bar, button, element, menu, numberText, pick, showError, soft, title } from "/page/dom.js";
import { quoted, show } from "/page/narrow.js";
import { change, oneOf } from "/page/state.js";
import { traceList } from "/page/lists.js";

// noted: label, tags and note, or why they cannot be read; undefined where nothing can be noted.
export function noteParts(base, row, /** @type {Trace["note"]} */ noted, labels) {
  if (!noted) return [];
  if (typeof noted === "string") return [soft(`no notes: ${noted}`)];
  const keep = (part) =>
    post(`${base}/trace/${row}/note`, part).then(async (answer) => {
      showError(null);
      showNoted(await answer.json());
      dispatchEvent(new Event("noted"));
    }, showError);
  const nameOf = (label) =>
    ({ "": "my label: none", "-1": "my label: unsure (-1)" })[label] ??
    `my label: ${labels[label]} (${label})`;
  const box = (key, placeholder) =>
    element("input", {
      type: "text",
      placeholder,
      "aria-label": key,
      className: key,
      onchange: (event) => keep({ [key]: event.target.value }),
    });
  const label = menu(
    "my label",
    ["", "0", "1", "-1"],
    noted.label,
    (label) => keep({ label }),
    nameOf,
  );
  const chips = element("span.tag-chips");
  const [tags, note] = [box("tags", "tags, more tags"), box("note", "note")];
  // all of it: another window may have noted something meanwhile
  const showNoted = (/** @type {any} */ kept) => {
    for (const [key, place] of Object.entries({ label, tags, note }))
      if (place !== document.activeElement) place.value = kept[key];
    chips.replaceChildren(...kept.tags.split(" ").filter(Boolean).map(tagChip));
  };
  showNoted(noted);
  const made = bar(label, tags, chips, note);
  made.classList.add("noted");
  return [made];
}

const tagChip = (tag) =>
  button(tag, () => show(`tag == ${quoted(tag)}`, []), {
    className: "chip",
    title: "the traces with this tag in the table",
  });

// The traces whose states in a column are most like those of this one.
export function neighbourParts(base, /** @type {Store} */ store, row, query) {
  const columns = Object.entries(store.vectors).flatMap(([name, layers]) =>
    layers.length ? layers.map((layer, at) => [`${name} ${layer}`, name, at]) : [[name, name, -1]],
  );
  if (!columns.length) return [];
  const chosen = oneOf(
    "near",
    columns.map(([text]) => text),
    "",
  );
  const place = element("div");
  const found = columns.find(([text]) => text === chosen);
  if (found) {
    const [, name, layer] = found;
    getJson(`${base}/trace/${row}/near/${name}`, { ...query, layer }).then(
      (near) =>
        place.replaceChildren(
          soft("cosine of the states; of the rows in the table"),
          traceList(near, (i) => numberText(near.scores[i])),
        ),
      (error) => place.replaceChildren(soft(error.message)),
    );
  }
  const names = ["", ...columns.map(([text]) => text)];
  const choose = (near) => change({ near });
  const text = (name) => name.replace(/ (\d+)$/, ", layer $1") || "–";
  return [title("nearest traces"), bar(pick("by", names, chosen, choose, text)), place];
}
