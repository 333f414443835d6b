"""The id table on disk: its runs, mapped and checked; `ids.py` knows what is in them."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError
from store.format.contents import run_arrays, run_name
from store.format.ids import Run, rows_of_hashes, rows_with_hash
from store.format.manifest import Manifest, read_manifest
from store.read.arrays.shard import RESTORE
from store.read.source import StoreSource

__all__ = ["IdTable", "check_run"]

Found = TypeVar("Found")


class IdTable:
    """The hashes of a store's trace ids and their rows, in runs that are mapped when first needed.

    With `check`, or of a source that is not trusted, every run is compared with its checksum.
    """

    def __init__(self, source: StoreSource, manifest: Manifest, check: bool) -> None:
        self.source = source
        self.check = check or not source.is_trusted
        self.manifest = manifest  # the newest one whose runs hold our ids
        self._n_rows = manifest.n_rows
        self._runs: dict[Run, tuple[np.ndarray, np.ndarray]] = {}

    def run(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """A run: hashes uint64 ascending, and their rows int64; raises CorruptError."""
        if run not in self._runs:
            hashes, rows = (
                self.source.open_array(array).read(0, array.n_items) for array in run_arrays(run)
            )
            if self.check:
                check_run(run, hashes, rows, self.manifest.run_sums)
            self._runs[run] = hashes, rows
        return self._runs[run]

    def hashes(self) -> list[np.ndarray]:
        """The hashes of each run: uint64, ascending; with those of rows committed since."""
        return self.following(lambda: [self.run(run)[0] for run in self.manifest.runs])

    def rows_with_hash(self, wanted: np.uint64) -> Iterator[int]:
        """Rows whose id has this hash, almost always none or one."""
        for run in reversed(self.manifest.runs):
            for row in rows_with_hash(*self.run(run), wanted):
                if 0 <= row < self._n_rows:
                    yield row

    def rows_of_hashes(self, wanted: np.ndarray) -> np.ndarray:
        """A row for each hash, int64 `(n,)`: -1 where there is none.

        One of several with the same hash, or one that was committed since: the id there decides.
        """
        order = np.argsort(wanted)
        found = np.full(len(wanted), -1, np.int64)
        for run in self.manifest.runs:
            rows = rows_of_hashes(*self.run(run), wanted[order])
            places = order[rows >= 0]
            found[places] = rows[rows >= 0]
        return found

    def following(self, look: Callable[[], Found]) -> Found:
        """What is looked up in the runs; again, if a commit merged them in between."""
        while True:
            tried = self.manifest
            try:
                return look()
            except CorruptError:
                if not self._follow_merges(tried):
                    raise

    def _follow_merges(self, tried: Manifest) -> bool:
        """After a commit merged runs: take the new ones, which hold our ids as well.

        False if the runs are those of the manifest that was tried, or of another store.
        """
        now = read_manifest(self.source.directory.now())
        if now.uuid == self.manifest.uuid:
            self.manifest = now
        return self.manifest.runs != tried.runs  # another thread may have taken them


def check_run(run: Run, hashes: np.ndarray, rows: np.ndarray, sums: Mapping[str, int]) -> None:
    """Raise CorruptError unless a run has its checksum, if it has one (the first stores had
    none)."""
    name = run_name(run)
    found = crc32c(rows.data, crc32c(hashes.data))
    expected = sums.get(name, found)
    if found != expected:
        raise CorruptError(
            f"id table, rows {name}: expected checksum {expected:08x}, found {found:08x}; {RESTORE}"
        )
