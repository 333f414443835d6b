// Filters that pictures and lists write: they narrow the filter that is there.

import { attempt } from "/page/filter.js";
import { state } from "/page/state.js";

// A text as filters have it.
export const quoted = (text) => `"${text.replaceAll(/["\\]/g, "\\$&")}"`;

export const between = (name, low, high, isLast = false) =>
  `${name} >= ${low} and ${name} ${isLast ? "<=" : "<"} ${high}`;

// What a filter joins by "and", outside of quotes and brackets; a filter that joins by "or" is one.
export function conditions(filter) {
  const parts = [];
  let start = 0;
  let depth = 0;
  const words = /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[()]|\b(?:and|or)\b/gi;
  for (const found of filter.matchAll(words)) {
    if (found[0] === "(") depth += 1;
    else if (found[0] === ")") depth -= 1;
    else if (depth === 0 && /^or$/i.test(found[0])) return [`(${filter.trim()})`];
    else if (depth === 0 && /^and$/i.test(found[0])) {
      parts.push(filter.slice(start, found.index).trim());
      start = found.index + 3;
    }
  }
  parts.push(filter.slice(start).trim());
  return parts.filter(Boolean);
}

const WITH_NUMBER = /^(\w+)\s*(?:[<>]=?|[=!]?=)\s*[-+]?(?:[.\d]\S*|nan|inf|true|false)$/;

// Those that compare none of these columns with a number.
export const without = (filter, names) =>
  conditions(filter).filter((each) => !names.includes(each.match(WITH_NUMBER)?.[1]));

// Conditions on the columns that a picture shows give way, so that a second click chooses anew.
export const narrowed = (filter, part, names) => [...without(filter, names), part].join(" and ");

export const show = (part, names, more = {}) =>
  attempt({ filter: narrowed(state.filter, part, names), ...more });
