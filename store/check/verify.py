"""Is a store whole? Every file, table, offset, id and chunk against what was committed; every fault
is listed.

What a writer left that was killed is no fault: nothing of it was committed, and the next writer
removes it. Verifying reads a committed state, changes nothing, and may run beside readers and a
writer.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.array_info import earlier_infos
from store.format.contents import (
    WORKING_DIR,
    StoredArray,
    checked_arrays,
    could_be_ours,
    files_of,
    metadata_of,
    offsets_array,
    run_arrays,
    run_name,
)
from store.format.ids import hash_ids
from store.format.manifest import COLUMNS_KEY, GROUP_FILE, KEY, Manifest, read_manifest
from store.format.zarr_json import group_json
from store.read.compressed_array import CompressedArray
from store.read.directory import StoreDirectory
from store.read.id_table import check_run
from store.read.open_array import open_array
from store.read.raw_array import RawArray
from store.read.shard import RESTORE
from store.read.store import TraceStore
from store.reports import count
from store.write.leftovers import foreign_arrays
from store.write.lock import has_writer

__all__ = ["Problem", "Report", "verify_store"]

STEP_BYTES = 8 * 1024 * 1024  # checked in one go, while the next ones are fetched
THREADS = 4  # two for each core of a small machine: one waits for the disk
IDS_AT_ONCE = 65_536
ATTEMPTS = 3  # with a writer at work
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
KINDS = ("damaged", "unverifiable", "index", "document", "leftover")  # of problems, the worst first
KEPT = "python -m store repair keeps its rows, and records the checksum again"
# of an array's metadata: these follow from all columns of a store
INFO_KEYS = ("dimension_names", "attributes")
INTERRUPTED = "a file of an interrupted write"
NUMBER = re.compile(r"\b[0-9a-f]{8}\b|\d+")  # a checksum, or any other
EMPTY = (None, [], {})  # what a key that says nothing may hold


@dataclass(frozen=True)
class Problem:
    """One fault.

    Attributes
    ----------
    kind
        'damaged': values cannot be trusted. 'unverifiable': their checksums cannot. 'index': ids
        may not be found. 'document': other Zarr clients may read something else. 'leftover': a file
        that no writer of a store makes. 'interrupted': what a writer left that was stopped; no
        problem, see `Report.leftovers`.
    file
        Path inside the store.
    text
        What was expected, and what was found.
    column, shard, chunk
        Where, if that is known; the chunk by its number in the shard.
    rows
        (first, last) of those concerned, if that is known.
    """

    kind: str
    file: str
    text: str
    column: str | None = None
    shard: int | None = None
    chunk: int | None = None
    rows: tuple[int, int] | None = None

    def __str__(self) -> str:
        first, last = self.rows or (0, 0)
        rows = f"; row {first}" if first == last else f"; rows {first} to {last}"
        return f"{self.kind}: {self.text}" + (rows if self.rows else "")


@dataclass
class Report:
    """What `verify_store` found.

    Attributes
    ----------
    generation, rows
        Of the state that was checked.
    problems
        Every fault, damaged values first; none: the store is whole.
    leftovers
        Files of an interrupted write, which the next writer removes, and metadata of arrays that it
        wrote ahead of the commit, which the next writer writes again. Nothing committed is in them.
    bytes
        How many of chunks were checked.
    writer
        Whether a writer was at work: what it has not committed was not judged.
    """

    generation: int
    rows: int
    problems: list[Problem] = field(default_factory=list)
    leftovers: list[Problem] = field(default_factory=list)
    bytes: int = 0
    writer: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"whole": not self.problems}

    def headline(self) -> str:
        """Whether the store is whole, and what an interrupted write left in it."""
        n = len(self.problems)
        parts = ["whole" if n == 0 else count(n, "problem")]
        removed = sum(leftover.text.endswith(INTERRUPTED) for leftover in self.leftovers)
        rewritten = len({leftover.file for leftover in self.leftovers}) - removed
        if removed:
            parts.append(
                f"{count(removed, 'file')} of an interrupted write that the next writer removes"
            )
        if rewritten:
            parts.append(f"metadata of {count(rewritten, 'array')} that the next writer sets back")
        return "; ".join(parts)

    def lines(self) -> list[str]:
        """The problems, a line each; those that differ in numbers only are one line with their
        count."""
        alike: dict[tuple[str, ...], list[Problem]] = {}
        for problem in self.problems:
            alike.setdefault(_kind_of_line(problem), []).append(problem)
        return [_line_of(problems) for problems in alike.values()]

    def all_lines(self) -> list[str]:
        """Every problem, then every file of an interrupted write, a line each."""
        return [str(problem) for problem in (*self.problems, *self.leftovers)]


def _kind_of_line(problem: Problem) -> tuple[str, ...]:
    """What lines have in common that differ in numbers only; of files that do not belong, in their
    names."""
    if problem.kind == "leftover":
        return problem.kind, problem.text.removeprefix(problem.file)
    array = problem.file.split("/c/")[0]
    return problem.kind, array, NUMBER.sub("#", problem.text)


def _line_of(problems: list[Problem]) -> str:
    """The first of some problems that are alike, and how many there are."""
    first, *others = problems
    if not others:
        return str(first)
    rows = [problem.rows for problem in problems if problem.rows]
    span = f", rows {min(rows)[0]} to {max(last for _, last in rows)} in all" if rows else ""
    return f"{first} (and {len(others):,} like it{span})"


def verify_store(
    path: str | Path,
    *,
    quick: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    n_threads: int = THREADS,
) -> Report:
    """Check a store.

    Parameters
    ----------
    path
        The store.
    quick
        Leave out the bytes of the chunks and the ids in the index: files, sizes, tables, offsets
        and metadata only.
    progress
        Called with the bytes checked so far and all of them.
    n_threads
        That read and check.

    Raises
    ------
    NotFoundError, FormatError
        There is no store, or its manifest is damaged: nothing can be said of the rest.
    """
    for _ in range(ATTEMPTS):  # files of the state at hand may go while a writer commits
        manifest = read_manifest(path)
        report = _Verifier(Path(path).absolute(), manifest, quick, progress, n_threads).run()
        nothing_found = not (report.problems or report.leftovers)
        if nothing_found or read_manifest(path).generation == manifest.generation:
            break
    return report


class _Verifier:
    """Checks one committed state."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        quick: bool,
        progress: Callable[[int, int], None],
        n_threads: int,
    ) -> None:
        self.root, self.manifest, self.quick = root, manifest, quick
        self.progress, self.n_threads = progress, n_threads
        self.store = TraceStore(StoreDirectory.at(root), manifest)
        self._foreign = foreign_arrays(root, manifest)
        self._wrong: dict[str, np.ndarray] = {}  # axis -> rows whose borders cannot be trusted
        self._earlier = {
            path: {"dimension_names": list(info.names), "attributes": info.attributes}
            for path, info in earlier_infos(manifest.schema).items()
        }
        self.report = Report(manifest.generation, manifest.n_rows, writer=has_writer(root))

    def run(self) -> Report:
        """Check everything."""
        find = [self._files, self._documents, self._checksum_tables]
        found = [problem for part in find for problem in part()]
        axes = sorted(self.manifest.schema.axes)
        found += [problem for axis in axes for problem in self._offsets(axis)]
        found += self._chunks()
        found += [problem for run in self.manifest.runs for problem in self._run(run)]
        self.report.leftovers = [problem for problem in found if problem.kind == "interrupted"]
        problems = [problem for problem in found if problem.kind != "interrupted"]
        self.report.problems = sorted(problems, key=lambda problem: KINDS.index(problem.kind))
        return self.report

    def _files(self) -> Iterator[Problem]:
        """Missing ones are told by who opens them, but for metadata."""
        belonging = files_of(self.manifest)
        for folder, directories, names in os.walk(self.root):
            for name in sorted([*directories, *names]):
                path = Path(folder, name)
                inside = path.relative_to(self.root).as_posix()
                if path.is_symlink():
                    yield Problem(
                        "leftover",
                        inside,
                        f"{inside}: expected files and directories only, found a link",
                    )
                elif name in names and inside not in belonging:
                    yield from self._strange_file(inside)

    def _strange_file(self, inside: str) -> Iterator[Problem]:
        """A file that is not committed: a problem, unless a writer is at work on it or has left
        it."""
        if not could_be_ours(inside) or inside.partition("/")[0] in self._foreign:
            yield Problem(
                "leftover", inside, f"{inside}: expected no file that does not belong, found one"
            )
        elif not self._has_writer():
            yield Problem("interrupted", inside, f"{inside}: {INTERRUPTED}")

    def _documents(self) -> Iterator[Problem]:
        """The metadata of groups and arrays."""
        for path, text in ({"": group_json()} | metadata_of(self.manifest)).items():
            yield from self._document(path, text)

    def _has_writer(self) -> bool:
        """Whether a writer is at work, whose uncommitted files are no problem."""
        self.report.writer = self.report.writer or has_writer(self.root)
        return self.report.writer

    def _document(self, path: str, text: bytes) -> Iterator[Problem]:
        file = f"{path}/{GROUP_FILE}".lstrip("/")
        expected = json.loads(text)
        try:
            with (self.root / file).open("rb") as opened:
                found = json.loads(opened.read(MAX_DOCUMENT_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            yield Problem("document", file, f"{file}: expected Zarr metadata, found: {error}")
            return
        if not isinstance(found, dict):
            yield Problem(
                "document", file, f"{file}: expected an object, found {type(found).__name__}"
            )
            return
        if not path:
            yield from self._group_attributes(found.pop("attributes", None))
            del expected["attributes"]
        for key in sorted(expected.keys() | found.keys()):
            if self._differs(path, key, expected, found):
                text = f"{file}: expected {key} {expected.get(key)!r:.80}, found {found.get(key)!r:.80}"
                kind = "interrupted" if self._is_ahead(key, expected, found) else "document"
                if not (kind == "interrupted" and self._has_writer()):
                    yield Problem(kind, file, text)

    def _group_attributes(self, found: object) -> Iterator[Problem]:
        """Where other Zarr clients find the columns; the first stores did not say that."""
        attributes = found if isinstance(found, dict) else {}
        columns, expected = attributes.get(COLUMNS_KEY), self.manifest.to_attributes()[COLUMNS_KEY]
        is_of_a_first_store = attributes.keys() == {KEY}
        if columns != expected and not is_of_a_first_store:
            text = f"{GROUP_FILE}: expected attribute {COLUMNS_KEY} {expected!r:.80}, found {columns!r:.80}"
            yield Problem("document", GROUP_FILE, text)

    def _differs(self, path: str, key: str, expected: dict, found: dict) -> bool:
        """Whether a key says something that no version of this package wrote."""
        wanted, is_there = expected.get(key), found.get(key)
        says_nothing = wanted in EMPTY and is_there in EMPTY and key in expected
        earlier = self._earlier.get(path, {})
        is_earlier = key in earlier and is_there == earlier[key]
        return is_there != wanted and not says_nothing and not is_earlier

    def _is_ahead(self, key: str, expected: dict, found: dict) -> bool:
        """Whether a writer, at work or interrupted, wrote this of an array for a commit that is not
        done."""
        follows_from_columns = key in INFO_KEYS and expected["node_type"] == "array"
        may_be = follows_from_columns or (
            key == "shape" and _is_longer(found.get(key), expected.get(key))
        )
        return may_be and (self.root / WORKING_DIR).is_dir()

    def _checksum_tables(self) -> Iterator[Problem]:
        """The shards of the checksums; what they say is compared with the chunks."""
        for checked in checked_arrays(self.manifest):
            array = checked.checksums
            reader = open_array(self.store.directory, array)
            for shard in range(array.layout.n_shards(array.n_items)):
                fault = self._shard_fault(reader, shard)
                if fault:
                    yield Problem(
                        "unverifiable",
                        array.layout.shard_path(shard),
                        str(fault),
                        checked.column,
                        shard,
                    )

    def _offsets(self, axis: str) -> Iterator[Problem]:
        """They start at 0, never fall, and end at the number of items."""
        file = f"_offsets/{axis}"
        try:
            offsets = self.store.offsets(axis)
        except CorruptError:  # told where the chunks are checked
            return
        ends = {0: 0, len(offsets) - 1: self.manifest.n_items.get(axis, 0)}
        for i, expected in ends.items():
            if offsets[i] != expected:
                text = (
                    f"axis {axis!r}: expected offset {expected} at border {i}, found {offsets[i]}"
                )
                yield Problem("damaged", file, text, rows=self._near(i))
        falls = np.flatnonzero(np.diff(offsets) < 0).tolist()
        for row in falls:
            text = f"axis {axis!r}: expected offsets that never fall, found {offsets[row]} and then {offsets[row + 1]}"
            yield Problem("damaged", file, text, rows=(row, row))

    def _near(self, border: int) -> tuple[int, int] | None:
        n_rows = self.manifest.n_rows
        return (max(0, border - 1), min(n_rows - 1, border)) if n_rows else None

    def _chunks(self) -> list[Problem]:
        """Tables and chunks of columns and offsets, in threads."""
        work, found = [], []
        for array in checked_arrays(self.manifest):
            reader = open_array(self.store.directory, array, check=self.manifest)
            layout = array.layout
            for shard in range(layout.n_shards(array.n_items)):
                n_bytes = (
                    layout.n_chunks(layout.items_in_shard(shard, array.n_items))
                    * layout.chunk_bytes
                )
                work.append((n_bytes * layout.n_planes, partial(self._shard, array, reader, shard)))
        total, done = sum(n for n, _ in work), 0
        with ThreadPoolExecutor(self.n_threads) as pool:
            for (n_bytes, _), problems in zip(
                work, pool.map(lambda item: item[1](), work), strict=True
            ):
                found += problems
                done += n_bytes
                self.progress(done, total)
        self.report.bytes = 0 if self.quick else total
        return found

    def _shard(
        self, array: StoredArray, reader: RawArray | CompressedArray, number: int
    ) -> list[Problem]:
        """Everything wrong with one shard."""
        fault = self._shard_fault(reader, number)
        if fault or self.quick:
            return [self._damaged(array, number, None, fault)] if fault else []
        layout = array.layout
        first = number * layout.shard_chunks
        stop = first + layout.n_chunks(layout.items_in_shard(number, array.n_items))
        step = max(1, STEP_BYTES // (layout.chunk_bytes * layout.n_planes))
        borders = [*range(first, stop, step), stop]
        faults, problems = [], []
        try:
            for start, end in pairwise(borders):
                _fetch(reader, end, min(stop, end + step))
                faults.extend(reader.faults(start, end))
        except DamagedItemsError as error:  # it went while it was read
            problems.append(self._damaged(array, number, None, error))
        except CorruptError as error:  # of the checksums
            problems.append(self._problem("unverifiable", array, number, None, str(error)))
        most_fit = not problems and 2 * len(faults) < (stop - first) * layout.n_planes
        return [self._chunk(array, reader, number, fault, most_fit) for fault in faults] + problems

    def _chunk(
        self,
        array: StoredArray,
        reader: RawArray | CompressedArray,
        number: int,
        fault: DamagedItemsError,
        most_fit: bool,
    ) -> Problem:
        """A chunk with another checksum than is recorded: damaged, unless it is the record that is.

        A compressed chunk has a checksum of its own, but that is right in a file that took
        another's place as well: only where most in the shard have the sums that they should, it is
        the right file.
        """
        layout = array.layout
        chunk = fault.items[0] // layout.chunk_items
        inside = chunk - number * layout.shard_chunks
        # not in the manifest, which has a checksum itself
        recorded = chunk < array.checksums.n_items
        if not (most_fit and recorded and reader.shard(number).is_sound(inside)):
            return self._damaged(array, number, inside, fault)
        text = f"{str(fault).removesuffix(RESTORE)}by its own checksum it is whole: {KEPT}"
        return self._problem("unverifiable", array, number, inside, text, fault.items)

    def _shard_fault(self, reader: RawArray | CompressedArray, number: int) -> CorruptError | None:
        """What is wrong with a shard's file, table or size."""
        try:
            shard = reader.shard(number)
        except CorruptError as error:
            return error
        if shard.end != shard.n_data:
            where = f"{shard.where}: expected its table behind byte {shard.end}"
            return CorruptError(f"{where}, found {shard.n_data} bytes before it")
        return None

    def _damaged(
        self, array: StoredArray, shard: int, chunk: int | None, error: CorruptError
    ) -> Problem:
        return self._problem(
            "damaged", array, shard, chunk, str(error), getattr(error, "items", None)
        )

    def _problem(
        self,
        kind: str,
        array: StoredArray,
        shard: int,
        chunk: int | None,
        text: str,
        items: tuple[int, int] | None = None,
    ) -> Problem:
        """One of a shard, with the rows of its items; of all, if they are not given."""
        rows = self._rows(array, items or _shard_items(array, shard))
        return Problem(kind, array.layout.shard_path(shard), text, array.column, shard, chunk, rows)

    def _rows(self, array: StoredArray, items: tuple[int, int]) -> tuple[int, int] | None:
        """The rows that items belong to."""
        first, last, n_rows = items[0], items[1] - 1, self.manifest.n_rows
        if array.column is None:  # a border belongs to the rows on both sides
            return (max(0, first - 1), min(n_rows - 1, last)) if n_rows else None
        if array.axis is None:
            return first, last
        try:
            offsets, wrong = self.store.offsets(array.axis), self._wrong_rows(array.axis)
        except CorruptError:
            return None
        concerned = np.flatnonzero((offsets[:-1] <= last) & (offsets[1:] > first) & ~wrong)
        concerned = concerned if len(concerned) else np.flatnonzero(wrong)
        return (int(concerned[0]), int(concerned[-1])) if len(concerned) else None

    def _wrong_rows(self, axis: str) -> np.ndarray:
        """Which rows have borders that cannot be trusted: bool `(n_rows,)`; raises CorruptError."""
        if axis not in self._wrong:
            array = offsets_array(axis, self.manifest.n_rows)
            wrong = np.diff(self.store.offsets(axis)) < 0
            reader = open_array(self.store.directory, array, check=self.manifest)
            for fault in (
                () if self.quick else reader.faults(0, array.layout.n_chunks(array.n_items))
            ):
                wrong[max(0, fault.items[0] - 1) : fault.items[1]] = True
            self._wrong[axis] = wrong
        return self._wrong[axis]

    def _run(self, run: tuple[int, int]) -> Iterator[Problem]:
        """A run of the id table: its own checksum, every row once, and the hashes of the ids that
        are there."""
        name = f"_index/{run_name(run)}"
        try:
            hashes, rows = (self._whole(array) for array in run_arrays(run))
            check_run(run, hashes, rows, self.manifest.run_sums)
        except CorruptError as error:
            yield Problem("index", name, str(error), rows=(run[0], run[1] - 1))
            return
        by_row = np.empty(len(rows), np.uint64)
        fits = len(rows) == run[1] - run[0] and ((rows >= run[0]) & (rows < run[1])).all()
        if not fits or len(np.unique(rows)) != len(rows) or (hashes[1:] < hashes[:-1]).any():
            text = f"{name}: expected each row once, in the order of the hashes, found otherwise"
            yield Problem("index", name, text, rows=(run[0], run[1] - 1))
            return
        if self.quick:
            return
        by_row[rows - run[0]] = hashes
        for start in range(run[0], run[1], IDS_AT_ONCE):
            stop = min(run[1], start + IDS_AT_ONCE)
            try:
                found = hash_ids(self.store.ids[start:stop])
            except CorruptError:  # told where the chunks are checked
                continue
            for row in np.flatnonzero(found != by_row[start - run[0] : stop - run[0]]).tolist():
                text = f"{name}: expected the hash of the id of row {start + row}, found another"
                yield Problem("index", name, text, rows=(start + row, start + row))

    def _whole(self, array: StoredArray) -> np.ndarray:
        reader = open_array(self.store.directory, array)
        fault = self._shard_fault(reader, 0)
        if fault:
            raise fault
        return reader.read(0, array.n_items)


def _is_longer(found: object, committed: object) -> bool:
    """Whether a shape is that of an array which a commit, not yet done, has made longer."""
    if not (
        isinstance(found, list)
        and isinstance(committed, list)
        and found
        and isinstance(found[0], int)
    ):
        return False
    return found[1:] == committed[1:] and found[0] > committed[0]


def _shard_items(array: StoredArray, shard: int) -> tuple[int, int]:
    first = shard * array.layout.shard_items
    return first, first + array.layout.items_in_shard(shard, array.n_items)


def _fetch(reader: RawArray | CompressedArray, start: int, stop: int) -> None:
    """Ask the kernel for some chunks, all planes."""
    if start < stop:
        k = reader.layout.chunk_items
        reader.advise(np.array([start * k]), np.array([min(stop * k, reader.n_items)]), ())
