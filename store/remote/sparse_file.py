"""Sparse files: written in places, and emptied in places, by the block of the file system."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

__all__ = [
    "BLOCK",
    "cell_bytes",
    "data_extents",
    "hole_spans",
    "make_folder",
    "opened",
    "punch",
    "write_at",
]

BLOCK = 4096
KEEP_SIZE = 1
PUNCH_HOLE = 2
EXTENT_BYTES = 64  # what the file system may take to note where a chunk is

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def cell_bytes(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """What chunks take on the disk at most, each with the blocks that it shares: int64 `(n,)`."""
    blocks = -(-(starts + sizes) // BLOCK) - starts // BLOCK
    return blocks * BLOCK + EXTENT_BYTES


def hole_spans(
    starts: np.ndarray, stops: np.ndarray, lows: np.ndarray, highs: np.ndarray
) -> list[tuple[int, int]]:
    """Whole blocks around chunks, but none that reach out of their holes; touching ones joined."""
    first = np.maximum(starts // BLOCK * BLOCK, -(-lows // BLOCK) * BLOCK)
    last = np.minimum(-(-stops // BLOCK) * BLOCK, highs // BLOCK * BLOCK)
    spans: list[tuple[int, int]] = []
    for begin, end in sorted(zip(first.tolist(), last.tolist(), strict=True)):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif begin < end:
            spans.append((begin, end))
    return spans


def make_folder(folder: Path, root: Path) -> None:
    """Make a folder below `root`, which is there: if somebody has removed it, it stays away.

    Raises
    ------
    FileNotFoundError
        `root` is not there.
    """
    below = [one for one in (folder, *folder.parents) if one.is_relative_to(root) and one != root]
    for one in reversed(below):
        one.mkdir(exist_ok=True)


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    """The descriptor of a file."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def write_at(fd: int, data: memoryview, position: int) -> None:
    """Write all of `data`; raises OSError, e.g. where the disk is full."""
    while len(data):
        written = os.pwrite(fd, data, position)
        data = data[written:]
        position += written


def punch(fd: int, start: int, stop: int) -> None:
    """Give the blocks of the bytes `start:stop` back; they read as zeros.

    Raises
    ------
    OSError
        The file system cannot: it has no sparse files.
    """
    if start < stop and _libc.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, start, stop - start):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def data_extents(fd: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    """Where a file of `n_bytes` has bytes that were written: (start, stop)."""
    position = 0
    while position < n_bytes:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes to the end
                return
            raise
        position = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, min(position, n_bytes)
