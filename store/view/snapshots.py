"""The states of a store that are open for the page: the one it shows, and a newer one it may
take."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.read.filters.filter import filter_rows
from store.read.store import TraceStore
from store.traces.notes import notes_path, notes_state
from store.view.columns import Table
from store.view.describe import distinct_names
from store.view.runs import Run, check_run, join_runs, read_run

__all__ = ["Snapshots", "Wanted", "check_texts", "open_stores", "sorted_rows"]

KEPT_TABLES = 2  # besides the first
KEPT_ORDERS = 4
MAX_SORTED_TEXTS = 200_000
REPLACED = 10**9  # states of stores that took the place of the first one are numbered from here


class Wanted(NamedTuple):
    """Which rows, in which order."""

    filter: str = ""  # as in `store.read.filters.filter`; "" means all rows
    sort: str = ""  # a column; "" means by row
    descending: bool = False


class Snapshots:
    """A store, as it was when it was opened, and as it is now, with the scores of runs.

    `first` are the rows as they were when it was opened; the page goes on with them. `opened` is
    the number of the newest state whose rows were asked for; a page that is loaded shows it.
    """

    def __init__(self, path: Path, runs: Sequence[Run] = ()) -> None:
        self.path = path
        self.runs = runs
        self._lock = RLock()  # of what is newest; the rest threads may share
        self._newest = TraceStore.open(path)
        self._later_table = lru_cache(KEPT_TABLES)(self._open_newest)
        self._order = lru_cache(KEPT_ORDERS)(self._order_rows)
        self._replaced: dict[tuple[int | None, str], int] = {}
        self.first = self._newest_table()
        self.opened = self._newest.generation

    def _newest_table(self) -> Table:
        return Table(self._newest, *join_runs(self._newest, self.runs))

    def newest(self) -> int:
        """The number of the state that is committed now: its generation.

        A repair may have put another store in this one's place, whose generations start at 0
        again, or a backup may be there, which grew on its own: its states have numbers from 10^9,
        so that none is mistaken for one of the first store.
        """
        with self._lock:
            self._newest = self._newest.refresh()
            return self.last_seen()

    def last_seen(self) -> int:
        """The number of the state that was newest when it was last looked for."""
        with self._lock:
            now = self._newest
            first = self.first.store
            is_later = now is first or now.generation > first.generation
            if now.uuid == first.uuid and now.directory.is_same(first.directory) and is_later:
                return now.generation
            state = (now.directory.inode, now.manifest.checksum)
            return self._replaced.setdefault(state, REPLACED + len(self._replaced))

    def table(self, generation: int) -> Table:
        """The rows of a generation that is open, or is the one committed now.

        Raises NotFoundError if it is neither.
        """
        if generation == self.first.store.generation:
            return self.first
        return self._later_table(generation)

    def _open_newest(self, generation: int) -> Table:
        with self._lock:
            newest = self.newest()
            if generation != newest:
                raise NotFoundError(
                    f"{self.path}: expected generation {newest}, "
                    f"found {generation}; load the page again"
                )
            self.opened = generation
            return self._newest_table()

    def rows(self, generation: int, wanted: Wanted) -> np.ndarray:
        """The rows that are wanted: uint32 `(n,)`, read-only; kept for the next request.

        Raises StoreError if the filter or the column to sort by is wrong.
        """
        return self._order(generation, wanted, notes_state(notes_path(self.first.store.path)))

    def _order_rows(self, generation: int, wanted: Wanted, _noted: object) -> np.ndarray:
        rows = order_rows(self.table(generation), wanted)
        rows.flags.writeable = False
        return rows


def open_stores(paths: Sequence[Path], run_paths: Sequence[Path]) -> list[Snapshots]:
    """Open stores with the scores of runs beside their rows.

    Raises StoreError if a store or a run cannot be read, or no trace of a run is in the stores.
    """
    given: dict[Path, Path] = {}
    for path in run_paths:
        given.setdefault(path.resolve(), path)  # a run that is given twice is one
    runs = [*map(read_run, given.values(), distinct_names([*given]))]
    opened = [Snapshots(path, runs) for path in paths]
    for path, run in zip(given.values(), runs, strict=True):
        check_run(path, run, [snapshots.first.store for snapshots in opened])
    return opened


def order_rows(table: Table, wanted: Wanted) -> np.ndarray:
    """The rows of a table that are wanted: uint32 `(n,)`."""
    chosen = filter_rows(table, wanted.filter)
    if chosen is None:
        rows = np.arange(len(table), dtype=np.uint32)
    else:
        rows = np.flatnonzero(chosen).astype(np.uint32)
    if not wanted.sort:
        return rows[::-1].copy() if wanted.descending else rows
    if table.kind(wanted.sort) == "number":
        values = table.numbers(wanted.sort)
        return sorted_rows(rows, values if chosen is None else values[rows], wanted.descending)
    return _sorted_by_text(table, rows, wanted)


def check_texts(what: str, n_rows: int) -> None:
    """Raise NotFoundError for more rows than whose texts are held in memory."""
    if n_rows > MAX_SORTED_TEXTS:
        raise NotFoundError(
            f"{what}: expected at most {MAX_SORTED_TEXTS:,} rows with texts, "
            f"found {n_rows:,}; filter first"
        )


def _sorted_by_text(table: Table, rows: np.ndarray, wanted: Wanted) -> np.ndarray:
    check_texts(f"sort by {wanted.sort}", len(rows))
    texts = table.texts(wanted.sort, rows.astype(np.int64))
    places = sorted(range(len(rows)), key=texts.__getitem__, reverse=wanted.descending)
    return rows[np.array(places, np.int64)]


def sorted_rows(rows: np.ndarray, values: np.ndarray, descending: bool = False) -> np.ndarray:
    """Sort rows by their values; NaN comes last in both directions, equal values by row.

    `rows` is uint32 `(n,)`, ascending; `values` are the rows' numbers, `(n,)`. Returns uint32
    `(n,)`.
    """
    if values.dtype.kind != "f":
        return rows[np.argsort(~values if descending else values, kind="stable")]
    signed = -values if descending else values
    if values.dtype.itemsize > 4:
        return rows[np.argsort(signed, kind="stable")]
    # NumPy sorts numbers with vector instructions, but not their places: so value and row become
    # one number of 64 bits, in a third of the time
    packed = _rising(signed).astype(np.int64) << 32
    packed |= rows
    packed.sort()
    return packed.astype(np.uint32)  # the lower half


def _rising(values: np.ndarray) -> np.ndarray:
    """Floats of up to 32 bits as whole numbers that rise as they do: int32; NaN is the highest."""
    bits = (values.astype(np.float32) + 0).view(np.int32)  # -0.0 + 0 is 0.0
    bits ^= (bits >> 31) & 0x7FFF_FFFF  # of negative numbers all bits but the sign are turned
    bits[np.isnan(values)] = np.iinfo(np.int32).max
    return bits
