"""Ranges of files that are in no cache, read into memory by several threads.

A map is the fastest way to bytes that are in memory, and a slow one to those that are not: the
thread waits at each fault. Here as many reads wait together as there are threads, and each puts
its bytes where they belong. A file is read through the page cache if it will stay there, and past
it (`O_DIRECT`) if not: then no page is allocated, filled and thrown out for a row that comes once.

A file that is no longer the one that was mapped is read through the map, which keeps the old one.
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError
from store.read.arrays.buffers import HUGE_PAGE
from store.read.arrays.mapped_file import MappedFile
from store.system import DIRECT, FILE_THREADS, use_huge_pages

__all__ = ["FileRange", "FileReads", "cut_pieces"]

# what one thread reads at a time; longer ranges are cut at multiples of it
PIECE_BYTES = 512 * 1024
# of offsets and addresses of reads past the cache: the block of any disk
ALIGNMENT = 4096
MAX_OPEN = 64


class FileRange(NamedTuple):
    """The bytes of a file from `first` on, and the memory, uint8, that they fill."""

    file: MappedFile
    first: int
    out: np.ndarray


class _OpenFile:
    """A mapped file, opened to be read; `fd` is None if another one has its name, or it cannot be
    opened in this way. Closed after its last user: threads may still read what is forgotten here.
    """

    def __init__(self, file: MappedFile, flags: int | None) -> None:
        self.fd = None if flags is None else file.open_again(flags)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd is not None:
            close(self.fd)


class FileReads:
    """Reads ranges of files by threads of its own; many calls may be under way at once.

    `is_kept` says whether a file is read through the page cache, to stay there.
    """

    def __init__(self, is_kept: Callable[[MappedFile], bool]) -> None:
        self.is_kept = is_kept
        self._pool = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="store-file-reads")
        self._own = threading.local()
        self._spare = np.empty(0, np.uint8)  # of a huge page: blocks that no thread has yet
        self._lock = threading.Lock()
        self._open = lru_cache(MAX_OPEN)(_OpenFile)

    def read(self, ranges: Sequence[FileRange]) -> None:
        """Fill the memory of some ranges; raises CorruptError if a file ends early, or the disk
        fails."""
        for _ in self._pool.map(self._read_all, _tasks(cut_pieces(ranges))):
            pass

    def close(self) -> None:
        """Stop reading, and close the files."""
        self._pool.shutdown(cancel_futures=True)
        self._open.cache_clear()

    def _read_all(self, pieces: list[FileRange]) -> None:
        for piece in pieces:
            self._read(piece)

    def _read(self, piece: FileRange) -> None:
        file, first, out = piece
        is_kept = self.is_kept(file)
        if not is_kept and not file.is_cached(first) and self._read_past_cache(piece):
            return
        opened = self._open(file, 0) if is_kept else None
        if opened is None or opened.fd is None:
            np.copyto(out, file.bytes[first : first + len(out)])
        else:
            _fill(opened.fd, piece, first, out)

    def _read_past_cache(self, piece: FileRange) -> bool:
        """Read whole blocks of the disk: into their place if they fit, else copied from beside.

        False where the file system cannot.
        """
        file, first, out = piece
        opened = self._open(file, DIRECT)
        if opened.fd is None:
            return False
        start = first // ALIGNMENT * ALIGNMENT
        needed = first + len(out) - start
        n_bytes = -(-needed // ALIGNMENT) * ALIGNMENT
        is_in_place = n_bytes == len(out) and out.ctypes.data % ALIGNMENT == 0
        memory = out if is_in_place else self._block()[:n_bytes]
        try:
            _fill(opened.fd, piece, start, memory, needed)
        except CorruptError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EINVAL:
                raise
            return False
        if not is_in_place:
            np.copyto(out, memory[first - start : needed])
        return True

    def _block(self) -> np.ndarray:
        """Aligned memory of this thread for one piece and what is beside it: uint8.

        In one huge page the disk sees one range of addresses, where pages apart are one each.
        """
        if not hasattr(self._own, "block"):
            with self._lock:
                if not len(self._spare):
                    self._spare = _huge_page()
                self._own.block, self._spare = np.split(self._spare, [2 * PIECE_BYTES])
        return self._own.block


def cut_pieces(ranges: Iterable[FileRange], n_bytes: int = PIECE_BYTES) -> Iterator[FileRange]:
    """Cut ranges at multiples of so many bytes of their files."""
    for file, first, out in ranges:
        at = 0
        while len(out) - at > n_bytes + n_bytes // 2:
            stop = at + n_bytes - (first + at) % n_bytes
            yield FileRange(file, first + at, out[at:stop])
            at = stop
        yield FileRange(file, first + at, out[at:])


def _tasks(pieces: Iterable[FileRange]) -> Iterator[list[FileRange]]:
    """Pieces that one thread reads one after the other: small ones share the cost of a task."""
    task: list[FileRange] = []
    n_bytes = 0
    for piece in pieces:
        if task and n_bytes + len(piece.out) > PIECE_BYTES:
            yield task
            task = []
            n_bytes = 0
        task.append(piece)
        n_bytes += len(piece.out)
    if task:
        yield task


def _fill(
    fd: int, piece: FileRange, start: int, memory: np.ndarray, needed: int | None = None
) -> None:
    """Read from `start` on until the first `needed` bytes of the memory, or all, are there."""
    needed = len(memory) if needed is None else needed
    view = memory.data
    done = 0
    while done < needed:
        try:
            n_read = os.preadv(fd, [view[done:]], start + done)
        except OSError as error:
            raise CorruptError(
                f"{piece.file.path}: expected {needed} bytes from byte {start} on, "
                f"found: {error.strerror}; restore it from a copy"
            ) from error
        if not n_read:
            raise CorruptError(
                f"{piece.file.path}: expected {needed} bytes from byte {start} on, "
                f"found {done}; restore it from a copy"
            )
        done += n_read


def _huge_page() -> np.ndarray:
    """Memory that the kernel may put on one huge page: uint8."""
    page = mmap.mmap(-1, HUGE_PAGE, flags=mmap.MAP_PRIVATE)
    use_huge_pages(page)
    return np.frombuffer(page, np.uint8)
