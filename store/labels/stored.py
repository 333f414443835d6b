"""The columns `score` and `label` of a store."""

import math

import numpy as np
from numpy.typing import NDArray

from store.errors import SchemaError
from store.format.schema import Column, Schema
from store.labels.rule import UNLABELLED, Labels
from store.read.store import TraceStore

__all__ = ["label_columns", "read_labels"]

WIDE = ("float64", "int32", "int64", "uint32", "uint64")  # have values that float32 rounds
SIGNED = ("int8", "int16", "int32", "int64")


def label_columns(schema: Schema) -> dict[str, Column]:
    """The columns `score` and `label` to write: wide enough for what a store has in them."""
    score = schema.columns.get("score")
    label = schema.columns.get("label")
    return {
        "score": Column("float64" if score and score.dtype in WIDE else "float32"),
        "label": Column(label.dtype if label and label.dtype in SIGNED else "int8"),
    }


def read_labels(store: TraceStore) -> Labels:
    """Read scores and labels; NaN and -1 where a store has no such column.

    Raises SchemaError if a column is not one number a row, or a label is not a whole number.
    """
    scores = _read_numbers(store, "score")
    labels = _read_numbers(store, "label")
    labels[np.isnan(labels)] = UNLABELLED
    broken = np.flatnonzero(labels != np.rint(labels))
    if len(broken):
        row = int(broken[0])
        raise SchemaError(
            f"{store.path}: column 'label', trace {store.ids[row]!r}: expected a whole number, "
            f"found {labels[row]:g}; write it again as 1, 0 or -1"
        )
    return Labels(scores, labels.astype(np.int64))


def _read_numbers(store: TraceStore, name: str) -> NDArray[np.float64]:
    """A column of single numbers, a copy; NaN in all rows if there is none."""
    column = store.schema.columns.get(name)
    if column is None:
        return np.full(len(store), math.nan)
    if column.is_text or not column.is_single:
        raise SchemaError(
            f"{store.path}: column {name!r}: expected one number in each row, found {column}; "
            f"{name} is the column that store label writes: give yours another name"
        )
    return np.array(store.column_array(name), np.float64)
