"""Chunks of a mirrored array that are in memory, and not yet in their shards."""

from typing import NamedTuple

import numpy as np

from store.format.contents import StoredArray
from store.read.chunk_states import cells_of_chunks

__all__ = ["Landed", "LandedChunks"]


class Landed(NamedTuple):
    """The landing memory of a fetching process.

    Attributes
    ----------
    number
        Which.
    memory
        Read-only: uint8 `(n_bytes,)`.
    """

    number: int
    memory: np.ndarray


class LandedChunks(NamedTuple):
    """Those of one array.

    Attributes
    ----------
    array
        Which.
    places
        See `ChunkStates`.
    memory
        See `Landed`.
    """

    array: StoredArray
    places: np.ndarray
    memory: np.ndarray

    def positions(self, chunks: np.ndarray, plane: int) -> np.ndarray:
        """Where chunks, int64 `(n,)`, are in the memory: int64; -1 of those that are not."""
        some = cells_of_chunks(self.array, chunks, np.array([plane]))
        return self.places[some].astype(np.int64) - 1

    def find(self, chunk: int, plane: int, n_bytes: int) -> memoryview | None:
        """The bytes of a chunk; None if it is in its shard."""
        (position,) = self.positions(np.array([chunk]), plane).tolist()
        return None if position < 0 else self.memory[position : position + n_bytes].data
