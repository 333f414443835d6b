"""Chunks of a mirrored array that are in memory, and not yet in their shards."""

from typing import NamedTuple

import numpy as np

from store.errors import CorruptError
from store.format.contents import StoredArray
from store.read.chunk_states import ChunkStates, cells_of_chunks

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
    states
        Its states.
    memory
        See `Landed`.
    """

    array: StoredArray
    states: ChunkStates
    memory: np.ndarray

    def positions(self, chunks: np.ndarray, plane: int) -> np.ndarray:
        """Where chunks, int64 `(n,)`, are in the memory: int64; -1 of those that are not."""
        some = cells_of_chunks(self.array, chunks, np.array([plane]))
        return self.states.positions(some)

    def copy(self, chunk: int, plane: int, n_bytes: int) -> bytes | None:
        """The bytes of a chunk; None if it is in its shard.

        Another chunk of the same size, which has come into its place meanwhile, would be right by a
        checksum of its own: decoded, it would be kept as this one.

        Raises
        ------
        CorruptError
            It has left the memory meanwhile.
        """
        cell = cells_of_chunks(self.array, np.array([chunk]), np.array([plane]))
        before = int(self.states.versions[cell][0])
        position = int(self.states.positions(cell)[0])
        if position < 0:
            return None
        found = self.memory[position : position + n_bytes].tobytes()
        if not before & 1 or int(self.states.versions[cell][0]) != before:
            raise CorruptError(
                f"array {self.array.layout.path!r}, chunk {chunk}: expected it to stay while it is "
                "copied, found that it went; read it again"
            )
        return found
