"""Which chunks of an array a mirror holds, in a small file that its readers map.

Every chunk of every plane has a cell, and every cell a version: odd while the chunk is there. It
grows by one when the chunk comes or goes, so a reader that finds the same odd version before and
after it has copied a chunk has copied the chunk, and not the zeros of a hole or another chunk.
Every cell has a place as well: where in the landing memory its chunk is, or that it is in its
shard. The first word of the file is a version for the whole array, odd while all chunks are in
their shards; the second is the number of the landing memory. Only the fetching process of a node
writes.
"""

import errno
import mmap
import os
from pathlib import Path

import numpy as np

from store.format.contents import StoredArray
from store.format.ranges import cells
from store.read.mapped_file import MappedFile

__all__ = [
    "CHUNK_MARGIN",
    "ChunkStates",
    "WritableStates",
    "cells_of_chunks",
    "cells_of_ranges",
    "forget_all",
    "n_cells",
    "shard_cells",
]

# What a chunk may count for in a mirror beyond its bytes: two blocks, and a note of where it is
# (`store.remote.sparse_file.cell_bytes`).
CHUNK_MARGIN = 2 * 4096 + 64
HEADER_BYTES = 64
CELL = np.dtype("<u4")


def shard_cells(array: StoredArray) -> int:
    """Cells of a full shard: those of its first plane, then of the next."""
    return array.layout.shard_chunks * array.layout.n_planes


def n_cells(array: StoredArray) -> int:
    """Cells of an array, with those that its last shard has no chunks for."""
    return array.n_shards * shard_cells(array)


def cells_of_ranges(
    array: StoredArray, starts: np.ndarray, stops: np.ndarray, planes: np.ndarray
) -> np.ndarray:
    """The cells of the chunks that hold ranges of places, in some planes: int64, rising."""
    _, chunks = cells(starts, stops, array.layout.chunk_items)
    return np.unique(cells_of_chunks(array, chunks, planes))


def cells_of_chunks(array: StoredArray, chunks: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """The cells of chunks, counted through all shards, plane after plane: int64."""
    if array.layout.n_planes == 1:
        return chunks
    shard_chunks = array.layout.shard_chunks
    shards, inside = np.divmod(chunks, shard_chunks)
    first = shards * shard_cells(array) + inside
    return (first + planes[:, None] * shard_chunks).ravel()


class _Cells:
    """What a file of states has of every cell.

    Attributes
    ----------
    versions, places
        uint32 `(n_cells,)`, views of the file. The chunk with the place p is at p - 1 in the
        landing memory; that with 0 in its shard.
    """

    versions: np.ndarray
    places: np.ndarray

    def has_landed(self, some: np.ndarray) -> np.ndarray:
        """Which cells have their chunks in the landing memory: bool `(n,)`."""
        return self.places[some] > 0

    def positions(self, some: np.ndarray) -> np.ndarray:
        """Where chunks are in the landing memory, int64 `(n,)`; -1: in their shards."""
        return self.places[some].astype(np.int64) - 1


class ChunkStates(_Cells):
    """The versions of an array's cells, mapped to be read."""

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        data = self._file.bytes
        if len(data) <= HEADER_BYTES:  # who makes it is about to, or was killed
            raise FileNotFoundError(errno.ENOENT, "no states yet", str(path))
        self._whole = data[:8].view("<u8")
        self.landing = int(data[8:16].view("<u8")[0])
        self.versions, self.places = data[HEADER_BYTES:].view(CELL).reshape(2, -1)

    def is_current(self) -> bool:
        """Whether the file still has its name: if not, somebody has removed the cache directory."""
        return self._file.has_its_name()

    @property
    def whole(self) -> int:
        """The version of the array as a whole: odd while every chunk is there."""
        return int(self._whole[0])


class WritableStates(_Cells):
    """The same file in the process that writes it; at first no chunk is there.

    It is always a new file. Readers that have mapped the one that was there find that no chunk is
    there, and that it has lost its name: what is written now is in shards that they do not know.
    """

    def __init__(self, path: Path, n: int, landing: int) -> None:
        forget_file(path)
        n_bytes = file_bytes(n)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, n_bytes)
            header, self.versions, self.places = _words(fd, n_bytes)
            self._whole = header[:1]
            header[1] = landing
        finally:
            os.close(fd)

    def forget(self) -> None:
        """No chunk is there."""
        _make_even(self._whole, self.versions)

    def set_whole(self, is_whole: bool) -> None:
        """Whether all chunks are there."""
        if int(self._whole[0]) & 1 != is_whole:
            self._whole += np.uint64(1)

    def flip(self, some: np.ndarray) -> None:
        """The chunks of some cells have come, or are about to go."""
        self.versions[some] += 1

    def land(self, some: np.ndarray, positions: np.ndarray) -> None:
        """The chunks of some cells, which readers do not see yet, are in the landing memory."""
        self.places[some] = positions + 1


def forget_all(folder: Path) -> None:
    """Remove every file of states below a folder.

    For a process that takes the place of one that has ended. It may replace shards; readers that
    have the old states mapped would then read holes of the new shards as chunks.
    """
    for path in filter(Path.is_file, folder.rglob("*")):
        forget_file(path)


def forget_file(path: Path) -> None:
    """Note in a file of states that no chunk is there, and remove it; if it is there."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        n_bytes = os.fstat(fd).st_size
        if n_bytes > HEADER_BYTES and n_bytes % (2 * CELL.itemsize) == 0:
            header, versions, _ = _words(fd, n_bytes)
            _make_even(header[:1], versions)
    finally:
        os.close(fd)
    path.unlink()


def _words(fd: int, n_bytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The file, mapped: its first two words, uint64, and the versions and places of its cells."""
    memory = mmap.mmap(fd, n_bytes)
    versions, places = np.frombuffer(memory, CELL, offset=HEADER_BYTES).reshape(2, -1)
    return np.frombuffer(memory, "<u8", 2), versions, places


def _make_even(whole: np.ndarray, versions: np.ndarray) -> None:
    whole += whole & np.uint64(1)
    versions += versions & 1


def file_bytes(n: int) -> int:
    """Size of the file for so many cells."""
    return HEADER_BYTES + 2 * max(1, n) * CELL.itemsize
