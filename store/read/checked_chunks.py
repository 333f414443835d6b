"""Which chunks of an array have been checked against their checksums. Knows no file."""

import threading
from functools import cached_property

import numpy as np

__all__ = ["CheckedChunks"]


class CheckedChunks:
    """The chunks that were found right; safe for threads.

    Parameters
    ----------
    n_chunks, n_planes
        Of the array.

    Attributes
    ----------
    has_all
        Whether no chunk is missing.
    """

    def __init__(self, n_chunks: int, n_planes: int) -> None:
        self._shape = (n_chunks, n_planes)
        self._n_missing = n_chunks * n_planes
        self._lock = threading.Lock()
        self.has_all = not self._n_missing

    @cached_property
    def _is_right(self) -> np.ndarray:
        # not before a shard was opened: what a manifest claims may be more than fits into memory
        return np.zeros(self._shape, bool)

    def missing(self, chunks: np.ndarray, planes: np.ndarray) -> np.ndarray:
        """Those of some chunks, int64 `(n,)`, that lack one of these planes."""
        with self._lock:  # one thread makes the array
            is_right = self._is_right
        return chunks[~is_right[chunks[:, None], planes].all(axis=1)]

    def add(self, chunks: np.ndarray, planes: np.ndarray) -> None:
        """Note that these chunks are right in these planes; int64 `(n,)`, each once."""
        with self._lock:  # another thread may have checked some of them meanwhile
            found = self._is_right[chunks[:, None], planes]
            self._is_right[chunks[:, None], planes] = True
            self._n_missing -= found.size - np.count_nonzero(found)
            self.has_all = not self._n_missing
