"""The one file of a cache directory that holds all chunks: a slab of slots, taken and given back.

A slot is of whole blocks, the first that are free. All slots end within a stated size, which bounds
what they take on the disk.
"""

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from store.format.ranges import join_ranges
from store.remote.cache.chunk_index import BLOCK

__all__ = ["Slab", "write_at"]

GROWTH_BYTES = 64 * 1024 * 1024
KEEP_SIZE = 1
PUNCH_HOLE = 2
MOST_PARTS = 1024  # of one call, for Linux

_libc = ctypes.CDLL(None, use_errno=True)


class Slab:
    """A file of slots; nothing here has a lock.

    The last slot ends at `n_bytes` at most; of them, `free_bytes` are nobody's. The file has
    `file_bytes`, and grows when it is written.
    """

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self.fd)  # threads that write have this object
        self.file_bytes = os.fstat(self.fd).st_size
        self.n_bytes = 0
        self.free_bytes = 0
        self._free: list[tuple[int, int]] = []  # rising, and none touches the next

    def resize(self, n_bytes: int, starts: np.ndarray, stops: np.ndarray) -> None:
        """Have slots up to `n_bytes`, those of some spans being taken; the rest is given back."""
        self.n_bytes = n_bytes // BLOCK * BLOCK
        self.punch(self.n_bytes, self.file_bytes)  # not shortened: readers have it mapped
        order = np.argsort(starts, kind="stable")
        ends = np.minimum(stops[order], self.n_bytes)
        starts, stops = join_ranges(np.minimum(starts[order], ends), ends)
        self._free = []
        self.free_bytes = 0
        self._add(np.append(0, stops), np.append(starts, self.n_bytes))

    def take(self, sizes: Sequence[int]) -> list[int] | None:
        """Where slots of these sizes are, neighbours together if they can be; None: no room."""
        positions: list[int] = []
        rests = []  # what is left of spans that were too small
        spans = iter(self._free)
        start = stop = 0
        for size in sizes:
            while stop - start < size:
                rests.append((start, stop))
                span = next(spans, None)
                if span is None:
                    return None
                start, stop = span
            positions.append(start)
            start += size
        rests.append((start, stop))
        self._free = [span for span in rests if span[0] < span[1]]
        self._free.extend(spans)
        self.free_bytes -= sum(sizes)
        return positions

    def give_back(self, starts: np.ndarray, stops: np.ndarray) -> None:
        """Have slots be free, int64 `(n,)`."""
        for start, stop in zip(*map(np.ndarray.tolist, (starts, stops)), strict=True):
            if stop > self.n_bytes:  # it was written while the slab became smaller
                self.punch(max(start, self.n_bytes), stop)
        self._add(np.minimum(starts, self.n_bytes), np.minimum(stops, self.n_bytes))

    def _add(self, starts: np.ndarray, stops: np.ndarray) -> None:
        """Have spans be free, which overlap no other."""
        self.free_bytes += int((stops - starts).sum())
        spans = np.array(self._free, np.int64).reshape(-1, 2)
        starts = np.append(spans[:, 0], starts)
        stops = np.append(spans[:, 1], stops)
        order = np.argsort(starts, kind="stable")
        joined = join_ranges(starts[order], stops[order])
        self._free = list(zip(*map(np.ndarray.tolist, joined), strict=True))

    def punch(self, start: int, stop: int) -> None:
        """Give the blocks of the bytes `start:stop` back to the file system."""
        size = stop - start
        if size > 0 and _libc.fallocate(
            self.fd, KEEP_SIZE | PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(size)
        ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def write(self, chunks: Sequence[memoryview], positions: np.ndarray) -> None:
        """Write chunks into their slots, at int64 `(n,)`; raises OSError, e.g. on a full disk."""
        stops = positions + np.array([*map(len, chunks)], np.int64)
        n_bytes = int(stops.max(initial=0))
        if n_bytes > self.file_bytes:  # readers map what they know of, and it again
            file_bytes = -(-n_bytes * 5 // 4 // GROWTH_BYTES) * GROWTH_BYTES
            os.ftruncate(self.fd, file_bytes)
            self.file_bytes = file_bytes
        heads = np.flatnonzero(np.append(-1, stops[:-1]) != positions).tolist()
        for first, last in pairwise([*heads, len(chunks)]):
            write_at(self.fd, chunks[first:last], int(positions[first]))

    def read(self, position: int, n_bytes: int) -> bytes:
        """The bytes of a slot; fewer where the file ends."""
        return os.pread(self.fd, n_bytes, position)


def write_at(fd: int, parts: Sequence[memoryview], position: int) -> None:
    """Write all of some parts, one after the other; raises OSError."""
    todo = deque(parts)
    while todo:
        written = os.pwritev(fd, [*islice(todo, MOST_PARTS)], position)
        position += written
        while todo and written >= len(todo[0]):
            written -= len(todo.popleft())
        if todo:
            todo[0] = todo[0][written:]
