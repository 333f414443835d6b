"""The arguments of a read of an array: memory, threads, and when items are needed again."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from store.read.arrays.file_reads import FileReads
from store.read.arrays.item_location import NextUse

__all__ = [
    "DEFAULT",
    "SHARED_BYTES",
    "UNSCHEDULED",
    "ItemSlices",
    "ReadOptions",
    "Schedule",
    "Threads",
    "n_selected",
]


SHARED_BYTES = 4 * 1024 * 1024  # reads larger than this are worth sharing
RUNS_PER_THREAD = 4

Work = Callable[[list], None]


class Threads:
    """The calling thread, and `n - 1` threads of a pool.

    The items of some work are cut into runs of neighbours, which may share a chunk, and each thread
    takes the next run when it is free, so a thread that gets no core delays no other.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None, n: int = 1) -> None:
        self._pool = pool
        self._n = n

    def run(self, work: Work, items: list, n_bytes: int) -> None:
        """Do the work that fills so many bytes: shared if it is large, else in this thread.

        After an error no further run begins, and the error is raised here.
        """
        if self._pool is None or n_bytes < SHARED_BYTES:
            work(items)
            return
        size = max(1, -(-len(items) // (RUNS_PER_THREAD * self._n)))
        runs = iter([items[first : first + size] for first in range(0, len(items), size)])

        def take_runs() -> None:
            try:
                for run in runs:
                    work(run)
            finally:
                deque(runs, maxlen=0)  # after an error: no thread begins another

        others = [self._pool.submit(take_runs) for _ in range(self._n - 1)]
        try:
            take_runs()
        finally:
            begun = [other for other in others if not other.cancel()]
            wait(begun)
        for other in begun:
            other.result()


Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
ItemSlices = tuple[slice | np.ndarray, ...]
"""A slice for each item axis, or of one of them rising positions; empty: whole items."""


def n_selected(part: slice | np.ndarray, n: int) -> int:
    """How much of an axis of length n a part has."""
    return len(range(n)[part]) if isinstance(part, slice) else len(part)


class ReadOptions(NamedTuple):
    """How a read gets its memory, shares its work, and informs the cache.

    `empty` makes uninitialised memory of a shape and a dtype. If it is `required`, every array must
    lie there; else what was gathered elsewhere may stay. `next_use` is when items are needed again,
    for the cache of decoded chunks; None: not known. `files` reads long ranges that are not in
    memory from their files; None: they are copied from maps.
    """

    empty: Empty = np.empty
    required: bool = False
    threads: Threads = Threads()
    next_use: NextUse | None = None
    files: FileReads | None = None

    def place(self, array: np.ndarray) -> np.ndarray:
        """An array that was made elsewhere, copied if it must lie in this memory."""
        if not self.required:
            return array
        out = self.empty(array.shape, array.dtype)
        np.copyto(out, array)
        return out


DEFAULT = ReadOptions()


class Schedule(NamedTuple):
    """When announced ranges will be read; time counts the rows that all readers read before.

    `now` is the time of the announcement, `first` that of the first range, `step` between one and
    the next; a unit of time has `row_bytes`. `next_use` is when items are needed again, after the
    i-th range; None: not known.
    """

    now: float = 0.0
    first: float = 0.0
    step: float = 0.0
    row_bytes: float = 1.0
    next_use: NextUse | None = None


UNSCHEDULED = Schedule()
