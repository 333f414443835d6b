"""Every byte and every file of a small store damaged in turn: found by verify, never a wrong value
when checked."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, cycle, pairwise
from pathlib import Path

import pytest
from damage import ROWS, Whole, answers, files_in, in_child, swap

from store import StoreError
from store.check.verify import verify_store

PATTERNS = (0x01, 0x80, 0xFF)


@contextmanager
def flipped(file: Path, position: int, pattern: int) -> Iterator[None]:
    """One byte of a file is another."""
    fd = os.open(file, os.O_RDWR)
    byte = os.pread(fd, 1, position)
    try:
        os.pwrite(fd, bytes([byte[0] ^ pattern]), position)
        yield
    finally:
        os.pwrite(fd, byte, position)
        os.close(fd)


def flip_bytes(path: Path, first: int, stride: int) -> Counter:
    """Flip every `stride`-th byte of the store, with a pattern each; count what came of it."""
    whole, counts = Whole(path), Counter()
    places = [(file, i) for file in files_in(path) for i in range(file.stat().st_size)]
    for (file, i), pattern in zip(places[first::stride], cycle(PATTERNS), strict=False):
        with flipped(file, i, pattern):
            reported = whole.judge(f"{file.relative_to(path)}, byte {i}, flipped by {pattern:#04x}")
        counts["reported" if reported else "proven unused"] += 1
    return counts


@pytest.mark.parametrize(
    ("first", "stride"),
    [(0, 211), *(pytest.param(first, 4, marks=pytest.mark.slow) for first in range(4))],
)
@pytest.mark.timeout(1200)
def test_flipped_bytes(small_store, first, stride):
    """Verify reports every flipped byte, or no reader uses it; no checked read is ever wrong."""
    counts = in_child(lambda: flip_bytes(small_store, first, stride), seconds=1200)
    assert counts["reported"] > 60


def damages(file: Path, elsewhere: Path) -> Iterator[str]:
    """All that can happen to one file, in turn, by name; in the end it is as it was."""
    data = file.read_bytes()
    contents = [("truncated", data[:n]) for n in range(0, len(data), 64)]
    contents += [("extended", data + junk) for junk in (b"\0", b"{}", bytes(range(256)), data)]
    contents += [("put after junk", bytes(8) + data), ("filled with zeros", bytes(len(data)))]
    for kind, content in contents:
        file.write_bytes(content)
        yield kind
    file.unlink()
    yield "deleted"
    file.mkdir()
    yield "made a directory"
    file.rmdir()
    same = elsewhere / "same"
    same.write_bytes(data)
    for target in (same, elsewhere / "nothing", elsewhere, Path("/dev/null"), Path(file.name)):
        file.symlink_to(target)
        yield "made a link"
        file.unlink()
    file.write_bytes(data)


def damage_files(path: Path, elsewhere: Path, stride: int = 1) -> Counter:
    """Do to every `stride`-th file all that can happen to it; count how often."""
    whole, counts = Whole(path), Counter()
    elsewhere.mkdir()
    for file in files_in(path)[::stride]:
        for kind in damages(file, elsewhere):
            assert whole.judge(f"{file.relative_to(path)} {kind}"), f"{file} {kind}: not reported"
            counts[kind] += 1
    assert answers(path, check=True) == whole.answers
    return counts


def every_pair(files: list[Path]) -> Iterator[tuple[Path, Path]]:
    return combinations(files, 2)


def swap_files(path: Path, pairs: Callable) -> Counter:
    """Swap pairs of files of one kind that differ."""
    whole, counts = Whole(path), Counter()
    files = files_in(path)
    for kind in ("zarr.json", "shards"):
        some = [file for file in files if (file.name == "zarr.json") == (kind == "zarr.json")]
        for one, other in pairs(some):
            if one.read_bytes() != other.read_bytes():
                swap(one, other)
                what = f"{one} and {other} swapped"
                assert whole.judge(what), f"{what}: not reported"
                swap(one, other)
                counts[f"{kind} swapped"] += 1
    return counts


@pytest.mark.parametrize("stride", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_damaged_files(small_store, tmp_path, stride):
    """Deleted, truncated, extended, emptied, a directory or a link instead: reported, an error,
    never a crash."""
    counts = in_child(lambda: damage_files(small_store, tmp_path / "elsewhere", stride))
    assert min(counts.values()) >= 3


@pytest.mark.parametrize("pairs", [pairwise, pytest.param(every_pair, marks=pytest.mark.slow)])
def test_swapped_files(small_store, pairs):
    """A file in the place of another is reported, and never read for it."""
    assert min(in_child(lambda: swap_files(small_store, pairs)).values()) > 10


def test_what_a_reader_that_does_not_check_is_told(small_store):
    """Offsets that fall are an error there too; a row of the id table that is none is left out."""
    with flipped(small_store / "_offsets/t/c/0", 2 * 8, 0x04):  # 4 -> 0
        found = answers(small_store, check=False)
        assert "that never fall" in str(found["x in 1"])
    with flipped(small_store / "_index/0-7/row/c/0", 7, 0x80):
        found = answers(small_store, check=False)
        assert sum(isinstance(found[f"row of {row}"], StoreError) for row in range(len(ROWS))) == 1


@pytest.mark.parametrize("name", ["x", "z", "label", "trace_id"])
def test_an_error_names_array_shard_chunk_and_rows(small_store, name):
    """Those of every shard of a column, in readers as in reports."""
    for file in sorted(small_store.glob(f"{name}/c/**/*")):
        if file.is_dir():
            continue
        shard = int(file.relative_to(small_store).parts[2])
        with flipped(file, 0, 0x01):
            found = answers(small_store, check=True).values()
            errors = [str(one) for one in found if isinstance(one, StoreError)]
            (problem,) = (p for p in verify_store(small_store).problems if p.kind == "damaged")
        assert (problem.column, problem.shard, problem.chunk) == (name, shard, 0)
        first, last = problem.rows
        rows = f"row {first}" if first == last else f"rows {first} to {last}"
        assert str(problem).endswith(f"; {rows}")
        where = f"array '{name}', shard {shard}, chunk 0"
        assert errors
        assert all(where in error and error.endswith(rows) for error in errors)
        assert 0 <= first <= last < len(ROWS)
