"""Which chunks of an array are in the cache, and where: a small file that its readers map.

Every chunk of every plane has a cell, and every cell a word: 0 while its chunk is not there, else
its slot in the slab and the tick at which it came; negative while it may not be read before it is
checked. No two arrivals have a tick in common. So a reader that finds the same word before and
after it has copied a chunk has copied this chunk, and not what came into the slot after it. Only
the fetching process of a node writes.
"""

import errno
import mmap
import os
from pathlib import Path

import numpy as np

from store.format.contents import StoredArray
from store.read.arrays.mapped_file import MappedFile
from store.remote.cache.eviction import UseTimes
from store.remote.cache.slab import BLOCK, slots

__all__ = [
    "CHUNK_MARGIN",
    "ChunkIndex",
    "WritableIndex",
    "are_here",
    "cells_of_chunks",
    "index_bytes",
    "n_cells",
    "positions_of",
    "shard_cells",
]

CHUNK_MARGIN = 2 * BLOCK  # what a chunk may take in the slab beyond its bytes
HEADER_BYTES = 64
CELL_BYTES = 8 + 4  # a word, and the bytes of the chunk
SLOT_BITS = 30  # of a word: 4 TiB of blocks; the tick follows
SLOT_MASK = 2**SLOT_BITS - 1
UNCHECKED = -(2**63)  # the sign of a word


def shard_cells(array: StoredArray) -> int:
    """Cells of a full shard: those of its first plane, then of the next."""
    return array.layout.shard_chunks * array.layout.n_planes


def n_cells(array: StoredArray) -> int:
    """Cells of an array, with those that its last shard has no chunks for."""
    return array.n_shards * shard_cells(array)


