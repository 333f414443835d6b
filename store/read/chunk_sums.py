"""The checksums that the chunks of an array should have."""

from typing import TYPE_CHECKING

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.read.shard import RESTORE

if TYPE_CHECKING:
    from store.read.array import Array

__all__ = ["ChunkSums"]


class ChunkSums:
    """The checksums that the chunks of an array should have.

    Parameters
    ----------
    whole
        The array of the checksums of whole chunks.
    array
        The array that they are of.
    manifest
        What is committed; has those of the padded last chunk.
    """

    def __init__(self, whole: "Array", array: StoredArray, manifest: Manifest) -> None:
        has_tail = array.n_places % array.layout.chunk_items > 0
        self._whole = whole
        self._array = array
        self._tail = np.array([manifest.tails.get(array.layout.path, [])], np.uint32)
        self._n_tail = array.layout.n_planes if has_tail else 0

    def read_chunks(self, first: int, last: int) -> np.ndarray:
        """The sums of the chunks `first:last` of one shard, counted through all shards; see
        `read`."""
        at = self._array.sum_of_chunk(first)
        return self.read(at, at + last - first)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The sums `start:stop`: uint32 `(n, n_planes)`; raises CorruptError."""
        n_whole = self._whole.n_items
        n_tail = self._tail.size
        if n_tail != self._n_tail:
            expected = f"{self._n_tail} checksums of its last chunk"
            raise CorruptError(
                f"array {self._whole.layout.path!r}: expected {expected}, found {n_tail}; {RESTORE}"
            )
        try:
            whole = self._whole.read(min(start, n_whole), min(stop, n_whole))
        except DamagedItemsError as error:  # its items are chunks, and must not be taken for rows
            raise CorruptError(str(error)) from error
        return np.concatenate([whole, self._tail]) if stop > n_whole else whole
