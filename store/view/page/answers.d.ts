// What the server answers, for the types of the page's scripts (`make lint`). The tests compare it
// with answers of the server.

interface Column {
  name: string;
  kind: "number" | "text";
  is_score: boolean;
  is_of_run: boolean;
}

interface StoreMap {
  name: string;
  column: string | null;
  layer: number | null;
  method: string | null;
  variance: number[];
}

interface Run {
  name: string;
  path: string;
  layers: Record<string, Record<string, number>>;
  is_foreign: boolean;
  report: string | null;
}

interface Store {
  name: string;
  place: string;
  path: string;
  uuid: string;
  generation: number;
  newest: number;
  problem: string | null;
  rows: number;
  columns: Column[];
  thresholds: Record<string, number>;
  labels: Record<string, string>;
  counts: number[];
  models: string[];
  shown: string[];
  tokens: string[];
  pictures: string[];
  layers: number[];
  attention: number[];
  head_edges: { column: string; layers: number[]; heads: number } | null;
  heads: Record<string, number[]>;
  maps: StoreMap[];
  states: { column: string; layers: number[]; is_there: boolean } | null;
  vectors: Record<string, number[]>;
  runs: Run[];
  // of an export alone
  exported_of?: number;
  are_mistakes?: boolean;
}

// A number as JSON has it: null for NaN, a text for infinity and where JavaScript rounds.
type Cell = number | string | null;
type Cells = Record<string, Cell[]>;

interface Rows {
  total: number;
  start: number;
  rows: number[];
  columns: Cells;
}

interface Found {
  position: number | null;
  row: number | null;
  n: number;
}

interface Groups {
  n: number;
  repeated: number;
  groups: [string, number][];
}

interface Histogram {
  edges: number[];
  counts: Record<string, number[]>;
  missing: number;
}

interface Listed {
  rows: number[];
  scores: Cell[];
  columns: Cells;
}

interface Mistakes {
  false_alarms: Listed & { n: number };
  misses: Listed & { n: number };
}

interface Roc {
  auroc: number;
  thresholds: number[];
  false_rates: number[];
  true_rates: number[];
}

interface Calibration {
  scores: number[];
  shares: number[];
  counts: number[];
  edges: [number, number][];
  error: number;
}

interface Note {
  label: string;
  tags: string;
  note: string;
}

interface Trace {
  row: number;
  texts: Record<string, string>;
  numbers: Record<string, Cell>;
  tokens: number[];
  token_texts: string[] | null;
  prompt_len: number;
  references: string[];
  note?: Note | string | null;
}

interface Candidate {
  id: number;
  text: string | null;
  logprob: Cell;
}

interface Edges {
  queries: number[];
  keys: number[];
  weights: Cell[];
  n_above: number | string;
}

interface Numbers {
  values: any;
  shape: number[];
  headers: Headers;
}

// The answers by the end of a path, and what stands for a part of it.
interface Answers {
  "/table": Rows;
  "/find": Found;
  "/groups": Groups;
  "/histogram": Histogram;
  "/mistakes": Mistakes;
  "/roc": Roc | null;
  "/calibration": Calibration | null;
  "/complete": string[];
}

type AnswerTo<Path extends string> = Path extends "/api/stores"
  ? { stores: Store[] }
  : Path extends `${string}/trace/${string}/candidates/${string}`
    ? Candidate[]
    : Path extends `${string}/trace/${string}/attention/${string}`
      ? Edges
      : Path extends `${string}/trace/${string}/near/${string}`
        ? Listed
        : Path extends `${string}/trace/${string}`
          ? Trace
          : {
              [End in keyof Answers]: Path extends `${string}${End}` ? Answers[End] : never;
            }[keyof Answers];

// What a tab shows.
interface Shown {
  base: string;
  store: Store;
  row: string;
  query: { filter: string; sort: string; descending: string };
  width: number;
}

// A trace with the numbers that colour its tokens.
interface Loaded {
  row: string;
  trace: Trace;
  color: string;
  colors: any;
  marks: any;
  other?: Loaded;
  differing?: Set<number>;
  query?: Shown["query"];
}
