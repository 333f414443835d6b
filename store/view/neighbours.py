"""The traces whose states are most like those of one trace."""

import math
from typing import NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.traces.maps import FLOATS, MAX_DIMENSIONS
from store.view.traces import check_row

__all__ = ["nearest", "state_columns"]

MAX_BYTES = 512 * 1024 * 1024  # of states that are read for an answer
BLOCK_BYTES = 16 * 1024 * 1024


class Neighbours(NamedTuple):
    """Rows, the most alike first."""

    rows: np.ndarray  # int64 (n,)
    cosines: np.ndarray  # float32 (n,)


def state_columns(schema: Schema) -> list[str]:
    """Columns with one vector of states for each trace, or one a layer."""
    return [
        name
        for name, column in schema.columns.items()
        if column.axis is None
        and column.dtype in FLOATS
        and math.prod(column.item_shape) > MAX_DIMENSIONS
    ]


def nearest(
    store: TraceStore, row: int, rows: np.ndarray, name: str, layer: int | None = None, n: int = 8
) -> Neighbours:
    """Of some rows, at most `n` whose states have the largest cosine to those of a row.

    `layer` is a position in the column, None for all of it. The row itself, and rows whose states
    are not finite, are left out. Raises NotFoundError if there is no such column, or more states
    than `MAX_BYTES`; IndexError if there is no such row or layer.
    """
    check_row(store, row)
    if name not in state_columns(store.schema):
        raise NotFoundError(f"{store.location}: expected a column of states, found {name!r:.80}")
    column = store.schema.columns[name]
    select = None if layer is None else {name: {LAYERS_AXIS: layer}}
    mine = _directions(store, np.array([row]), name, select)[0]
    width = len(mine) * 4
    if width * len(rows) > MAX_BYTES:
        raise NotFoundError(
            f"nearest traces: expected at most {MAX_BYTES // width:,} rows of {name}, "
            f"found {len(rows):,}; filter first"
        )
    others = rows[rows != row].astype(np.int64)
    block = max(1, BLOCK_BYTES // (math.prod(column.item_shape) * 4))
    parts = [
        _directions(store, others[start : start + block], name, select) @ mine
        for start in range(0, len(others), block)
    ]
    cosines = np.concatenate([np.zeros(0, np.float32), *parts])
    known = np.flatnonzero(np.isfinite(cosines))
    best = known[np.argsort(-cosines[known], kind="stable")[:n]]
    return Neighbours(others[best], cosines[best])


def _directions(store: TraceStore, rows: np.ndarray, name: str, select: dict | None) -> np.ndarray:
    """States of rows, as vectors of length 1: float32 `(n, width)`; NaN where they have none."""
    states = store.read_arrays(rows, [name], select).float32(name).reshape(len(rows), -1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return states / np.linalg.norm(states, axis=1, keepdims=True)
