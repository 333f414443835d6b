"""A page of some traces in one file, which needs no server.

The file holds the page's own files, and the answers that its server would give about these traces,
compressed. A policy in it lets a browser ask nobody for anything. States are not in it: what the
page shows of them is.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.read.directory import check_outside
from store.read.filters.filter import filter_rows
from store.view import PAGE
from store.view.attention import MAX_EDGES, attention_edges, head_summary
from store.view.columns import LISTED, N_GROUPS, SEARCHED, Table, array_headers, json_object
from store.view.describe import describe, describe_run, is_score, label_counts
from store.view.layers import layer_picture
from store.view.maps import levels_of
from store.view.scores import N_MISTAKES, calibrate, mistakes, roc
from store.view.snapshots import Snapshots, open_stores
from store.view.traces import Texts, candidates_of_all, token_values, trace_values
from store.write.files import replacing

__all__ = ["export_page", "framed_page", "page_of"]

LEAST_WEIGHT = 0.05  # of an edge that is kept
N_EDGES = 2 * MAX_EDGES  # of a layer; the page draws half of them, with the first token or without
PICTURE_BITS = 14  # of a picture's numbers, of 24: they show four digits


def choose_rows(table: Table, where: str, is_wrong: bool, limit: int) -> np.ndarray:
    """The rows to export: int64 `(n,)`, at most `limit`.

    `where` is a filter. `is_wrong` keeps the traces that a detector of a run gets wrong at its
    threshold, those that most detectors get wrong first. Raises SchemaError if the filter is wrong,
    there is no threshold, `limit` is less than 1, or no trace is left.
    """
    if limit < 1:
        raise SchemaError(f"limit: expected 1 or more traces to export, found {limit}")
    chosen = filter_rows(table, where)
    rows = np.arange(len(table)) if chosen is None else np.flatnonzero(chosen)
    if is_wrong:
        counts = count_mistakes(table)[rows]
        rows = rows[np.argsort(-counts, kind="stable")][: np.count_nonzero(counts)]
    if not len(rows):
        raise SchemaError(f"{table.store.location}: expected traces to export, found none")
    return rows[:limit]


def count_mistakes(table: Table) -> np.ndarray:
    """How many detectors with a threshold are wrong about each row: int64 `(n_rows,)`."""
    if not table.thresholds or not table.has_labels:
        raise SchemaError(
            "--mistakes-of-run: expected labels, and a --run whose detectors have thresholds, "
            "found none"
        )
    counts = np.zeros(len(table), np.int64)
    labels = table.numbers("label")
    for name, threshold in table.thresholds.items():
        for wrong in mistakes(table.numbers(name), labels, threshold):
            counts[wrong] += 1
    return counts


def export_page(path: Path, text: str) -> Path:
    """Write a page to a file .html, or as index.html of a folder; returns the file.

    Raises SchemaError if that is inside a store, or an address.
    """
    file = path if path.suffix == ".html" else path / "index.html"
    check_outside(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


class Framed:
    """A page within a notebook: in a frame that has no address, and reaches nothing around it."""

    def __init__(self, text: str, height: int) -> None:
        self.text = text
        self.height = height

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.text)}" width="100%" '
            f'height="{self.height}" style="border: 1px solid #8886"></iframe>'
        )


def framed_page(
    path: Path, run_paths: Sequence[Path], where: str, limit: int, height: int
) -> Framed:
    """The page of some traces of a store for a notebook; raises what `open_stores` does."""
    (snapshots,) = open_stores([path], run_paths)
    return Framed(page_of(snapshots, where, limit=limit)[0], height)


def page_of(
    snapshots: Snapshots,
    where: str = "",
    is_wrong: bool = False,
    limit: int = 500,
    tokenizer: Texts | None = None,
) -> tuple[str, int]:
    """A page of some traces of a store, as `choose_rows` takes them, and their number."""
    table = snapshots.first
    rows = choose_rows(table, where, is_wrong, limit)
    runs = [
        describe_run(run, 0, table.store.uuid) | {"path": run.name, "report": None}
        for run in snapshots.runs
    ]
    name = snapshots.path.resolve().name
    store = described(table, name, runs, rows)
    store["are_mistakes"] = is_wrong  # of which no rates are shown
    return page_text(recorded_answers(table, store, rows, tokenizer)), len(rows)


def recorded_answers(
    table: Table, store: dict[str, Any], rows: np.ndarray, tokenizer: Texts | None
) -> dict[str, Any]:
    """What the page asks of the server about some rows, numbered from 0, as JSON has it.

    `store` is what `described` says of it. Returns `columns` (the cells of the table); `answers`:
    the path of a request, below that of the store -> a value, or an array; and `rules`, by which
    the page makes the other answers as the server does.
    """
    answers: dict[str, Any] = {"/api/stores": {"stores": [store]}}
    labels = table.numbers("label")[rows] if table.has_labels else None
    numbers = [name for name, kind in table.kinds.items() if kind == "number"]
    for column in numbers:
        values = table.numbers(column)[rows]
        answers[f"histogram/{column}"] = table.value_counts(column, rows)
        levels = levels_of(values)
        answers[f"levels/{column}"] = array_record(levels.levels, levels.headers)
        if labels is not None and is_score(table, column):
            for kind, measure in (("calibration", calibrate), ("roc", roc)):
                answers[f"{kind}/{column}"] = json_object(measure(values, labels))
    for column in table.maps:
        answers[f"map/{column}"] = array_record(table.points(column)[rows])
    for number in np.argsort(rows).tolist():  # neighbours share chunks
        for place, answer in trace_answers(table, int(rows[number]), store, tokenizer).items():
            answers[f"trace/{number}{place}"] = answer
        answers[f"trace/{number}"]["row"] = number
    rules = {
        "searched": SEARCHED,
        "listed": LISTED,
        "n_groups": N_GROUPS,
        "n_mistakes": N_MISTAKES,
        "max_edges": MAX_EDGES,
        "least_weight": LEAST_WEIGHT,
        "dtypes": {name: table.numbers(name).dtype.name for name in numbers},
        "ranks": {name: ranks_of(table, name, rows) for name in table.kinds},
    }
    return {"columns": table.cells(table.kinds, rows), "answers": answers, "rules": rules}


def ranks_of(table: Table, name: str, rows: np.ndarray) -> list[int | None]:
    """The place of each row's whole value among those of a column; None for NaN."""
    if table.kinds[name] == "text":
        values = np.array(table.texts(name, rows), object)
    else:
        values = table.numbers(name)[rows]
    ranks = np.unique(values, return_inverse=True)[1].tolist()
    return [None if value != value else rank for value, rank in zip(values, ranks, strict=True)]


