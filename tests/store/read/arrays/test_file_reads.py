import os

import numpy as np
import pytest

from store import CorruptError
from store.read.arrays.file_reads import PIECE_BYTES, FileRange, FileReads, cut_pieces
from store.read.arrays.mapped_file import MappedFile

N_BYTES = 3 * PIECE_BYTES + 5000


class WithoutDirectReads(MappedFile):
    """On a file system that cannot read past the page cache."""

    def open_again(self, flags):
        return None if flags & os.O_DIRECT else super().open_again(flags)


@pytest.fixture
def path(tmp_path):
    np.random.default_rng(0).integers(0, 256, N_BYTES, np.uint8).tofile(tmp_path / "f")
    return tmp_path / "f"


def drop(path):
    """Put a file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read(file, is_kept, bounds):
    """Ranges one after the other, as a batch has them."""
    out = np.zeros(sum(stop - first for first, stop in bounds), np.uint8)
    ranges = []
    at = 0
    for first, stop in bounds:
        ranges.append(FileRange(file, first, out[at : at + stop - first]))
        at += stop - first
    files = FileReads(lambda _: is_kept)
    try:
        files.read(ranges)
    finally:
        files.close()
    return out


@pytest.mark.parametrize("kind", [MappedFile, WithoutDirectReads])
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "past the cache"])
def test_ranges_come_as_the_file_has_them(path, is_kept, kind):
    """On the borders of blocks and beside them, short and in several pieces, to the end."""
    bounds = [(0, 4096), (8192, PIECE_BYTES), (1, 2), (4095, 70_001), (0, N_BYTES)]
    bounds += [(PIECE_BYTES - 1, 3 * PIECE_BYTES), (N_BYTES - 1, N_BYTES), (7, 7)]
    data = np.fromfile(path, np.uint8)
    drop(path)
    found = read(kind(path), is_kept, bounds)
    assert np.array_equal(found, np.concatenate([data[a:b] for a, b in bounds]))


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_file_that_was_replaced_is_read_as_it_was_mapped(path, is_kept):
    data = np.fromfile(path, np.uint8)
    file = MappedFile(path)
    path.with_name("new").write_bytes(bytes(N_BYTES))
    path.with_name("new").rename(path)
    assert np.array_equal(read(file, is_kept, [(0, N_BYTES)]), data)


def test_a_file_that_ends_early_is_damaged(path):
    file = MappedFile(path)
    os.truncate(path, 4096)
    with pytest.raises(CorruptError, match=r"f: expected 9000 bytes from byte 0 on, found 4096"):
        read(file, True, [(0, 9000)])


def test_long_ranges_are_cut_where_blocks_of_the_file_begin(path):
    out = np.empty(N_BYTES - 5, np.uint8)
    pieces = list(cut_pieces([FileRange(MappedFile(path), 5, out)]))
    assert [piece.first % PIECE_BYTES for piece in pieces] == [5, *[0] * (len(pieces) - 1)]
    assert sum(len(piece.out) for piece in pieces) == len(out)
    assert max(len(piece.out) for piece in pieces) <= 1.5 * PIECE_BYTES
