"""Will it fit? What a build will write, against what is free on the disk that it goes to.

Merges and subsets know their bytes beforehand. Extractions and imports estimate theirs from the
bytes of their first rows, and from the fraction of the work that those were.
"""

import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.schema import Schema
from store.read.store import TraceStore

__all__ = [
    "SpaceCheck",
    "bytes_of_rows",
    "bytes_under",
    "check_space",
    "free_bytes",
    "row_bytes",
    "same_disk",
]

REFUSED_FROM = 1.5  # times what is free: later rows may well be shorter than the first
ADVICE = "keep fewer --columns, choose another disk, or pass --ignore-space"


@dataclass
class SpaceCheck:
    """Looks once, after the first rows of a build, whether its disk can hold all of them.

    Rows differ in length, so an estimate of more than is free is a warning on stderr, and only an
    estimate of more than 1.5 times that stops the build; what is committed stays.

    Parameters
    ----------
    progress
        Number of rows -> how much of the work is done with them, 0 to 1.
    after
        Look after so many rows of this process, or later if they are no progress yet.
    ignore
        Warn only.

    Raises
    ------
    SchemaError
        When it is called: the disk cannot hold the store.
    """

    path: Path
    progress: Callable[[int], float]
    after: int
    ignore: bool = False
    has_looked: bool = False
    _first: float | None = None  # an earlier run may have done some of the work
    _n_rows: int = 0
    _n_bytes: int = 0

    def __call__(self, n_rows: int, n_bytes: int) -> None:
        """Count a row of so many bytes, the `n_rows`-th of the store; until `has_looked`."""
        done = self.progress(n_rows)
        if self._first is None:
            self._first = done
            return
        self._n_rows += 1
        self._n_bytes += n_bytes
        gained = done - self._first
        if self._n_rows < self.after or gained <= 0:
            return
        self.has_looked = True
        needed = round(self._n_bytes * (1 - done) / gained)
        free = free_bytes(self.path)
        if needed <= free:
            return
        text = (
            f"{self.path}: the rest will take about {_gb(needed)}, "
            f"and {_gb(free)} are free on its disk"
        )
        if needed > REFUSED_FROM * free and not self.ignore:
            raise SchemaError(f"{text}; {ADVICE}")
        print(f"warning: {text}", file=sys.stderr, flush=True)


def check_space(path: Path, needed: int, *, ignore: bool = False) -> None:
    """Raise SchemaError if a store of so many bytes surely does not fit where it is to be made."""
    free = free_bytes(path)
    if needed > free and not ignore:
        raise SchemaError(
            f"{path}: it will take {_gb(needed)}, and {_gb(free)} are free on its disk; "
            "choose another disk, or pass --ignore-space"
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
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


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


def row_bytes(row: Mapping[str, Any], schema: Schema) -> int:
    """The bytes of a row's values as its columns hold them."""
    total = 0
    for name, column in schema.columns.items():
        value = row[name]
        if isinstance(value, str):
            total += len(value.encode(errors="surrogatepass"))
        else:
            total += math.prod(np.shape(value)) * column.storage_dtype.itemsize
    return total


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:,.1f} MB"