def described(
    table: Table, name: str, runs: Sequence[Mapping[str, object]], rows: np.ndarray
) -> dict[str, Any]:
    """What the page needs to know of the store; not where it lies."""
    found = describe(table, Path(name)) | {
        "newest": table.store.generation,
        "problem": None,
        "exported_of": len(table),
        "rows": len(rows),
        "counts": label_counts(table, rows),
        "name": name,
        "place": name,
        "path": name,
        "vectors": {},
        "runs": runs,
    }
    if found["head_edges"] is not None:
        found["head_edges"] |= {"heads": 0}  # none is kept
    return found


def trace_answers(
    table: Table, row: int, known: dict[str, Any], tokenizer: Texts | None
) -> dict[str, Any]:
    """The answers about one trace, by the part of their path behind its number."""
    store = table.store
    answers: dict[str, Any] = {"": trace_values(table, row, tokenizer)}
    for name in known["tokens"]:
        answers[f"/tokens/{name}"] = array_record(token_values(store, row, name))
    answers["/candidates"] = candidates_of_all(store, row, tokenizer or table.pieces.with_row(row))
    for name in known["pictures"]:
        answers[f"/layers/{name}"] = array_record(rounded(layer_picture(store, row, name)))
    for name in known["heads"]:
        answers[f"/heads/{name}"] = array_record(rounded(head_summary(store, row, name)))
    for layer in range(len(known["attention"])):
        edges = attention_edges(store, row, layer, LEAST_WEIGHT, n=N_EDGES)
        answers[f"/attention/{layer}"] = json_object(edges)
    return answers


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 with `PICTURE_BITS` significant bits, which are compressed to less."""
    mantissas, exponents = np.frexp(values)
    scale = np.float32(2**PICTURE_BITS)
    return np.ldexp(np.rint(mantissas * scale) / scale, exponents).astype(np.float32)


def array_record(values: np.ndarray, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """An array as JSON has it: little-endian bytes, and the headers of the server's answer."""
    described = array_headers(values) | (headers or {})
    return {"bytes": base64.b64encode(values.tobytes()).decode("ascii"), "headers": described}


def page_text(recorded: dict[str, Any]) -> str:
    """The page with its styles, scripts and recorded answers: one HTML document."""
    text = json.dumps(recorded, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    body = text.encode("utf-8", "replace")
    data = base64.b64encode(gzip.compress(body, 6, mtime=0)).decode("ascii")
    modules = {f"page/{path.name}": module_address(path) for path in sorted(PAGE.glob("*.js"))}
    scripts = [json.dumps({"imports": modules}), 'import "page/main.js";']
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; "
        "img-src data:; "
        f"script-src data: {' '.join(map(script_hash, scripts))}"
    )
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        f"<style>{(PAGE / 'page.css').read_text('utf-8')}</style>",
        f'<script type="importmap">{scripts[0]}</script>',
        f'<script type="module">{scripts[1]}</script>',
    ]
    lines = (PAGE / "index.html").read_text("utf-8").splitlines()
    kept = [line for line in lines if "/page/" not in line]
    at = kept.index("</head>")
    data_line = f'<script type="text/plain" id="recorded">{data}</script>'
    return "\n".join([*kept[:at], *head, *kept[at : at + 2], data_line, *kept[at + 2 :], ""])


def module_address(path: Path) -> str:
    """A module as an address that a page from a file may load; others are imported by name."""
    text = path.read_text("utf-8").replace('"/page/', '"page/')
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode('ascii')}"


def script_hash(text: str) -> str:
    """What a policy calls a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
