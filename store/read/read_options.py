"""The arguments of a read of an array: places, memory, threads, and when items are needed again."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from store.read.file_reads import FileReads
from store.read.landed_chunks import LandedChunks

__all__ = [
    "DEFAULT",
    "SHARED_BYTES",
    "Empty",
    "Located",
    "NextUse",
    "ReadOptions",
    "Schedule",
    "Select",
    "Work",
]

SHARED_BYTES = 4 * 1024 * 1024  # reads larger than this are worth sharing among threads


class Located(NamedTuple):
    """The ranges of places that one read copies.

    Attributes
    ----------
    starts, stops
        int64 `(n,)`.
    shards
        The shard of each, where every range lies in one: int64 `(n,)`; None: not known.
    """

    starts: np.ndarray
    stops: np.ndarray
    shards: np.ndarray | None = None


Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
Work = Callable[[list], None]
Select = tuple[slice, ...]
"""A slice for each item axis; empty: whole items."""
NextUse = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(i, first, last) -> when any of the items `first` to `last` is needed again after the i-th range
of this read; all `(n,)`."""


class ReadOptions(NamedTuple):
    """How a read gets its memory, shares its work, and informs the cache.

    Attributes
    ----------
    empty
        (shape, dtype) -> uninitialised memory.
    required
        Whether every array must lie in that memory; else what was gathered elsewhere may stay
        there.
    share
        (work, items): calls `work` with lists that together hold the items, one after the other or
        in threads.
    next_use
        When items are needed again, for the cache of decoded chunks; None: not known.
    files
        Reads long ranges that are not in memory from their files; None: they are copied from maps.
    landed
        Chunks of a mirror that are not in their shards; None: all are.
    """

    empty: Empty = np.empty
    required: bool = False
    share: Callable[[Work, list], None] = lambda work, items: work(items)
    next_use: NextUse | None = None
    files: FileReads | None = None
    landed: LandedChunks | None = None

    def place(self, array: np.ndarray) -> np.ndarray:
        """An array that was made elsewhere, copied if it must lie in this memory."""
        if not self.required:
            return array
        out = self.empty(array.shape, array.dtype)
        np.copyto(out, array)
        return out

    def run(self, work: Work, items: list, n_bytes: int) -> None:
        """Do the work that fills so many bytes, shared if it is large."""
        if n_bytes < SHARED_BYTES:
            work(items)
        else:
            self.share(work, items)


DEFAULT = ReadOptions()


class Schedule(NamedTuple):
    """When announced ranges will be read; time counts the rows that all readers read before.

    Attributes
    ----------
    now
        The time of the announcement.
    first, step
        The time of the first range, and between one and the next.
    row_bytes
        Bytes that are read of a row: those that a unit of time has.
    next_use
        When items are needed again, after the i-th range; None: not known.
    """

    now: float = 0.0
    first: float = 0.0
    step: float = 0.0
    row_bytes: float = 1.0
    next_use: NextUse | None = None