def cells_of_chunks(array: StoredArray, chunks: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """The cells of chunks, counted through all shards, plane after plane: int64."""
    if array.layout.n_planes == 1:
        return chunks
    shard_chunks = array.layout.shard_chunks
    shards, inside = np.divmod(chunks, shard_chunks)
    first = shards * shard_cells(array) + inside
    return (first + planes[:, None] * shard_chunks).ravel()


def are_here(words: np.ndarray) -> np.ndarray:
    """Whether the chunks of these words may be read: bool `(n,)`."""
    return words > 0


def positions_of(words: np.ndarray) -> np.ndarray:
    """Where chunks begin in the slab: int64 `(n,)`."""
    return (words & SLOT_MASK) * BLOCK


def index_bytes(n: int) -> int:
    """Size of the file for so many cells."""
    return HEADER_BYTES + max(1, n) * CELL_BYTES


class ChunkIndex:
    """The index of an array, mapped to be read.

    `words`, int64, and `sizes`, uint32, the bytes of the chunks that are there, are views of the
    file, `(n_cells,)`.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        data = self._file.bytes
        if len(data) <= HEADER_BYTES:
            raise FileNotFoundError(errno.ENOENT, "no index yet", str(path))
        self._is_whole = data[:1]
        self.words, self.sizes = _parts(data)

    def is_current(self) -> bool:
        """Whether the file still has its name: else another process has taken over."""
        return self._file.has_its_name()

    @property
    def is_whole(self) -> bool:
        """Whether every chunk is there."""
        return bool(self._is_whole[0])


class WritableIndex:
    """The index in the process that writes it, with what it alone needs to know of the chunks.

    It is always a new file. What an earlier process has left in the one before is taken over,
    marked as unchecked; readers that have mapped that one find that no chunk is there any more.

    Parameters
    ----------
    n
        Cells; None: as many as the file has that is there.

    Attributes
    ----------
    words, sizes
        See `ChunkIndex`.
    times
        When the chunks are needed.
    pins
        int32: requests that wait for it, or whose reader is copying it.
    is_coming
        bool: it is being fetched or checked, by a job that has its slot.
    was_here
        bool: it had been fetched before.
    is_open
        Whether its store is being read.
    """

    def __init__(self, path: Path, n: int | None = None) -> None:
        self.path = path
        old = _mapped(path)
        if n is None:
            n = (len(old) - HEADER_BYTES) // CELL_BYTES if old is not None else 0
        n = max(1, n)
        new = path.with_name(f"{path.name}.new")
        path.parent.mkdir(exist_ok=True)
        memory = _created(new, index_bytes(n))
        self._is_whole = memory[:1]
        self.words, self.sizes = _parts(memory)
        if old is not None and len(old) == len(memory):
            words, sizes = _parts(old)
            self.words[:] = np.where(words, words | UNCHECKED, 0)
            self.sizes[:] = sizes
        new.replace(path)
        if old is not None:
            old[:1] = 0
            _parts(old)[0][:] = 0
        self.times = UseTimes(self.sizes)
        self.pins = np.zeros(n, np.int32)
        self.is_coming = np.zeros(n, bool)
        self.was_here = np.zeros(n, bool)
        self.n_here = 0
        self.n_chunks = -1
        self.is_open = False

    def missing(self, cells: np.ndarray) -> np.ndarray:
        """Those of some cells that cannot be read yet, and that nobody fetches."""
        return cells[~are_here(self.words[cells]) & ~self.is_coming[cells]]

    def movable(self) -> np.ndarray:
        """The cells whose slots may be taken by others."""
        return np.flatnonzero((self.words != 0) & ~self.is_coming & (self.pins == 0))

    def adopt(self, other: "WritableIndex", cells: np.ndarray) -> None:
        """Take the slots of cells over from the index of another state of the store."""
        words = other.words[cells]
        self.sizes[cells] = other.sizes[cells]
        other.clear(cells)
        self.words[cells] = words | UNCHECKED

    def doubt(self, cells: np.ndarray) -> None:
        """Have chunks that are here be compared with their checksums before they are read."""
        here = cells[are_here(self.words[cells])]
        self._count(-len(here))
        self.words[here] |= UNCHECKED

    def publish(self, cells: np.ndarray, positions: np.ndarray, tick: int) -> None:
        """Tell readers that chunks have come, whose sizes are noted."""
        self.words[cells] = positions // BLOCK | tick << SLOT_BITS
        self.was_here[cells] = True
        self._count(len(cells))

    def clear(self, cells: np.ndarray) -> np.ndarray:
        """Tell readers that chunks are gone; the positions that are free after this."""
        words = self.words[cells]
        self._count(-int(are_here(words).sum()))
        self.words[cells] = 0
        self.times.end_ahead(cells)
        return positions_of(words)

    def slots(self, cells: np.ndarray) -> np.ndarray:
        """Bytes of the slots of chunks, int64 `(n,)`."""
        return slots(self.sizes[cells].astype(np.int64))

    def _count(self, n: int) -> None:
        self.n_here += n
        self._is_whole[0] = self.n_here == self.n_chunks

    def forget(self) -> None:
        """Tell readers that nothing is there, and remove the file."""
        self._is_whole[0] = 0
        self.words[:] = 0
        self.path.unlink(missing_ok=True)


def _parts(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The words and the sizes in the bytes of a file."""
    n = (len(data) - HEADER_BYTES) // CELL_BYTES
    words = data[HEADER_BYTES : HEADER_BYTES + 8 * n].view("<i8")
    return words, data[HEADER_BYTES + 8 * n : HEADER_BYTES + CELL_BYTES * n].view("<u4")


def _mapped(path: Path) -> np.ndarray | None:
    """The bytes of a file, to be changed; None: there is none, or it is none of ours."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        n_bytes = os.fstat(fd).st_size
        is_ours = n_bytes > HEADER_BYTES and (n_bytes - HEADER_BYTES) % CELL_BYTES == 0
        return np.frombuffer(mmap.mmap(fd, n_bytes), np.uint8) if is_ours else None
    finally:
        os.close(fd)


def _created(path: Path, n_bytes: int) -> np.ndarray:
    """The bytes of a new file of zeros, to be changed; raises OSError if the disk is full."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, n_bytes)  # a write to a map could not say that there is no room
        return np.frombuffer(mmap.mmap(fd, n_bytes), np.uint8)
    finally:
        os.close(fd)
