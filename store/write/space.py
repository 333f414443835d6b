"""Will it fit? What a build will write, against what is free on the disk that it goes to.

Merges and subsets know their bytes beforehand. Extractions and imports estimate theirs from their
first rows: the bytes of those, for the share of the work that they were.
"""

import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.schema import Schema
from store.read.store import TraceStore

__all__ = ["SpaceCheck", "bytes_of_rows", "bytes_under", "check_space", "free_bytes", "row_bytes"]

REFUSED_FROM = 1.5  # times what is free: later rows may well be shorter than the first
ADVICE = "keep fewer --columns, choose another disk, or pass --ignore-space"


class SpaceCheck:
    """Looks once, after the first rows of a build, whether its disk can hold all of them.

    Rows differ in length, so an estimate of more than is free is a warning on stderr, and only one
    of more than 1.5 times that stops the build; what is committed stays.

    Parameters
    ----------
    path
        The store that is built.
    share
        Number of rows -> how much of the work they are, 0 to 1.
    after
        Look after so many rows of this process, or later if they are no share of the work yet.
    ignore
        Warn only.
    free
        Gives the free bytes where a path is.
    warn
        Takes the warning.

    Raises
    ------
    SchemaError
        When it is called: the disk cannot hold the store.
    """

    def __init__(
        self,
        path: Path,
        share: Callable[[int], float],
        after: int,
        *,
        ignore: bool = False,
        free: Callable[[Path], int] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.path, self.share, self.after, self.ignore = path, share, after, ignore
        self._free = free_bytes if free is None else free
        self._warn = _print_warning if warn is None else warn
        self._first_share: float | None = None  # an earlier run may have done some of the work
        self._n_rows = self._n_bytes = 0
        self.has_looked = False

    def __call__(self, n_rows: int, n_bytes: int) -> None:
        """Count a row of so many bytes, the `n_rows`-th of the store."""
        if self.has_looked:
            return
        share = self.share(n_rows)
        if self._first_share is None:
            self._first_share = share
            return
        self._n_rows += 1
        self._n_bytes += n_bytes
        gained = share - self._first_share
        if self._n_rows < self.after or gained <= 0:
            return
        self.has_looked = True
        needed = round(self._n_bytes * max(0.0, 1 - share) / gained)
        self._compare(needed, self._free(self.path))

    def _compare(self, needed: int, free: int) -> None:
        if needed <= free:
            return
        found = f"{self.path}: the rest will take about {_gb(needed)}, and {_gb(free)} are free on its disk"
        if needed > REFUSED_FROM * free and not self.ignore:
            raise SchemaError(f"{found}; {ADVICE}")
        self._warn(f"warning: {found}")


def check_space(
    path: Path, needed: int, *, ignore: bool = False, free: Callable[[Path], int] | None = None
) -> None:
    """Raise SchemaError if a store of so many bytes surely does not fit where it is to be made."""
    found = (free_bytes if free is None else free)(path)
    if needed > found and not ignore:
        raise SchemaError(
            f"{path}: it will take {_gb(needed)}, and {_gb(found)} are free on its disk; choose another disk, or pass "
            "--ignore-space"
        )


def free_bytes(path: Path, disk_usage: Callable[[Path], Any] = shutil.disk_usage) -> int:
    """The bytes that are free on the disk that a path is on, or would be."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    return disk_usage(there).free


def bytes_under(path: Path) -> int:
    """Bytes of the files under a directory; 0 if there is none."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def bytes_of_rows(store: TraceStore, rows: Sequence[int]) -> int:
    """About the bytes that these rows take in the store: each column's, for the share of its items
    that they have."""
    chosen = np.asarray(rows, np.int64)
    total = 0.0
    for name in store.schema.stored:
        n_items = store.n_items(name)
        if n_items:
            wanted = store.lengths(name)[chosen].sum()
            total += bytes_under(store.path / store.schema.layout(name).path) * wanted / n_items
    return round(total)


def row_bytes(row: Mapping[str, Any], schema: Schema) -> int:
    """The bytes of a row's values as its columns hold them."""
    total = 0
    for name, column in schema.columns.items():
        value = row[name]
        if isinstance(value, str):
            total += len(value.encode(errors="surrogatepass"))
        else:
            total += math.prod(np.shape(value)) * np.dtype(column.storage_dtype).itemsize
    return total


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:,.1f} MB"


def _print_warning(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
