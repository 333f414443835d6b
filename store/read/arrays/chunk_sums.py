"""The checksums that the chunks of an array should have, and which chunks have them for certain."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.read.arrays.shard import RESTORE

__all__ = ["CheckedChunks", "ChunkSums"]


class ChunkSums:
    """The checksums that the chunks of an array should have: of whole ones, uint32 `(n, n_planes)`,
    which `read_whole` reads, and of the padded last one, which the manifest has."""

    def __init__(
        self,
        read_whole: Callable[[int, int], np.ndarray],
        array: StoredArray,
        manifest: Manifest,
    ) -> None:
        has_tail = array.n_places % array.layout.chunk_items > 0
        self._read_whole = read_whole
        self._n_whole = array.checksums.n_items
        self._array = array
        self._tail = np.array([manifest.tails.get(array.layout.path, [])], np.uint32)
        self._n_tail = array.layout.n_planes if has_tail else 0

    def read_chunks(self, first: int, last: int) -> np.ndarray:
        """The sums of the chunks `first:last` of one shard, counted through all shards; see
        `read`."""
        at = self._array.sum_of_chunk(first)
        return self.read(at, at + last - first)

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of all whole chunks, and of the last one if it is padded: uint32 `(n, n_planes)`
        and `(0 or 1, n_planes)`; raises CorruptError."""
        n_whole = self._n_whole
        sums = self.read(0, n_whole + bool(self._n_tail))
        return sums[:n_whole], sums[n_whole:]

    def read(self, start: int, stop: int) -> np.ndarray:
        """The sums `start:stop`: uint32 `(n, n_planes)`; raises CorruptError."""
        n_whole = self._n_whole
        n_tail = self._tail.size
        if n_tail != self._n_tail:
            path = self._array.checksums.layout.path
            expected = f"{self._n_tail} checksums of its last chunk"
            raise CorruptError(f"array {path!r}: expected {expected}, found {n_tail}; {RESTORE}")
        try:
            whole = self._read_whole(min(start, n_whole), min(stop, n_whole))
        except DamagedItemsError as error:  # its items are chunks, and must not be taken for rows
            raise CorruptError(str(error)) from error
        return np.concatenate([whole, self._tail]) if stop > n_whole else whole


class CheckedChunks:
    """The chunks that were found right; threads that both find one so agree. `has_all`: none is
    missing."""

    def __init__(self, n_chunks: int, n_planes: int) -> None:
        self._shape = (n_chunks, n_planes)
        self.has_all = not n_chunks

    @cached_property
    def _is_right(self) -> np.ndarray:
        # not before a shard was opened: what a manifest claims may be more than fits into memory
        return np.zeros(self._shape, bool)

    def missing(self, chunks: np.ndarray, planes: np.ndarray) -> np.ndarray:
        """Those of some chunks, int64 `(n,)`, that lack one of these planes."""
        return chunks[~self._is_right[chunks[:, None], planes].all(axis=1)]

    def add(self, chunks: np.ndarray, planes: np.ndarray) -> None:
        """Note that these chunks are right in these planes; int64 `(n,)`."""
        self._is_right[chunks[:, None], planes] = True
        self.has_all = bool(self._is_right.all())  # which mostly ends at the first
