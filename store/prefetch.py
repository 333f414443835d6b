"""Reading ahead of a known order: which rows come next, and asking the kernel for them in time.

The kernel guesses that the next bytes of a file come next; under a shuffle they never do (a plain map reads
cold data at 0.5 GB/s). We know the order, so we name the ranges of the batches to come (1.2-2.2 GB/s). What
is in the page cache already needs no advice, which would only cost time: a sample of pages is looked at first.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from store.plan import ReadPlan
from store.reader import TraceStore

__all__ = ["Readahead", "VisitTimes", "row_bytes"]

GROUP_BYTES = 8 * 1024 * 1024  # looked at and asked for together, so that small batches pay little
SAMPLE_ROWS = 4


def row_bytes(store: TraceStore, plan: ReadPlan) -> float:
    """Mean bytes that a plan reads of a row."""
    sizes = (store.n_items(part.name) * part.column.item_bytes * part.share for part in plan.parts)
    return sum(sizes) / max(1, len(store))


class Readahead:
    """Keeps the kernel a number of bytes ahead of the batches being read.

    Parameters
    ----------
    store, plan
        What is read.
    batches
        Rows of every batch, in order.
    budget_bytes
        How far ahead; 0 asks for nothing.
    """

    def __init__(self, store: TraceStore, plan: ReadPlan, batches: Sequence[np.ndarray], budget_bytes: int) -> None:
        self.store, self.plan, self.batches = store, plan, batches
        batch_bytes = max(1.0, row_bytes(store, plan) * (len(batches[0]) if batches else 1))
        self._group = max(1, math.ceil(GROUP_BYTES / batch_bytes))
        self._window = max(self._group, int(budget_bytes / batch_bytes)) if budget_bytes else 0
        self._asked = 0  # batches looked at so far
        self._thread: ThreadPoolExecutor | None = None

    def before(self, batch: int) -> None:
        """Call before reading batch number `batch`."""
        while self._window and self._asked < min(len(self.batches), batch + self._window):
            rows = np.concatenate(self.batches[self._asked : self._asked + self._group])
            self._asked += self._group
            if not self.store.is_cached(self.plan, rows[:: max(1, len(rows) // SAMPLE_ROWS)]):
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="store-readahead")
                self._thread.submit(self.store.advise, self.plan, rows)

    def close(self) -> None:
        """Stop asking."""
        if self._thread:
            self._thread.shutdown(cancel_futures=True)


class VisitTimes:
    """When each row is visited in this epoch and the next: what a cache must know to evict the right chunk.

    Parameters
    ----------
    epochs
        Of this epoch, then of the next: the time of its first visit, and the rows in the order they are visited.
        Time counts visits and never goes back, because the cache lives longer than an epoch.
    n_rows
        Rows of the store.
    """

    def __init__(self, epochs: Sequence[tuple[int, np.ndarray]], n_rows: int) -> None:
        self._times = np.full((len(epochs), n_rows), -1)
        self._now = epochs[0][0]
        for times, (start, rows) in zip(self._times, epochs, strict=True):
            times[rows] = np.arange(start, start + len(rows))

    def after(self, n_visits: int) -> Callable[[int, int, int], float]:
        """For a batch that comes after `n_visits`: (i, first, last) -> next visit of rows first..last after row i."""

        def next_use(i: int, first: int, last: int) -> float:
            times = self._times[:, first : last + 1]
            later = times[times > self._now + n_visits + i]
            return float(later.min()) if later.size else math.inf

        return next_use
