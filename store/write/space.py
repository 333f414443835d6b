"""Will it fit? What a copy will write, against what is free on the disk that it goes to."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from store.errors import SchemaError
from store.read.directory import files_below
from store.read.store import TraceStore
from store.reports import size_text

__all__ = [
    "bytes_of_rows",
    "bytes_under",
    "check_space",
    "free_bytes",
    "same_disk",
]


def check_space(path: Path, needed: int, *, ignore: bool = False) -> None:
    """Raise SchemaError if a store of so many bytes surely does not fit where it is to be made."""
    free = free_bytes(path)
    if needed > free and not ignore:
        raise SchemaError(
            f"{path}: it will take {size_text(needed)}, and {size_text(free)} are free on its "
            "disk; choose another disk, or pass --ignore-space"
        )


def free_bytes(path: Path) -> int:
    """The bytes that are free on the disk that a path is on, or would be."""
    return shutil.disk_usage(_existing(path)).free


def same_disk(path: Path, other: Path) -> bool:
    """Whether two paths are on one file system, or would be."""
    return _existing(path).stat().st_dev == _existing(other).stat().st_dev


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return existing


def bytes_under(path: Path) -> int:
    """Bytes of the files under a directory; 0 if there is none."""
    return sum(file.st_size for file in files_below(path))


def bytes_of_rows(store: TraceStore, rows: Sequence[int]) -> int:
    """About the bytes that rows take in the store: their fraction of each column's items."""
    chosen = np.asarray(rows, np.int64)
    total = 0.0
    for name in store.schema.stored:
        n_items = store.n_items(name)
        if n_items:
            n_chosen = store.lengths(name)[chosen].sum()
            column_bytes = bytes_under(store.path / store.schema.layout(name).path)
            total += column_bytes * n_chosen / n_items
    return round(total)
