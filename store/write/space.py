"""Will it fit? What a build will write, against what is free on the disk that it goes to.

Merges and subsets know their bytes beforehand. Extractions and imports estimate theirs from the
bytes of their first rows, and from the fraction of the work that those were.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from store.errors import SchemaError
from store.read.directory import files_below
from store.read.store import TraceStore
from store.reports import size_text

__all__ = [
    "SpaceCheck",
    "bytes_of_rows",
    "bytes_under",
    "check_space",
    "free_bytes",
    "same_disk",
]

REFUSED_FROM = 1.5  # times what is free: later rows may well be shorter than the first
ADVICE = "keep fewer --columns, choose another disk, or pass --ignore-space"


@dataclass
class SpaceCheck:
    """Looks once, after the first rows of a build, whether its disk can hold all of them.

    Rows differ in length, so an estimate of more than is free is a warning on stderr, and only an
    estimate of more than 1.5 times that stops the build; what is committed stays.

    `progress` says how much of the work is done with a number of rows, 0 to 1. It looks after so
    many rows of this process, or later if they are no progress yet; `ignore`: it warns only. A call
    raises SchemaError if the disk cannot hold the store.
    """

    path: Path
    progress: Callable[[int], float]
    after: int
    ignore: bool = False
    has_looked: bool = False
    _began: tuple[int, float, int] | None = None  # an earlier run may have done some of the work

    def __call__(self, n_rows: int, n_bytes: int) -> None:
        """Look at a store of so many rows, to which so many bytes were written by now."""
        done = self.progress(n_rows)
        if self._began is None:
            self._began = n_rows, done, n_bytes
            return
        first_rows, first_done, first_bytes = self._began
        gained = done - first_done
        if n_rows - first_rows < self.after or gained <= 0:
            return
        self.has_looked = True
        needed = round((n_bytes - first_bytes) * (1 - done) / gained)
        free = free_bytes(self.path)
        if needed <= free:
            return
        text = (
            f"{self.path}: the rest will take about {size_text(needed)}, "
            f"and {size_text(free)} are free on its disk"
        )
        if needed > REFUSED_FROM * free and not self.ignore:
            raise SchemaError(f"{text}; {ADVICE}")
        print(f"warning: {text}", file=sys.stderr, flush=True)


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
