"""The shards of a store, and damaged ones, taken from other stores that have the same ones.

Stores that were merged by reference share shards with their parts, under other names; a backup has
all files of its store. Which file is the right one is told by what this store recorded of its
chunks, not by names: every checksum has to fit, and every byte of the other file is checked.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from store.check.report import Problem
from store.errors import CorruptError
from store.format.contents import WORKING_DIR, StoredArray, checked_arrays
from store.format.manifest import Manifest
from store.read.arrays.array import Array
from store.read.store import TraceStore
from store.write.files import Files

__all__ = [
    "Shard",
    "checked_shards",
    "find_copies",
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
