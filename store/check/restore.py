"""The shards of a store, and damaged ones, taken from other stores that have the same ones.

Stores that were merged by reference share shards with their parts, under other names; a backup has
all files of its store. Which file is the right one is told by what this store recorded of its
chunks, not by names: every checksum has to fit, and every byte of the other file is checked. Those
checksums themselves are taken from a backup only: a store of the same uuid, which has the array.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from store.check.report import Problem, array_of
from store.errors import CorruptError
from store.format.contents import WORKING_DIR, StoredArray, checked_arrays
from store.format.manifest import Manifest
from store.read.arrays.array import Array
from store.read.store import TraceStore
from store.reports import count
from store.traces.origin import PARTS
from store.write.files import Files

__all__ = [
    "Shard",
    "checked_shards",
    "describe_parts",
    "find_copies",
    "find_sums",
    "restore_files",
    "shards_of",
]


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


SHOWN_PARTS = 3


def find_copies(
    store: TraceStore, problems: Iterable[Problem], others: Iterable[TraceStore]
) -> dict[str, Path]:
    """Find whole files of other stores that a store's damaged ones were equal to.

    The stores in `others` are searched in this order; none is asked for if no file is damaged.
    Returns the path of a damaged file inside the store -> the file to take, read whole and checked.
    """
    missing = dict(_damaged_shards(store, problems))
    found: dict[str, Path] = {}
    stores = iter(others)
    while missing and (other := next(stores, None)) is not None:
        for file, (shard, sums) in list(missing.items()):
            copy = _find_copy(other, shard, sums)
            if copy is not None:
                found[file] = copy
                del missing[file]
    return found


def find_sums(
    store: TraceStore, problems: Sequence[Problem], others: Iterable[TraceStore]
) -> dict[str, Path]:
    """Find the checksums of a backup for those of a store that are lost or wrong.

    Returns what `find_copies` does. What they are of has to be verified again with them.
    """
    found: dict[str, Path] = {}
    for other in others:
        if other.uuid == store.uuid:
            found = dict(_sums_of_backup(store, problems, other)) | found
    return found


def _sums_of_backup(
    store: TraceStore, problems: Sequence[Problem], backup: TraceStore
) -> Iterator[tuple[str, Path]]:
    """The sums of whole chunks never change: where those of a backup differ, the chunk does not fit
    here, and fits there."""
    files = {problem.file for problem in problems}
    arrays = {array.layout.path: array for array in checked_arrays(backup.manifest)}
    for array in checked_arrays(store.manifest):
        path = array.layout.path
        its = arrays.get(path)
        touched = {path, array.checksums.layout.path} & set(map(array_of, files))
        if not touched or its is None or _state(its, backup) != _state(array, store):
            continue
        chunks = _faulty_chunks(store, array, problems)
        whole = backup.source.open_array(its, check=backup.manifest)
        copies = shards_of(backup, its.checksums)
        for mine, copy in zip(shards_of(store, array.checksums), copies, strict=True):
            with suppress(CorruptError):  # they are damaged in the backup as well
                copy.check()
                if mine.path in files or _fits_better(copy, mine, chunks, whole):
                    yield mine.path, backup.path / copy.path


def _fits_better(copy: Shard, mine: Shard, chunks: Mapping[int, int], whole: Array) -> bool:
    """Whether checksums differ, and only those of chunks that do not fit here, but in `whole`."""
    differs = (copy.reader.read(*copy.items) != mine.reader.read(*mine.items)).any(axis=1)
    sums = {mine.items[0] + i for i in np.flatnonzero(differs).tolist()}
    if not sums or sums - chunks.keys():
        return False
    return not any(fault for i in sums for fault in whole.faults(chunks[i], chunks[i] + 1))


def _state(array: StoredArray, store: TraceStore) -> tuple[object, ...]:
    """What an array is, and how much it holds."""
    path = array.layout.path
    segments = store.manifest.segments.get(path)
    return array.layout, array.n_items, segments, store.manifest.tails.get(path)


def _faulty_chunks(
    store: TraceStore, array: StoredArray, problems: Iterable[Problem]
) -> dict[int, int]:
    """Where the checksum of a chunk that does not fit it is -> the number of the chunk."""
    damaged = defaultdict(set)  # file of a shard -> its chunks; None: all
    for problem in problems:
        if problem.kind == "damaged" or problem.chunk is not None:
            damaged[problem.file].add(problem.chunk)
    numbers = [
        number
        for shard in shards_of(store, array)
        for inside, number in enumerate(range(*shard.chunks))
        if damaged.get(shard.path, set()) & {inside, None}
    ]
    return {array.sum_of_chunk(number): number for number in numbers}


def _damaged_shards(
    store: TraceStore, problems: Iterable[Problem]
) -> Iterator[tuple[str, tuple[Shard, np.ndarray]]]:
    """Damaged files, with their shards and the recorded checksums of these."""
    damaged = {problem.file for problem in problems if problem.kind == "damaged"}
    for shard in checked_shards(store):
        if shard.path in damaged:
            with suppress(CorruptError):  # without checksums no file can be told from another
                yield shard.path, (shard, shard.sums())


def _find_copy(store: TraceStore, wanted: Shard, sums: np.ndarray) -> Path | None:
    """The file of a store that has the chunks of a shard, if one has."""
    for shard in checked_shards(store):
        if not _are_alike(shard, wanted):
            continue
        with suppress(CorruptError):  # this copy is damaged as well: another may be whole
            if np.array_equal(shard.sums(), sums):
                shard.check()
                for fault in shard.reader.faults(*shard.chunks):
                    raise fault
                return store.path / shard.path
    return None


def _are_alike(one: Shard, other: Shard) -> bool:
    """Whether shards hold as many items of one column or axis, laid out alike."""
    a, b = one.array, other.array
    is_same = (a.column, a.axis, one.n_items) == (b.column, b.axis, other.n_items)
    return is_same and replace(a.layout, path=b.layout.path) == b.layout


def restore_files(root: Path, copies: Mapping[str, Path], files: Files) -> None:
    """Copy files of other stores into this one, in place of damaged ones; durably.

    They are not linked: a file with two names rots in both stores at once. Stopped at any point,
    each file is the old one or the new one.
    """
    working = root / WORKING_DIR / "restored"
    files.make_dirs(working.parent)
    for file, source in copies.items():
        target = root / file
        files.remove(working)
        files.copy_file(source, working)
        files.remove_tree(target)  # only if it is a folder
        files.make_dirs(target.parent)
        files.rename_durably(working, target)


def describe_parts(store: TraceStore, problems: Iterable[Problem]) -> list[str]:
    """Say which of the merged stores have the same files as those that are damaged, if any has.

    Where those stores are is not recorded: they may have been moved, or removed.
    """
    segments = store.manifest.segments
    damaged = [problem for problem in problems if problem.kind == "damaged"]
    shared = [problem for problem in damaged if array_of(problem.file) in segments]
    others = sorted({array_of(problem.file) for problem in damaged} - segments.keys())
    owners = _parts_with(store, [problem.rows for problem in shared])
    hints = []
    if owners:
        hints.append(
            f"damaged files came from {owners}; where that still is, "
            f"python -m store repair {store.path} --from PATH takes them from there"
        )
    if segments and others:
        hints.append(
            f"{', '.join(others)}: written by the merge, or after it; no store that was merged has "
            "these files, only a backup of this one"
        )
    return hints


def _parts_with(store: TraceStore, ranges: Sequence[tuple[int, int] | None]) -> str:
    """Which merged stores these rows came from, as far as that is recorded; empty: from none."""
    parts = store.provenance.get(PARTS)
    if not ranges:
        return ""
    if not isinstance(parts, list) or not all(map(_has_rows, parts)) or None in ranges:
        return "a store that was merged into this one"
    stops = list(accumulate(part["rows"] for part in parts))
    touched = [first_and_last for first_and_last in ranges if first_and_last is not None]
    owners = []
    for number, (part, stop) in enumerate(zip(parts, stops, strict=True), 1):
        start = stop - part["rows"]
        if any(first < stop and last >= start for first, last in touched):
            owners.append(f"store {number} (uuid {part.get('uuid')!s:.40})")
    shown = ", ".join(owners[:SHOWN_PARTS])
    if len(owners) > SHOWN_PARTS:
        shown += ", ..."
    if not owners:  # they were appended later
        return ""
    return f"{shown} of the {count(len(parts), 'store')} that were merged"


def _has_rows(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("rows"), int)
