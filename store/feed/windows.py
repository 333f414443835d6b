"""Batches that are read together, so that a chunk which rows of several share is decoded once.

Under a shuffle the next rows lie in chunks all over a column. Where a chunk holds many rows and the
cache of decoded chunks holds few of the chunks, each batch decodes nearly a chunk for each row. Of
the rows of many batches several lie in each chunk; read together, they cost one decoding, and of
what was decoded only the rows are held. A window is a range of such batches.

What is delivered stays the same: each batch is cut from what was read when it is asked for, into
memory of its own.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from store.feed.prefetch import row_bytes
from store.read.batch import Batch, ColumnValues, Ragged
from store.read.plan import ReadPlan
from store.read.read_options import Empty
from store.read.store import TraceStore

__all__ = ["batches_together", "cut_batches", "is_held", "plan_windows"]

MIN_GAIN = 1.3  # in decoded bytes; less is not worth the memory and the wait
MAX_ROWS_A_CHUNK = 8  # with so many rows of a window in each chunk, more gain little


class Chunks(NamedTuple):
    """The chunks of one compressed column.

    Attributes
    ----------
    n_chunks, n_bytes
        How many there are, and the size of a decoded one, in all planes.
    touched
        Chunks that hold some of a row, at least 1, in the mean.
    """

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

    Parameters
    ----------
    store, plan, batch_size
        What is read.
    max_bytes
        The most that the rows of these batches may have.
    cache_bytes
        Decoded chunks that are kept.
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
            touched = max(1.0, n_chunks / len(store))
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


def cut_batches(batch: Batch, batch_size: int, empty: Empty) -> Iterator[Batch]:
    """Cut a batch into batches of so many rows, the last one possibly shorter, when asked for.

    Parameters
    ----------
    batch
        Left as it is.
    batch_size
        Rows of each.
    empty
        (shape, dtype) -> uninitialised memory; each tensor but offsets and row numbers is copied
        into its own.
    """
    for start in range(0, len(batch), batch_size):
        yield _cut(batch, start, min(start + batch_size, len(batch)), empty)


def _cut(batch: Batch, start: int, stop: int, empty: Empty) -> Batch:
    """A copy of the rows `start:stop`."""
    offsets: dict[int, Tensor] = {}  # columns of one axis share them
    columns: dict[str, ColumnValues] = {}
    for name, values in batch.columns.items():
        if isinstance(values, list):
            columns[name] = values[start:stop]
        elif isinstance(values, Tensor):
            columns[name] = _copy(values[start:stop], empty)
        else:
            key = id(values.offsets)
            cuts = values.offsets[start : stop + 1]
            items = values.values[int(cuts[0]) : int(cuts[-1])]
            if key not in offsets:
                offsets[key] = cuts - cuts[0]
            columns[name] = Ragged(_copy(items, empty), offsets[key])
    return Batch(batch.rows[start:stop].clone(), columns)


def _copy(tensor: Tensor, empty: Empty) -> Tensor:
    memory = torch.from_numpy(empty((tensor.nbytes,), np.dtype(np.uint8)))
    return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)
