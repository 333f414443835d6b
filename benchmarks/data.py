"""Test data: made once, held by the page cache as data that was read, and dropped from it."""

import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from store import Column, Schema, StoreWriter, TraceStore

__all__ = [
    "MEGABYTE_ROWS",
    "drop_caches",
    "example_store",
    "files_of",
    "made_once",
    "make_store",
    "ragged_rows",
    "ragged_store",
    "random_rows",
    "sequential",
]

MEGABYTE_ROWS = (1_000_000, 4096)  # bytes of a row, and of an item

Rows = Iterator[tuple[str, dict]]


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """A file or folder of test data, made unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
        read_back(path)
    return path


def make_store(path: Path, columns: dict[str, Column], rows: Callable[[], Rows]) -> TraceStore:
    """The store at `path`, written now unless it is there."""

    def write(target: Path) -> None:
        with StoreWriter.create(target, Schema(columns)) as writer:
            for trace_id, row in rows():
                writer.append(trace_id, row)

    return TraceStore.open(made_once(path, write))


def ragged_store(directory: Path, size_mb: int, row_bytes: int, item_bytes: int) -> TraceStore:
    """A store of `ragged_rows`, made if it is not there."""
    columns = {"x": Column("float16", (item_bytes // 2,), axis="t")}
    path = directory / f"rows-{row_bytes}-{size_mb}.zarr"
    return make_store(path, columns, lambda: ragged_rows(size_mb, row_bytes, item_bytes))


def ragged_rows(size_mb: int, row_bytes: int, item_bytes: int) -> Rows:
    """Rows of random bits in a column `x`, float16 `(n, item_bytes / 2)`, n 20% about its mean."""
    mean = row_bytes // item_bytes
    lengths = (mean - mean // 5, mean + mean // 5 + 1)
    return random_rows(size_mb * 10**6 // row_bytes, (item_bytes // 2,), lengths)


def random_rows(
    n_rows: int, item_shape: tuple[int, ...], lengths: tuple[int, int] | None = None
) -> Rows:
    """Rows of random bits in a column `x`, float16: one item each, or from `lengths[0]` items to
    less than `lengths[1]`."""
    rng = np.random.default_rng(0)
    for i in range(n_rows):
        shape = (int(rng.integers(*lengths)), *item_shape) if lengths else item_shape
        values = np.frombuffer(rng.bytes(2 * math.prod(shape)), np.float16)
        yield f"trace_{i}", {"x": values.reshape(shape)}


def example_store(directory: Path) -> TraceStore:
    """The embedded example's traces, built now unless they are there."""
    from store.sources.example import ExampleSource
    from store.write.build import build_store

    made = made_once(directory / "example.zarr", lambda path: build_store(path, ExampleSource()))
    return TraceStore.open(made)


def drop_caches(paths: Sequence[Path]) -> None:
    """Drop these files and folders from the page cache, so that the next read comes from the disk.

    No process may have them mapped.
    """
    gc.collect()
    for path in (file for root in paths for file in files_of(root)):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_back(path: Path) -> None:
    """Have the page cache hold a file or a folder as one that was read, not one just written.

    Pages that were written lie in smaller pieces: a map of them was read up to a sixth slower.
    """
    drop_caches([path])
    sequential(files_of(path))(0)


def sequential(paths: Sequence[Path]) -> Callable[[int], None]:
    """Reading files from end to end."""

    def epoch(number: int) -> None:
        buffer = memoryview(bytearray(8 * 2**20))
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    return epoch


def files_of(path: Path) -> list[Path]:
    """The files below a folder, in one order; a file itself."""
    return sorted(file for file in [path, *path.rglob("*")] if file.is_file())
