"""A bounded cache in memory of what detectors compute of traces without weights.

Rows are added as they are read until the bound is reached, and then stay: every epoch visits every
row once, so no other choice would be read more often. What is kept is what would be computed again,
bit for bit; a training is the same with the cache, without it, and continued with an empty one.

Threads of a loader may use it at the same time, as long as no two of them have the same row, as in
an epoch.
"""

from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from models.detector import REDUCED, Detector
from store import Batch
from store.read.arrays.read_options import ReadOptions

__all__ = ["FeatureCache"]

Rows = NDArray[np.int64]


class FeatureCache:
    """Features of rows of a store, by row.

    The detector's `reduce` gives the features (B, ...) of a batch on the CPU; or None, then nothing
    is kept. `n_rows` are those of the store; `max_bytes` bounds what is kept, taken as it comes.
    """

    def __init__(self, detector: Detector, n_rows: int, max_bytes: int) -> None:
        self._detector = detector
        self._max_bytes = max_bytes
        self._slots = np.full(n_rows, -1)  # of each row of the store; -1: not kept
        self._kept = np.zeros(0)  # (n_slots, ...)
        self._n_kept = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of rows that are kept."""
        return self._n_kept

    def missing(self, rows: Rows) -> Rows:
        """Those of some rows (n,) that are not kept, in their order."""
        return rows[self._slots[rows] < 0]

    def complete(self, rows: Rows, read: Batch | None, options: ReadOptions) -> Batch:
        """The batch of some rows, features instead of columns, and keep what fits.

        `read` has the columns of the rows that are `missing`, in their order, or is None if none
        is; the memory of `options` is used. Returns a batch with the one column `REDUCED`, or
        `read` if there is nothing to reduce it to.
        """
        slots = self._slots[rows]
        if read is None:
            features = options.empty((len(slots), *self._kept.shape[1:]), self._kept.dtype)
            np.take(self._kept, slots, axis=0, out=features, mode="clip")  # unbuffered
            return as_batch(rows, features)
        reduced = self._detector.reduce(read)
        if reduced is None:
            return read
        new = reduced.numpy()
        is_kept = slots >= 0
        self._keep(rows[~is_kept], new)
        if not is_kept.any():
            return as_batch(rows, options.place(new))
        features = options.empty((len(rows), *new.shape[1:]), new.dtype)
        features[~is_kept] = new
        features[is_kept] = self._kept[slots[is_kept]]
        return as_batch(rows, features)

    def _keep(self, rows: Rows, features: NDArray) -> None:
        """Keep the features (n, ...) of the first of these rows, as many as fit."""
        with self._lock:
            if not len(self._kept):
                n_slots = min(len(self._slots), self._max_bytes // max(1, features[0].nbytes))
                # pages of it are taken from the machine when they are first written
                self._kept = np.empty((n_slots, *features.shape[1:]), features.dtype)
            first = self._n_kept
            n_new = min(len(rows), len(self._kept) - first)
            self._n_kept += n_new
        self._kept[first : first + n_new] = features[:n_new]
        self._slots[rows[:n_new]] = np.arange(first, first + n_new)


def as_batch(rows: Rows, features: NDArray) -> Batch:
    return Batch(torch.from_numpy(rows), {REDUCED: torch.from_numpy(features)})
