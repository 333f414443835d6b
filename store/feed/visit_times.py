"""When each row is read next, so that the chunk cache evicts what is needed last (Belady)."""

import math

import numpy as np

from store.read.arrays.item_location import NextUse

__all__ = ["VisitTimes"]


class VisitTimes:
    """When each row is visited in the rest of an epoch, `rows`, and in the whole one after it.

    Both are int64 `(n_visits,)`, in the order of the visits. Time counts visits and never goes
    back, because the cache lives longer than an epoch.
    """

    def __init__(self, epoch: int, rows: np.ndarray, next_rows: np.ndarray, n_rows: int) -> None:
        end = (epoch + 1) * len(next_rows)
        self._start = end - len(rows)
        self._times = np.full((n_rows, 2), -1)
        self._times[rows, 0] = np.arange(self._start, end)
        self._times[next_rows, 1] = np.arange(end, end + len(next_rows))

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
