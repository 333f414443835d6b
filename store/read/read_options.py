"""The arguments of a read of an array: memory, threads, where chunks are, and when items are needed
again."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from store.read.file_reads import FileReads
from store.read.location import NextUse
from store.read.threads import Threads

__all__ = ["DEFAULT", "ChunkSource", "Empty", "ReadOptions", "Schedule", "Select"]

Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
Select = tuple[slice, ...]
"""A slice for each item axis; empty: whole items."""


class ChunkSource(Protocol):
    """Where the chunks of one array are, if not for certain in their shards.

    Attributes
    ----------
    is_empty
        Whether all chunks of this read are in their shards; they may leave these while it copies.
    memory
        Where the others are: uint8.
    """

    @property
    def is_empty(self) -> bool: ...

    @property
    def memory(self) -> np.ndarray: ...

    def positions(self, chunks: np.ndarray, plane: int) -> np.ndarray:
        """Where chunks, int64 `(n,)`, are in the memory: int64; -1 of those in their shards."""
        ...

    def copy(self, chunk: int, plane: int, n_bytes: int) -> bytes | None:
        """The bytes of a chunk in the memory; None if it is in its shard."""
        ...


class ReadOptions(NamedTuple):
    """How a read gets its memory, shares its work, and informs the cache.

    Attributes
    ----------
    empty
        (shape, dtype) -> uninitialised memory.
    required
        Whether every array must lie in that memory; else what was gathered elsewhere may stay
        there.
    threads
        What shares the work.
    next_use
        When items are needed again, for the cache of decoded chunks; None: not known.
    files
        Reads long ranges that are not in memory from their files; None: they are copied from maps.
    source
        Where chunks are; None: in their shards, to stay.
    """

    empty: Empty = np.empty
    required: bool = False
    threads: Threads = Threads()
    next_use: NextUse | None = None
    files: FileReads | None = None
    source: ChunkSource | None = None

    def place(self, array: np.ndarray) -> np.ndarray:
        """An array that was made elsewhere, copied if it must lie in this memory."""
        if not self.required:
            return array
        out = self.empty(array.shape, array.dtype)
        np.copyto(out, array)
        return out


DEFAULT = ReadOptions()


class Schedule(NamedTuple):
    """When announced ranges will be read; time counts the rows that all readers read before.

    Attributes
    ----------
    now
        The time of the announcement.
    first, step
        The time of the first range, and between one and the next.
    row_bytes
        Bytes that are read of a row: those that a unit of time has.
    next_use
        When items are needed again, after the i-th range; None: not known.
    """

    now: float = 0.0
    first: float = 0.0
    step: float = 0.0
    row_bytes: float = 1.0
    next_use: NextUse | None = None
