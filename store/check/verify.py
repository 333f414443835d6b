"""Is a store whole? Every file, table, offset, id and chunk is compared with what was committed.

All faults are listed. What a killed writer left is no fault: nothing of it was committed, and the
next writer removes it. Verifying reads a committed state, changes nothing, and may run beside
readers and a writer.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from store.check.metadata import metadata_problems
from store.check.report import KINDS, Problem, Report
from store.errors import CorruptError, DamagedItemsError
from store.format.contents import (
    StoredArray,
    checked_arrays,
    offsets_array,
    run_arrays,
    run_name,
)
from store.format.ids import hash_ids, hashes_by_row
from store.format.manifest import Manifest
from store.read.arrays.array import Array
from store.read.arrays.shard import RESTORE
from store.read.id_table import check_run
from store.read.store import TraceStore
from store.system import CHECK_THREADS
from store.write.lock import has_writer

__all__ = ["BytesProgress", "Shard", "checked_shards", "shards_of", "verify_store"]

STEP_BYTES = 8 * 1024 * 1024  # checked in one go, while the next ones are fetched
IDS_AT_ONCE = 65_536
ATTEMPTS = 3  # with a writer at work
KEPT = (
    "by its own checksum it is whole, and the recorded one differs in a single bit: "
    "python -m store repair keeps its rows, and records the checksum again"
)
Rows = tuple[int, int]  # first, last
Items = tuple[int, int]  # first, after the last
BytesProgress = Callable[[int, int], None]  # bytes checked, and all of them


@dataclass
class Shard:
    """One shard of an array, which `reader` reads."""

    array: StoredArray
    reader: Array
    number: int

    def __post_init__(self) -> None:
        layout = self.array.layout
        # items and chunks: the first, and the first after them, counted through all shards
        self.items = first, stop = self.array.items_of_shard(self.number)
        self.n_items = stop - first
        n_chunks = layout.n_chunks(self.n_items)
        first_chunk = self.number * layout.shard_chunks
        self.chunks = (first_chunk, first_chunk + n_chunks)
        self.n_bytes = n_chunks * layout.n_planes * layout.chunk_bytes  # decoded
        self.path = layout.shard_path(self.number)  # of its file, inside the store

    def sums(self) -> np.ndarray:
        """The recorded checksums, uint32 `(n_chunks, n_planes)`; raises CorruptError."""
        if self.reader.sums is None:
            raise ValueError("expected a reader that checks")
        return self.reader.sums.read_chunks(*self.chunks)

    def check(self) -> None:
        """Raise DamagedItemsError if the file, its table or its size is wrong."""
        self.reader.check_shard(self.number)


def shards_of(
    store: TraceStore, array: StoredArray, check: Manifest | None = None
) -> Iterator[Shard]:
    """The shards of an array, in order; with `check` their recorded checksums can be asked for."""
    reader = store.reader.source.open_array(array, check=check)
    for number in range(array.n_shards):
        yield Shard(array, reader, number)


def checked_shards(store: TraceStore) -> Iterator[Shard]:
    """All shards of columns and offsets, which have checksums."""
    for array in checked_arrays(store.manifest):
        yield from shards_of(store, array, store.manifest)


def verify_store(
    path: str | Path,
    *,
    quick: bool = False,
    progress: BytesProgress = lambda done, total: None,
    n_threads: int = CHECK_THREADS,
) -> Report:
    """Check a store.

    `quick` leaves out the bytes of the chunks and the ids in the index: files, sizes, tables,
    offsets and metadata only. `progress` is called with the bytes checked so far and all of them.

    Raises NotFoundError or FormatError if there is no store, or its manifest is damaged: nothing
    can be said of the rest.
    """
    for _ in range(ATTEMPTS):  # files of this state may disappear while a writer commits
        store = TraceStore.open(path)
        report = _Verifier(store, quick).run(progress, n_threads)
        is_clean = not report.problems and not report.leftovers
        if is_clean or TraceStore.open(path).generation == store.generation:
            break
    return report


class _Verifier:
    def __init__(self, store: TraceStore, quick: bool) -> None:
        self.store = store
        self.manifest = store.manifest
        self.quick = quick
        self.report = Report(store.generation, len(store), writer=has_writer(store.path))
        self._untrusted_rows = cache(self._find_untrusted_rows)

    def run(self, progress: BytesProgress, n_threads: int) -> Report:
        found: list[Problem] = []
        if self.store.mirror is None:  # which has no files but those of the values
            found += metadata_problems(self.store.path, self.manifest, self._has_writer)
        found += [
            *self._id_table(),  # before the chunks, which take long: commits remove its files
            *self._checksum_tables(),
            *self._offsets(),
            *self._chunks(progress, n_threads),
        ]
        self.report.leftovers = [problem for problem in found if problem.kind == "interrupted"]
        for kind in KINDS:
            self.report.problems += [problem for problem in found if problem.kind == kind]
        return self.report

    def _has_writer(self) -> bool:
        self.report.writer = self.report.writer or has_writer(self.store.path)
        return self.report.writer

    def _checksum_tables(self) -> Iterator[Problem]:
        """The shards of the checksums; what they say is compared with the chunks."""
        for array in checked_arrays(self.manifest):
            for shard in shards_of(self.store, array.checksums):
                try:
                    shard.check()
                except CorruptError as error:
                    yield Problem(
                        "unverifiable",
                        shard.path,
                        str(error),
                        column=array.column,
                        shard=shard.number,
                    )

    def _offsets(self) -> Iterator[Problem]:
        """Offsets start at 0, never fall, and end at the number of items."""
        n_rows = self.manifest.n_rows
        for axis in sorted(self.manifest.schema.axes):
            try:
                offsets = self.store.offsets(axis)
            except CorruptError:  # reported with the chunks
                continue
            faults: list[tuple[str, Rows | None]] = []
            ends = {0: 0, n_rows: self.manifest.n_items.get(axis, 0)}
            for i, expected in ends.items():
                if offsets[i] != expected:
                    text = f"expected {expected} as offset {i}, found {offsets[i]}"
                    faults.append((text, self._rows_of_offsets(i, i)))
            for row in np.flatnonzero(np.diff(offsets) < 0).tolist():
                start, stop = offsets[row : row + 2]
                text = f"expected offsets that never fall, found {start} and then {stop}"
                faults.append((text, (row, row)))
            for text, rows in faults:
                yield Problem("damaged", f"_offsets/{axis}", f"axis {axis!r}: {text}", rows=rows)

    def _rows_of_offsets(self, first: int, last: int) -> Rows | None:
        """The rows that offsets belong to: each to the row before it and to the row after it."""
        n_rows = self.manifest.n_rows
        if not n_rows:
            return None
        return max(0, first - 1), min(n_rows - 1, last)

    def _chunks(self, progress: BytesProgress, n_threads: int) -> Iterator[Problem]:
        """Tables and chunks of columns and offsets, in threads."""
        shards = [*checked_shards(self.store)]
        total = sum(shard.n_bytes for shard in shards)
        done = 0
        with ThreadPoolExecutor(n_threads) as pool:
            checked = pool.map(self._shard_problems, shards)
            for shard, problems in zip(shards, checked, strict=True):
                yield from problems
                done += shard.n_bytes
                progress(done, total)
        self.report.bytes = 0 if self.quick else total

    def _shard_problems(self, shard: Shard) -> list[Problem]:
        layout = shard.array.layout
        first, stop = shard.chunks
        bytes_of_all_planes = layout.chunk_bytes * layout.n_planes
        step = max(1, STEP_BYTES // bytes_of_all_planes)
        faults: list[DamagedItemsError] = []
        problems: list[Problem] = []
        try:
            shard.check()
            if self.quick:
                return []
            for start in range(first, stop, step):
                end = min(stop, start + step)
                shard.reader.advise_chunks(end, min(stop, end + step))  # the kernel fetches them
                faults.extend(shard.reader.faults(start, end))
        except DamagedItemsError as error:  # the file itself, or it disappeared meanwhile
            problems.append(self._problem("damaged", shard, str(error)))
        except CorruptError as error:  # of the checksums
            faults.extend(self._own_faults(shard, shard.chunks))
            problems.append(self._problem("unverifiable", shard, str(error)))
        return [self._chunk_problem(shard, fault) for fault in faults] + problems

    def _own_faults(self, shard: Shard, chunks: Items) -> Iterator[DamagedItemsError]:
        """The compressed chunks that are damaged by the checksums that they carry."""
        array = shard.array
        if array.layout.codec is None:
            return
        reader = self.store.source.open_array(array)
        for chunk in range(*chunks):
            try:
                reader.read(*array.items_of_chunk(chunk))
            except DamagedItemsError as error:
                yield error

    def _chunk_problem(self, shard: Shard, fault: DamagedItemsError) -> Problem:
        """A chunk with another checksum than is recorded: damaged, unless the record is.

        A compressed chunk has a checksum of its own, but that is right as well in a file that was
        put in another's place, which may be much like it.
        """
        layout = shard.array.layout
        inside = (fault.items[0] - shard.items[0]) // layout.chunk_items
        chunk = shard.chunks[0] + inside
        kind = "damaged"
        text = str(fault)
        # the sums of the last chunk are in the manifest, which has a checksum itself
        is_recorded = shard.array.sum_of_chunk(chunk) < shard.array.checksums.n_items
        # another chunk in its place would differ in half of the bits
        is_off_by_a_bit = layout.codec is not None and fault.n_bits == 1
        if is_recorded and is_off_by_a_bit and not any(self._own_faults(shard, (chunk, chunk + 1))):
            kind = "unverifiable"
            text = f"{text.removesuffix(RESTORE)}{KEPT}"
        return self._problem(kind, shard, text, inside, fault.items)

    def _problem(
        self,
        kind: str,
        shard: Shard,
        text: str,
        chunk: int | None = None,
        items: Items | None = None,
    ) -> Problem:
        """A problem of a shard, with the rows of its items; of all, if they are not given."""
        array = shard.array
        first, stop = items or shard.items
        return Problem(
            kind,
            shard.path,
            text,
            column=array.column,
            shard=shard.number,
            chunk=chunk,
            rows=self._rows(array, first, stop),
        )

    def _rows(self, array: StoredArray, first: int, stop: int) -> Rows | None:
        """The rows that the items `first:stop` belong to."""
        if array.column is None:
            return self._rows_of_offsets(first, stop - 1)
        if array.axis is None:
            return first, stop - 1
        try:
            offsets = self.store.offsets(array.axis)
            untrusted = self._untrusted_rows(array.axis)
        except CorruptError:
            return None
        concerned = (offsets[:-1] < stop) & (offsets[1:] > first) & ~untrusted
        for candidates in (concerned, untrusted):
            rows = np.flatnonzero(candidates).tolist()
            if rows:
                return rows[0], rows[-1]
        return None

    def _find_untrusted_rows(self, axis: str) -> np.ndarray:
        """Which rows have damaged offsets: bool `(n_rows,)`; raises CorruptError."""
        untrusted = np.diff(self.store.offsets(axis)) < 0
        if not self.quick:
            array = offsets_array(axis, self.manifest.n_rows)
            n_chunks = array.layout.n_chunks(array.n_items)
            first_shard = next(shards_of(self.store, array, self.manifest))
            for fault in first_shard.reader.faults(0, n_chunks):
                first, stop = fault.items
                untrusted[max(0, first - 1) : stop] = True
        return untrusted

    def _id_table(self) -> Iterator[Problem]:
        """The runs: their checksums, each row once, and the hashes of the stored ids."""
        for run in self.manifest.runs:
            first, stop = run
            name = f"_index/{run_name(run)}"
            try:
                hashes = self._hashes_by_row(run)
            except CorruptError as error:
                yield Problem("index", name, str(error), rows=(first, stop - 1))
                continue
            if self.quick:
                continue
            for start in range(first, stop, IDS_AT_ONCE):
                end = min(stop, start + IDS_AT_ONCE)
                try:
                    found = hash_ids(self.store.ids[start:end])
                except CorruptError:  # reported with the chunks
                    continue
                differs = found != hashes[start - first : end - first]
                for row in (start + np.flatnonzero(differs)).tolist():
                    text = f"{name}: expected the hash of the id of row {row}, found another"
                    yield Problem("index", name, text, rows=(row, row))

    def _hashes_by_row(self, run: Rows) -> np.ndarray:
        """The hashes in a run, uint64, in the order of its rows; raises CorruptError."""
        hashes, rows = map(self._read_whole, run_arrays(run))
        check_run(run, hashes, rows, self.manifest.run_sums)
        return hashes_by_row(run, hashes, rows, self.store.path)

    def _read_whole(self, array: StoredArray) -> np.ndarray:
        """All items of an array of one shard; raises CorruptError."""
        (shard,) = shards_of(self.store, array)
        shard.check()
        return shard.reader.read(0, array.n_items)
