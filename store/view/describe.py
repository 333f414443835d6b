"""What the page needs to know of a store before it asks for rows."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.format.schema import TRACE_ID
from store.read.source import address_of
from store.traces.columns import TABLE_FIRST, TRACE_COLUMNS
from store.traces.label_keys import LABEL_NAMES_KEY
from store.traces.origin import records_of
from store.view.attention import has_attention, head_columns, head_edges
from store.view.columns import Table
from store.view.layers import pictures
from store.view.maps import map_states
from store.view.neighbours import state_columns
from store.view.runs import Run
from store.view.traces import token_columns

__all__ = ["REPORT", "describe", "describe_run", "distinct_names", "is_score", "label_counts"]

N_SHOWN = 14
REPORT = "report.html"
SCORES = "score_"  # begins the names of detectors' scores
LABELS = {"0": "right", "1": "hallucination"}


def describe(table: Table, path: Path) -> dict[str, Any]:
    """A store's columns, layers and maps, as JSON has them.

    `path` is the store's, as the command line named it.
    """
    store = table.store
    columns = store.schema.columns
    address = address_of(path)
    return {
        "place": address or str(path.resolve()),
        "path": shlex.quote(address or str(path)),  # for commands that are copied
        "uuid": store.uuid,
        "generation": store.generation,
        "rows": len(table),
        "columns": [
            {
                "name": name,
                "kind": kind,
                "is_score": is_score(table, name),
                "is_of_run": name in table.scores,
            }
            for name, kind in table.kinds.items()
        ],
        "thresholds": table.thresholds,
        "labels": label_names(store.provenance),
        "counts": label_counts(table),
        "models": model_names(store.provenance),
        "shown": shown_columns(table),
        "tokens": token_columns(store.schema),
        "pictures": pictures(store.schema),
        "layers": store.layers("hidden_states") if "hidden_states" in columns else [],
        "attention": store.layers("attn_mean") if has_attention(store.schema) else [],
        "head_edges": head_edges(store),
        "heads": {name: store.layers(name) for name in head_columns(store.schema)},
        "maps": [found._asdict() for found in table.maps.values()],
        "states": map_states(store),
        "vectors": {name: store.layers(name) for name in state_columns(store.schema)},
    }


def label_names(provenance: Mapping[str, object]) -> dict[str, str]:
    """What the labels 0 and 1 mean, as the store says it, else as every trace's labels do.

    Stores that were merged have to say the same.
    """
    first, *others = (record.get(LABEL_NAMES_KEY) for record in records_of(provenance))
    known = first if isinstance(first, Mapping) and all(one == first for one in others) else {}
    return {label: str(known.get(label, usual)) for label, usual in LABELS.items()}


def label_counts(table: Table, rows: np.ndarray | slice = slice(None)) -> list[int]:
    """How many of some rows have the labels 0 and 1; nothing of a store without labels."""
    if not table.has_labels:
        return []
    labels = table.numbers("label")[rows]
    return [int(np.count_nonzero(labels == label)) for label in (0, 1)]


def model_names(provenance: Mapping[str, object]) -> list[str]:
    """The models that made the traces, each once, as far as a name is recorded."""
    recorded = (record.get("model") for record in records_of(provenance))
    return list(dict.fromkeys(name.partition(",")[0] for name in recorded if isinstance(name, str)))


def is_score(table: Table, name: str) -> bool:
    """Whether a column holds a detector's scores: a run's, or kept by `train predict --to-store`.

    The column `score` is none: it says how good an answer is.
    """
    return name in table.scores or (name.startswith(SCORES) and table.kinds[name] == "number")


def shown_columns(table: Table) -> list[str]:
    """The columns of the table until somebody chooses others: the id, what the trace is about,
    scores of runs, and the rest but for what `store.traces.columns` leaves out."""
    known = TRACE_COLUMNS.items()
    left_out = {name for name, column in known if not column.in_table}
    lead = [name for name in (TRACE_ID, *TABLE_FIRST) if name in table.kinds]
    rest = [name for name in table.kinds if name not in left_out and name not in lead]
    rest.sort(key=lambda name: name not in table.scores)
    chosen = [*lead, *rest] if len(lead) + len(rest) > 2 else [*table.kinds]
    return chosen[:N_SHOWN]


def describe_run(run: Run, number: int, uuid: str) -> dict[str, Any]:
    """A run's name, its path for commands that are copied, what its probes say of layers, whether
    it was trained on other stores than that of `uuid`, and where its report is, if there is one.
    """
    known = {"name": run.name, "path": shlex.quote(str(run.path)), "layers": run.layers}
    is_there = (run.path / REPORT).is_file()
    report = f"/runs/{number}/{REPORT}" if is_there else None
    trained_on = run.store_uuids
    is_foreign = bool(trained_on) and uuid not in trained_on
    return known | {"is_foreign": is_foreign, "report": report}


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """What tells different absolute paths apart: their last parts, as few as that takes.

    >>> distinct_names([Path("/a/run"), Path("/b/run"), Path("/b/last")])
    ['a/run', 'b/run', 'last']
    """

    def tail(path: Path, n: int) -> tuple[str, ...]:
        return path.parts[-n:]

    names = []
    for path in paths:
        lengths = range(1, len(path.parts))
        alone = (n for n in lengths if [tail(each, n) for each in paths].count(tail(path, n)) == 1)
        names.append("/".join(tail(path, next(alone, len(path.parts)))))
    return names
