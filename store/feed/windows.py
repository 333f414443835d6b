"""Batches that are read together: a window is a range of them.

There are two reasons. What Python does for a read takes longer than copying a few small rows; of a
window it is done once. And under a shuffle the next rows lie in chunks all over a column: where a
chunk holds many rows and the cache of decoded chunks holds few of the chunks, each batch decodes
nearly a chunk for each row. Of the rows of many batches several lie in each chunk; read together,
they cost one decoding, and of what was decoded only the rows are held.

What is delivered stays the same: each batch is cut from what was read when it is asked for.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from store.feed.prefetch import row_bytes
from store.read.arrays.read_options import ReadOptions
from store.read.batches.batch import Batch, as_numpy, as_torch
from store.read.batches.tensors import ColumnValues, Ragged, ragged_arrays
from store.read.plan import ReadPlan
from store.read.store import TraceStore

__all__ = [
    "MOST_SHARED_BYTES",
    "SMALL_WINDOW_BYTES",
    "batches_together",
    "cut_batches",
    "is_held",
    "plan_windows",
    "small_batches_together",
]

# Rows of at most SMALL_ROW_BYTES are read together: up to SMALL_WINDOW_ROWS of them, or
# SMALL_WINDOW_BYTES. Their batches share that memory.
SMALL_ROW_BYTES = 16 * 1024
SMALL_WINDOW_ROWS = 4096
SMALL_WINDOW_BYTES = 4 * 1024 * 1024
MOST_SHARED_BYTES = 2 * SMALL_WINDOW_BYTES  # rows of a window may be larger than the mean
# of memory from NumPy or from a pool
ALIGNMENT = 16

MIN_GAIN = 1.3  # in decoded bytes; less is not worth the memory and the wait
MAX_ROWS_A_CHUNK = 8  # with so many rows of a window in each chunk, more gain little


class Chunks(NamedTuple):
    """The chunks of one compressed column: how many, the bytes of a decoded one in all planes, and
    how many hold some of a row, at least 1, in the mean."""

    n_chunks: int
    n_bytes: int
    touched: float

    def decoded_bytes(self, n_rows: int) -> float:
        """Expected bytes to decode for random rows that are read together."""
        if self.touched > 1:  # rows as large as chunks share none
            return n_rows * self.touched * self.n_bytes
        return self.n_chunks * -math.expm1(-n_rows / self.n_chunks) * self.n_bytes


def batches_together(
    store: TraceStore, plan: ReadPlan, batch_size: int, max_bytes: float, cache_bytes: int
) -> int:
    """How many batches of random rows to read together; 1 where more gain nothing.

    Their rows may have `max_bytes`; `cache_bytes` of decoded chunks are kept.
    """
    if is_held(store, plan, cache_bytes):
        return 1
    columns = _compressed_chunks(store, plan)
    most_chunks = max(chunks.n_chunks for chunks in columns)
    batch_bytes = max(1.0, row_bytes(store, plan) * batch_size)
    n_rows = min(max_bytes / batch_bytes * batch_size, MAX_ROWS_A_CHUNK * most_chunks)
    n_together = max(1, int(n_rows / batch_size))
    together = sum(chunks.decoded_bytes(n_together * batch_size) for chunks in columns)
    apart = n_together * sum(chunks.decoded_bytes(batch_size) for chunks in columns)
    return n_together if apart > MIN_GAIN * together else 1


def small_batches_together(store: TraceStore, plan: ReadPlan, batch_size: int) -> int:
    """How many batches to read together because their rows are small; 1 if they are not."""
    n_bytes = row_bytes(store, plan)
    if n_bytes > SMALL_ROW_BYTES:
        return 1
    n_rows = min(SMALL_WINDOW_ROWS, SMALL_WINDOW_BYTES / max(1.0, n_bytes))
    return max(1, int(n_rows / batch_size))


def is_held(store: TraceStore, plan: ReadPlan, cache_bytes: int) -> bool:
    """Whether a cache holds all that a plan decodes, so that nothing is decoded twice.

    That of a plan without compressed columns is nothing.
    """
    columns = _compressed_chunks(store, plan)
    return sum(chunks.n_chunks * chunks.n_bytes for chunks in columns) <= cache_bytes


def _compressed_chunks(store: TraceStore, plan: ReadPlan) -> list[Chunks]:
    """The chunks of the compressed columns that have items."""
    columns = []
    for part in plan.parts:
        n_items = store.n_items(part.name)
        column = part.column
        if column.codec and n_items:
            n_chunks = -(-n_items // column.chunk_items)
            n_read = n_items if plan.is_of_tokens(part.span) else len(store)
            touched = max(1.0, n_chunks / n_read)
            columns.append(Chunks(n_chunks, column.chunk_items * column.item_bytes, touched))
    return columns


def plan_windows(n_batches: int, n_together: int) -> Iterator[range]:
    """Cut batches into windows: 1, 2, 4, … up to `n_together`, so that the first comes soon."""
    start = 0
    size = 1
    while start < n_batches:
        stop = min(start + size, n_batches)
        yield range(start, stop)
        start = stop
        size = min(2 * size, n_together)


def cut_batches(batch: Batch, cuts: Sequence[int], options: ReadOptions) -> Iterator[Batch]:
    """Cut a batch into batches, when asked for: `cuts` rise from 0 to its number of rows.

    Values are copied as `options` say; of a small batch they are views if they need not be copied.
    Offsets and row numbers are always copied.
    """
    whole = as_numpy(batch)
    numbers = [values for values in whole.columns.values() if not isinstance(values, list)]
    arrays = [values.values if isinstance(values, Ragged) else values for values in numbers]
    is_small = sum(array.nbytes for array in arrays) <= MOST_SHARED_BYTES
    copied = options._replace(required=True)

    def place(values: np.ndarray) -> np.ndarray:
        # Products of matrices end with other bits in memory that begins elsewhere: where a batch
        # is in its window must not be seen.
        return (options if is_small and _is_aligned(values) else copied).place(values)

    for start, stop in pairwise(cuts):
        # Tensors are made of the parts, not cut from a tensor: what pickles one then pickles its
        # own memory alone.
        part = _cut(whole, start, stop, place)
        yield part if batch.arrays == "numpy" else as_torch(part)


def _is_aligned(values: np.ndarray) -> bool:
    return not values.__array_interface__["data"][0] % ALIGNMENT


def _cut(whole: Batch, start: int, stop: int, place: Callable[[np.ndarray], np.ndarray]) -> Batch:
    """The rows `start:stop`, of NumPy arrays."""
    offsets: dict[int, np.ndarray] = {}  # columns of one axis share them
    columns: dict[str, ColumnValues | np.ndarray] = {}
    for name, values in whole.columns.items():
        if isinstance(values, list):
            columns[name] = values[start:stop]
        elif isinstance(values, Ragged):
            key = id(values.offsets)
            cuts = np.asarray(values.offsets[start : stop + 1])
            if key not in offsets:
                offsets[key] = cuts - cuts[0]
            items = np.asarray(values.values[cuts[0] : cuts[-1]])
            columns[name] = ragged_arrays(place(items), offsets[key])
        else:
            columns[name] = place(np.asarray(values[start:stop]))
    positions = None
    if whole.positions is not None:
        positions = np.asarray(whole.positions[start:stop]).copy()
    return Batch(np.asarray(whole.rows[start:stop]).copy(), columns, positions)
