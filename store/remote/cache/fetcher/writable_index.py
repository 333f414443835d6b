"""The index of a store in the process that writes it, and what it alone knows of the chunks.

The state of a chunk is written here alone, so one rule is kept here alone: a cell has a slot in the
slab if and only if its word is not 0.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from store.remote.cache.chunk_index import (
    BLOCK,
    CELL_BYTES,
    HEADER_BYTES,
    SLOT_BITS,
    UNCHECKED,
    are_here,
    index_bytes,
    parts_of,
    positions_of,
)
from store.remote.cache.fetcher.use_times import UseTimes
from store.remote.cache.messages import UNKNOWN

__all__ = ["WritableIndex"]

NO_READER = 2 * UNKNOWN  # when the chunks of a store are needed that no reader has open


class WritableIndex:
    """What is known of the chunks of a store; all cells are int64 `(n,)`.

    The file is always a new one. What an earlier process has left in the one before is taken over,
    marked as unchecked; readers that have mapped that one find that no chunk is there any more.

    Parameters
    ----------
    n
        Cells; None: as many as the file has that is there.

    Attributes
    ----------
    words, sizes
        See `parts_of`.
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
    file_bytes
        Of the files of its store.
    """

    def __init__(self, path: Path, n: int | None = None) -> None:
        self.path = path
        changes, words, sizes = parts_of(_mapped(path))
        n = max(1, len(words) if n is None else n)
        new = path.with_name(f"{path.name}.new")
        self._changes, self.words, self.sizes = parts_of(_created(new, index_bytes(n)))
        if len(words) == n:
            self.words[:] = np.where(words, words | UNCHECKED, 0)
            self.sizes[:] = sizes
        new.replace(path)
        words[:] = 0
        changes += 1
        self.times = UseTimes(self.sizes)
        self.pins = np.zeros(n, np.int32)
        self.is_coming = np.zeros(n, bool)
        self.was_here = np.zeros(n, bool)
        self.is_open = False
        self.file_bytes = 0

    def are_here(self, cells: np.ndarray) -> np.ndarray:
        """Whether they may be read: bool `(n,)`."""
        return are_here(self.words[cells])

    def missing(self, cells: np.ndarray) -> np.ndarray:
        """Those of some cells that cannot be read yet, and that nobody fetches."""
        return cells[~self.are_here(cells) & ~self.is_coming[cells]]

    def movable(self) -> np.ndarray:
        """The cells whose slots may be taken by others."""
        cells = np.flatnonzero(self.words)
        return cells[~self.is_coming[cells] & (self.pins[cells] == 0)]

    def evictable(
        self, past: float, needed_after: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The movable cells that are needed after some time, when, and the bytes of their slots.

        What was announced for before `past` has been read.
        """
        cells = self.movable()
        uses = self.times.order(cells, past) if self.is_open else np.full(len(cells), NO_READER)
        is_later = uses > needed_after
        cells = cells[is_later]
        return cells, uses[is_later], self.slot_bytes(cells)

    def slot_bytes(self, cells: np.ndarray) -> np.ndarray:
        """What chunks take in the slab, int64 `(n,)`."""
        return -(-self.sizes[cells].astype(np.int64) // BLOCK) * BLOCK

    def slots(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the slots of cells begin and end in the slab, int64 `(n,)`."""
        starts = positions_of(self.words[cells])
        return starts, starts + self.slot_bytes(cells)

    def replaced(self, cells: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Those of some cells that have chunks of other sizes, of another state of the store."""
        return cells[(self.words[cells] != 0) & (self.sizes[cells] != sizes)]

    def take(self, cells: np.ndarray, positions: np.ndarray) -> None:
        """Give cells slots, of which nothing may be read yet."""
        self.words[cells] = positions // BLOCK | UNCHECKED

    def settle(self, cells: np.ndarray, is_right: np.ndarray, tick: int) -> None:
        """A job has ended: tell readers which chunks are in their slots, since a tick."""
        self.is_coming[cells] = False
        came = cells[is_right]
        self.words[came] = positions_of(self.words[came]) // BLOCK | tick << SLOT_BITS
        self.was_here[came] = True
        self._changes += 1

    def doubt(self, cells: np.ndarray) -> None:
        """Have chunks that are here be compared with their checksums before they are read."""
        self.words[cells[self.are_here(cells)]] |= UNCHECKED
        self._changes += 1

    def clear(self, cells: np.ndarray) -> None:
        """Tell readers that chunks are gone."""
        self.words[cells] = 0
        self._changes += 1
        self.times.end_ahead(cells)

    def adopt(self, other: "WritableIndex", first: int, firsts: range) -> None:
        """Take over what another state of the store has of a column, of chunks that are not here.

        Its cells begin at `first` here, and are `firsts` there. They are compared with their
        checksums before they are read, like all that an earlier process has left.
        """
        theirs = other.movable()
        theirs = theirs[(theirs >= firsts.start) & (theirs < firsts.stop)]
        cells = theirs - firsts.start + first
        is_new = self.words[cells] == 0
        cells, theirs = cells[is_new], theirs[is_new]
        words = other.words[theirs]
        self.sizes[cells] = other.sizes[theirs]
        other.clear(theirs)
        self.words[cells] = words | UNCHECKED


def _mapped(path: Path) -> np.ndarray:
    """The bytes of an index, to be changed; of one without cells if no file there is ours."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes > HEADER_BYTES and (n_bytes - HEADER_BYTES) % CELL_BYTES == 0:
            return np.frombuffer(mmap.mmap(file.fileno(), n_bytes), np.uint8)
    return np.zeros(HEADER_BYTES, np.uint8)


def _created(path: Path, n_bytes: int) -> np.ndarray:
    """The bytes of a new file of zeros, to be changed; raises OSError if the disk is full."""
    path.touch(0o600)
    with path.open("w+b") as file:
        # a write to a map could not say that there is no room
        os.posix_fallocate(file.fileno(), 0, n_bytes)
        return np.frombuffer(mmap.mmap(file.fileno(), n_bytes), np.uint8)
