"""When each row is read next, so that the chunk cache evicts what is needed last (Belady)."""

import math
from collections.abc import Sequence

import numpy as np

from store.read.location import NextUse

__all__ = ["VisitTimes"]


class VisitTimes:
    """When each row is visited in this epoch and the next.

    Each epoch has the time of its first visit, and its rows in the order of the visits, int64
    `(n_visits,)`. Time counts visits and never goes back, because the cache lives longer than an
    epoch.
    """

    def __init__(self, epochs: Sequence[tuple[int, np.ndarray]], n_rows: int) -> None:
        self._times = np.full((n_rows, len(epochs)), -1)
        self._start = epochs[0][0]
        for times, (start, rows) in zip(self._times.T, epochs, strict=True):
            times[rows] = np.arange(start, start + len(rows))

    @classmethod
    def of_epoch(
        cls, epoch: int, rows: np.ndarray, next_rows: np.ndarray, n_rows: int
    ) -> "VisitTimes":
        """The times of the rest of an epoch, `rows`, and of the whole one after it."""
        end = (epoch + 1) * len(next_rows)
        return cls([(end - len(rows), rows), (end, next_rows)], n_rows)

    def after(self, n_visits: int, step: int = 1) -> NextUse:
        """Return the `NextUse` of a batch that comes after `n_visits` of this epoch.

        Its rows are `step` visits apart: other ranks make those between.
        """
        start = self._start + n_visits

        def next_use(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            n_rows = last - first + 1
            starts = np.cumsum(n_rows) - n_rows
            rows = np.arange(n_rows.sum()) + np.repeat(first - starts, n_rows)
            now = start + step * np.repeat(i, n_rows)
            times = self._times[rows].astype(float)
            times[times <= now[:, None]] = math.inf
            return np.minimum.reduceat(times.min(axis=1), starts)

        return next_use
