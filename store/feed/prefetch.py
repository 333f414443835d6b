"""Reading ahead of a known order: which rows come next, and asking the kernel for them in time.

The kernel guesses that the next bytes of a file come next; under a shuffle they never do (a plain
map reads cold data at 0.5 GB/s). We know the order, so we name the ranges of the batches to come
(1.2-2.2 GB/s). What is in the page cache already needs no advice, which would only cost time: a
sample of pages is looked at first.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from store.errors import CorruptError
from store.read.array import NextUse
from store.read.plan import ReadPlan
from store.read.store import TraceStore

__all__ = ["Readahead", "VisitTimes", "row_bytes"]

GROUP_BYTES = 8 * 1024 * 1024  # looked at and asked for together, so that small batches pay little
SAMPLE_ROWS = 4


def row_bytes(store: TraceStore, plan: ReadPlan) -> float:
    """Mean bytes that a plan reads of a row."""
    n_rows = max(1, len(store))
    return sum(part.row_bytes(store.n_items(part.name) / n_rows) for part in plan.parts)


class Readahead:
    """Keeps the kernel a number of bytes ahead of the batches being read.

    Parameters
    ----------
    store, plan
        What is read.
    batches
        Rows of every batch, in order.
    budget_bytes
        How far ahead, but the next batch at least; 0 asks for nothing.
    """

    def __init__(
        self, store: TraceStore, plan: ReadPlan, batches: Sequence[np.ndarray], budget_bytes: int
    ) -> None:
        self.store, self.plan, self.batches = store, plan, batches
        batch_bytes = max(1.0, row_bytes(store, plan) * (len(batches[0]) if batches else 1))
        self._group = max(1, math.ceil(GROUP_BYTES / batch_bytes))
        self._window = max(2 * self._group, int(budget_bytes / batch_bytes)) if budget_bytes else 0
        # advice under way or given; None: all of it seems to be in memory
        self._groups: list[Future | None] = []
        self._thread: ThreadPoolExecutor | None = None

    def before(self, batch: int) -> None:
        """Call in order, before batch number `batch` is read or handed to a thread that reads
        it."""
        while self._window and len(self._groups) * self._group < min(
            len(self.batches), batch + self._window
        ):
            first = len(self._groups) * self._group
            rows = np.concatenate(
                [self.batches[i] for i in range(first, min(first + self._group, len(self.batches)))]
            )
            self._groups.append(self._ask(rows))

    def _ask(self, rows: np.ndarray) -> Future | None:
        """Advise on rows that are not cached; what is damaged is left to the read, which says so in
        its turn."""
        with suppress(CorruptError):
            if not self.store.is_cached(self.plan, rows[:: max(1, len(rows) // SAMPLE_ROWS)]):
                self._thread = self._thread or ThreadPoolExecutor(
                    1, thread_name_prefix="store-readahead"
                )
                return self._thread.submit(self._advise, rows)
        return None

    def _advise(self, rows: np.ndarray) -> None:
        with suppress(CorruptError):
            self.store.advise(self.plan, rows)

    def wait(self, batch: int) -> None:
        """Return when the kernel has been asked for a batch.

        Whoever touches a page before that makes the kernel guess, and fetch megabytes around it.
        """
        asked = self._groups[batch // self._group] if self._window else None
        if asked:
            asked.result()

    def close(self) -> None:
        """Stop asking."""
        if self._thread:
            self._thread.shutdown(cancel_futures=True)


class VisitTimes:
    """When each row is visited in this epoch and the next: what a cache must know to evict the
    right chunk.

    Parameters
    ----------
    epochs
        Of this epoch, then of the next: the time of its first visit, and the rows in the order they
        are visited. Time counts visits and never goes back, because the cache lives longer than an
        epoch.
    n_rows
        Rows of the store.
    """

    def __init__(self, epochs: Sequence[tuple[int, np.ndarray]], n_rows: int) -> None:
        self._times = np.full((n_rows, len(epochs)), -1)
        self._now = epochs[0][0]
        for times, (start, rows) in zip(self._times.T, epochs, strict=True):
            times[rows] = np.arange(start, start + len(rows))

    def after(self, n_visits: int) -> NextUse:
        """For a batch that comes after `n_visits`; see `NextUse`."""

        def next_use(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            n_rows = last - first + 1
            starts = np.cumsum(n_rows) - n_rows
            rows = np.arange(n_rows.sum()) + np.repeat(first - starts, n_rows)
            times = self._times[rows].astype(float)
            times[times <= (self._now + n_visits + np.repeat(i, n_rows))[:, None]] = math.inf
            return np.minimum.reduceat(times.min(axis=1), starts) if len(starts) else np.empty(0)

        return next_use
