// The answers of the server, in a page that was exported: those that were recorded, and what follows
// from them.

import { $, numberOf } from "/page/dom.js";

const NEEDS = "this is a page of some traces without a server: python -m store view can do it";

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

async function read() {
  const packed = new Blob([bytesOf($("#recorded").textContent)]).stream();
  return new Response(packed.pipeThrough(new DecompressionStream("gzip"))).json();
}
const recorded = read();

// The answer to a request, as `fetch` gives it.
export async function answer(path, query = {}) {
  const known = await recorded;
  if (query.filter) throw new Error(`filter: ${NEEDS}`);
  const name = decodeURIComponent(path.replace(/^\/api\/\d+\/\d+\//, ""));
  const computed = COMPUTED[name];
  const found = computed ? computed(known, query) : lookUp(known, name, query);
  if (found === undefined) throw new Error(`${name}: ${NEEDS}`);
  if (found?.bytes === undefined) return new Response(JSON.stringify(found));
  return new Response(bytesOf(found.bytes), { headers: found.headers });
}

function lookUp({ answers, rules }, name, query) {
  const parts = name.match(/^(trace\/\d+)\/(candidates|attention)\/(\d+)$/) ?? [];
  const [, trace, part, at] = parts;
  if (part === "candidates") return answers[`${trace}/candidates`]?.[at] ?? [];
  if (part === "attention") return edgesFrom(answers[name], query, rules);
  const place = query.column ? `${name}/${query.column}` : name;
  const isKept = Object.hasOwn(answers, place);
  if (/^trace\/\d+$/.test(name) && !isKept)
    throw new Error(`row: expected 0 to ${answers["/api/stores"].stores[0].rows - 1}`);
  return isKept ? answers[place] : undefined;
}

// Only the strongest edges were kept, from a weight on.
function edgesFrom(edges, { threshold, skip_first: skip }, rules) {
  if (!edges) return undefined;
  const isIn = (i) =>
    numberOf(edges.weights[i]) >= Math.fround(threshold) && !(skip && edges.keys[i] === 0);
  const kept = [...edges.weights.keys()].filter(isIn);
  const part = (name) => kept.slice(0, rules.max_edges).map((i) => edges[name][i]);
  const isCut = edges.n_above > edges.weights.length || threshold < rules.least_weight;
  const all = `${kept.length}${isCut ? " or more" : ""}`;
  return { queries: part("queries"), keys: part("keys"), weights: part("weights"), n_above: all };
}

// The rows in the order of a column; numbers that are missing come last. The cells of a table have
// the beginnings of texts: equal ranks are equal values.
function ordered({ columns, answers, rules }, { sort, descending }) {
  const rows = [...columns.trace_id.keys()];
  if (!sort) return descending ? rows.reverse() : rows;
  const [store] = answers["/api/stores"].stores;
  if (!store.columns.some((each) => each.name === sort))
    throw new Error(`sort: expected a column, found ${sort.slice(0, 60)}`);
  const by = descending ? -1 : 1;
  const keys = rules.ranks[sort].map((rank) => (rank === null ? Infinity : by * rank));
  const compare = (a, b) => (a === b ? 0 : a - b);
  return rows.sort((i, j) => compare(keys[i], keys[j]));
}

const pickRows = (columns, names, rows) =>
  Object.fromEntries(names.map((name) => [name, rows.map((row) => columns[name][row])]));

function table(known, query) {
  const all = ordered(known, query);
  const start = Number(query.start ?? 0);
  const rows = all.slice(start, start + Number(query.count ?? 60));
  const names = (query.columns ?? "").split(",").filter(Boolean);
  return { total: all.length, start, rows, columns: pickRows(known.columns, names, rows) };
}

// As the server, which gives only letters of ASCII a case where the text is of them alone.
const isAscii = (text) => !/[^\0-\x7f]/.test(text);
const lowerAscii = (text) => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
const foldCase = (text) => text.toLowerCase().toUpperCase(); // ẞ and ß are SS

// The next row after a position that has an id or a text.
function find(known, query) {
  const rows = ordered(known, query);
  const positions = [...rows.keys()].filter(isFound(known, query, rows));
  const later = positions.find((position) => position > Number(query.after ?? -1));
  const position = later ?? positions[0] ?? null;
  return { position, row: rows[position] ?? null, n: positions.length };
}

function isFound({ columns, answers, rules }, { row, id, text }, rows) {
  if (row !== undefined) return (position) => rows[position] === Number(row);
  const ids = columns.trace_id;
  const exact = ids.indexOf(id ?? text);
  if (id !== undefined || exact >= 0) return (position) => rows[position] === exact;
  const fold = isAscii(text) ? lowerAscii : foldCase;
  const wanted = fold(text);
  const has = (value) => value !== undefined && fold(value).includes(wanted);
  const textsOf = (row) => answers[`trace/${row}`].texts; // whole, where cells are beginnings
  const isIn = (row) => has(ids[row]) || rules.searched.some((name) => has(textsOf(row)[name]));
  return (position) => isIn(rows[position]);
}

function groups({ columns, rules }, { column }) {
  const ranks = rules.ranks[column];
  const counts = new Map();
  for (const rank of ranks) counts.set(rank, (counts.get(rank) ?? 0) + 1);
  const sorted = [...counts].sort(([, a], [, b]) => b - a);
  const repeated = sorted.filter(([, n]) => n > 1).length;
  const listed = sorted.slice(0, rules.n_groups);
  const textOf = (rank) => columns[column][ranks.indexOf(rank)];
  return { n: sorted.length, repeated, groups: listed.map(([rank, n]) => [textOf(rank), n]) };
}

// A number as float16 has it: adding much leaves its 11 bits, and rounds halves to even.
function half(number) {
  const exponent = Math.max(Math.floor(Math.log2(Math.abs(number))), -14);
  const much = 1.5 * 2 ** (52 + exponent - 10);
  return number + much - much;
}
const ROUNDED = { float16: half, float32: Math.fround };

// The rows on the wrong side of a threshold, in the precision of the scores: how many, and the
// farthest.
function mistakes({ columns, rules }, { column, threshold }) {
  const scores = columns[column].map(numberOf);
  const limit = (ROUNDED[rules.dtypes[column]] ?? Number)(Number(threshold));
  const part = (label, isWrong) => {
    const wrong = [...scores.keys()].filter(
      (row) => Number.isFinite(scores[row]) && columns.label[row] === label && isWrong(scores[row]),
    );
    const far = (row) => Math.abs(scores[row] - threshold);
    const rows = wrong.sort((a, b) => far(b) - far(a)).slice(0, rules.n_mistakes);
    const names = rules.listed.filter((name) => name in columns);
    const chosen = rows.map((row) => scores[row]);
    return { n: wrong.length, rows, scores: chosen, columns: pickRows(columns, names, rows) };
  };
  return {
    false_alarms: part(0, (score) => score >= limit),
    misses: part(1, (score) => score < limit),
  };
}

const COMPUTED = {
  complete: () => [],
  table,
  find,
  groups,
  mistakes,
};
