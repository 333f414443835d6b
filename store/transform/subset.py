"""The rows of a subset of a store: by trace ids, by questions, or by split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError
from store.read.questions import QUESTION_ID, question_ids, question_texts, read_texts
from store.read.store import TraceStore
from store.text_records import name_file
from store.traces.identity import COMMAND
from store.traces.label_keys import LABELS_BEFORE
from store.traces.question_split import SPLITS, join_questions, split_of_question

__all__ = [
    "read_ids",
    "rows_of_ids",
    "rows_of_questions",
    "rows_of_split",
    "rows_where",
    "subset_provenance",
]


def read_ids(path: Path) -> list[str]:
    """Read ids from a text file, one a line; lines end in LF or CR LF, and in nothing else."""
    with name_file(path, "a file of ids, one a line"):
        text = path.read_bytes().decode("utf-8-sig")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return [line for line in lines if line]


def rows_of_ids(store: TraceStore, ids: Sequence[str]) -> list[int]:
    """Return the rows of traces in the order of their ids; raises NotFoundError."""
    return [store.row_of(trace_id) for trace_id in dict.fromkeys(ids)]


def rows_of_questions(store: TraceStore, questions: Sequence[str]) -> list[int]:
    """Return all rows of some questions, ascending; raises NotFoundError if one has no trace."""
    wanted = set(questions)
    present = read_texts(store, QUESTION_ID)
    missing = wanted.difference(present)
    if missing:
        raise NotFoundError(
            f"{store.location}: expected traces of each question, found none of {min(missing)!r}"
        )
    return [row for row, question in enumerate(present) if question in wanted]


def rows_of_split(store: TraceStore, split: str, seed: int) -> list[int]:
    """Return all rows of the questions of a split, unlabelled ones included, ascending."""
    if split not in SPLITS:
        raise SchemaError(f"expected one of the splits {SPLITS}, found {split!r}")
    questions = join_questions(question_ids(store), question_texts(store))
    return [
        row for row, question in enumerate(questions) if split_of_question(question, seed) == split
    ]


def rows_where(store: TraceStore, rows: Sequence[int], filter: str) -> list[int]:
    """Return those of some rows that a filter means, in their order; raises SchemaError."""
    is_meant = np.zeros(len(store), bool)
    is_meant[store.where(filter)] = True
    chosen = np.asarray(rows, np.int64)
    return chosen[is_meant[chosen]].tolist()


def subset_provenance(store: TraceStore, chosen: Mapping[str, object]) -> dict[str, Any]:
    """The provenance of a subset: that of the store, and which rows of it were chosen.

    The labels that `label --undo` would bring back are those of the store alone.
    """
    subset = {**chosen, "of": store.uuid, "generation": store.generation}
    inherited = {key: value for key, value in store.provenance.items() if key != LABELS_BEFORE}
    if COMMAND in inherited:
        subset["of_command"] = inherited.pop(COMMAND)
    return inherited | {"subset": subset}
