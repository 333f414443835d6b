"""Damaged files of a store, taken from other stores that have the same ones.

Stores that were merged by reference share shards with their parts, under other names; a backup has
all files of its store. Which file is the right one is told by what this store recorded of its
chunks, not by names: every checksum has to fit, and every byte of the other file is checked. Lost
checksums are taken from a backup of the same state only.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from store.check.report import Problem, array_of
from store.check.verify import Shard, checked_shards, shards_of
from store.errors import CorruptError
from store.format.contents import WORKING_DIR, checked_arrays
from store.read.store import TraceStore
from store.write.files import Files

__all__ = ["find_copies", "find_sums", "restore_files"]


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
    store: TraceStore, problems: Iterable[Problem], others: Iterable[TraceStore]
) -> dict[str, Path]:
    """Find the checksums that a store has lost in backups of the same state: all files are equal.

    Without them, wrong bytes would be taken as they are. Returns what `find_copies` does.
    """
    lost = {array_of(problem.file) for problem in problems if problem.kind == "unverifiable"}
    state = store.uuid, store.manifest.checksum
    backups = [other for other in others if (other.uuid, other.manifest.checksum) == state]
    found: dict[str, Path] = {}
    for array in checked_arrays(store.manifest):
        if not lost & {array.layout.path, array.checksums.layout.path}:
            continue
        for backup in backups:
            for shard in shards_of(backup, array.checksums):
                with suppress(CorruptError):  # this copy is damaged as well: another may be whole
                    shard.check()
                    if not _is_equal(store.path / shard.path, backup.path / shard.path):
                        found.setdefault(shard.path, backup.path / shard.path)
    return found


def _is_equal(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    return one.is_file() and one.read_bytes() == other.read_bytes()


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
    ours = one.array
    theirs = other.array
    is_same = (ours.column, ours.axis) == (theirs.column, theirs.axis)
    layout = replace(ours.layout, path=theirs.layout.path)
    return is_same and one.n_items == other.n_items and layout == theirs.layout


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
