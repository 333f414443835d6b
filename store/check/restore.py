"""Damaged files, taken from other stores that have the same ones.

Stores that were merged by reference share shards with their parts, under other names; a backup has
all files of its store. Which file is the right one is told by what this store recorded of its
chunks, not by names: every checksum has to fit, and every byte of the other file is checked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.check.report import Problem
from store.errors import CorruptError
from store.format.contents import (
    WORKING_DIR,
    StoredArray,
    checked_arrays,
    column_array,
    offsets_array,
)
from store.format.layout import ArrayLayout
from store.format.manifest import Manifest
from store.read.array import Array
from store.read.open_array import open_array
from store.read.store import TraceStore
from store.reports import count
from store.traces.origin import PARTS
from store.write.files import Files
from store.write.link import link_or_say

__all__ = ["describe_parts", "find_copies", "restore_files"]

SHOWN_PARTS = 3


class _Wanted(NamedTuple):
    """A damaged shard: its array, its items, and the checksums of its chunks."""

    array: StoredArray
    n_items: int
    sums: np.ndarray


def find_copies(
    store: TraceStore, problems: Iterable[Problem], others: Iterable[TraceStore]
) -> dict[str, Path]:
    """Find whole files of other stores that a store's damaged ones were equal to.

    The stores in `others` are searched in this order; none is asked for if no file is damaged.
    Returns the path of a damaged file inside the store -> the file to take, read whole and checked.
    """
    missing = dict(_wanted_files(store, problems))
    found: dict[str, Path] = {}
    stores = iter(others)
    while missing and (other := next(stores, None)) is not None:
        for file, wanted in list(missing.items()):
            copy = _find_copy(other, wanted)
            if copy is not None:
                found[file] = copy
                del missing[file]
    return found


def _wanted_files(store: TraceStore, problems: Iterable[Problem]) -> Iterator[tuple[str, _Wanted]]:
    arrays = {array.layout.path: array for array in checked_arrays(store.manifest)}
    for problem in problems:
        if problem.kind != "damaged" or problem.shard is None or problem.array not in arrays:
            continue
        array = arrays[problem.array]
        reader = open_array(store.directory, array, check=store.manifest)
        with suppress(CorruptError):  # without checksums no file can be told from another
            sums = _sums_of(reader, problem.shard)
            yield problem.file, _Wanted(array, _n_items(array, problem.shard), sums)


def _find_copy(store: TraceStore, wanted: _Wanted) -> Path | None:
    """The file of a store that has the wanted chunks, if one has."""
    array = _same_array(store.manifest, wanted.array)
    if array is None:
        return None
    reader = open_array(store.directory, array, check=store.manifest)
    for number in range(array.n_shards):
        if _n_items(array, number) != wanted.n_items:
            continue
        with suppress(CorruptError):  # this copy is damaged as well: another may be whole
            if np.array_equal(_sums_of(reader, number), wanted.sums):
                _check_whole(reader, number)
                return store.path / array.layout.shard_path(number)
    return None


def _same_array(manifest: Manifest, array: StoredArray) -> StoredArray | None:
    """The array of another store that has the same column, or offsets, in the same layout."""
    found = None
    if array.column is None and array.axis in manifest.schema.axes:
        found = offsets_array(array.axis, manifest.n_rows)
    elif array.column in manifest.schema.stored:
        found = column_array(manifest, array.column)
    if found is None or _nameless(found.layout) != _nameless(array.layout):
        return None
    return found


def _nameless(layout: ArrayLayout) -> ArrayLayout:
    return replace(layout, path="")


def _n_items(array: StoredArray, number: int) -> int:
    first, stop = array.items_of_shard(number)
    return stop - first


def _chunks(array: StoredArray, number: int) -> tuple[int, int]:
    """The chunks of a shard, counted through all shards: first, and after the last."""
    first = number * array.layout.shard_chunks
    return first, first + array.layout.n_chunks(_n_items(array, number))


def _sums_of(reader: Array, number: int) -> np.ndarray:
    """The recorded checksums of a shard, uint32 `(n_chunks, n_planes)`; raises CorruptError."""
    first, stop = _chunks(reader.array, number)
    if reader.sums is None:
        raise ValueError("expected a reader that checks")
    return reader.sums.read_chunks(first, stop)


def _check_whole(reader: Array, number: int) -> None:
    """Read a shard; raise CorruptError if its file, its table or a chunk is not as recorded."""
    shard = reader.shard(number)
    if shard.end != shard.n_data:
        raise CorruptError(f"{shard.where}: expected {shard.end} bytes, found {shard.n_data}")
    for fault in reader.faults(*_chunks(reader.array, number)):
        raise fault


def restore_files(root: Path, copies: Mapping[str, Path], files: Files) -> None:
    """Give files of other stores a name in this one, in place of damaged ones; durably.

    They are copied where the file system cannot link. Stopped at any point, each file is the old
    one or the new one.
    """
    working = root / WORKING_DIR / "restored"
    files.make_dirs(working.parent)
    for file, source in copies.items():
        target = root / file
        files.remove(working)
        if link_or_say(source, working, files) is not None:
            files.copy_file(source, working)
        files.remove_tree(target)  # only if it is a folder
        files.make_dirs(target.parent)
        files.rename_durably(working, target)


def describe_parts(store: TraceStore, problems: Iterable[Problem]) -> list[str]:
    """Say which of the merged stores have the same files as those that are damaged, if any has.

    Where those stores are is not recorded: they may have been moved, or removed.
    """
    segments = store.manifest.segments
    rows = [
        problem.rows
        for problem in problems
        if problem.kind == "damaged" and problem.array in segments
    ]
    owners = _parts_with(store, rows)
    if not owners:
        return []
    return [
        f"damaged files came from {owners}; where that still is, "
        f"python -m store repair {store.path} --from PATH takes them from there"
    ]


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


def _has_rows(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("rows"), int)
