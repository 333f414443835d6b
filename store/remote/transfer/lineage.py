"""Is a local store a later state of the one in a bucket? Answered from checksums, not from values.

Copies of a store that grew on their own have one UUID. The checksums of whole chunks never change
while an array grows, so their own CRC32C, up to the items that were pushed, names these items. An
array may lie in two ways: as it was in the store that was pushed, and in the bucket, where each
append begins a segment. A store that fits either of them has the same items.
"""

import numpy as np
from crc32c import crc32c

from store.errors import SchemaError
from store.format.contents import StoredArray, checked_arrays
from store.format.layout import ArrayLayout
from store.format.schema import Schema
from store.format.segments import Segments
from store.read.source import open_array
from store.read.store import TraceStore
from store.remote.pushed import Sums, crc_of_sums
from store.remote.transfer.commit import Remote

__all__ = ["check_lineage", "replaced_columns", "sums_of"]


def sums_of(store: TraceStore) -> dict[str, Sums]:
    """Path of every column and offsets array -> its sums, as the store lays it out.

    The last chunks are read: raises CorruptError if they are not what was written.
    """
    return {
        array.layout.path: _sums_at(store, array, array.n_items)
        for array in checked_arrays(store.manifest)
    }


def _sums_at(store: TraceStore, whole: StoredArray, n_items: int) -> Sums:
    """The sums of an array of a store when it had so many items."""
    array = _first_items(whole, n_items)
    n_rest = array.n_places % array.layout.chunk_items
    items = open_array(store.directory, whole, check=store.manifest).read(n_items - n_rest, n_items)
    crc = crc_of_sums(store.directory, array.checksums)
    return Sums(crc, _tail_sums(array.layout, items) if n_rest else [])


def _tail_sums(layout: ArrayLayout, items: np.ndarray) -> list[int]:
    """CRC32C of a chunk that begins with these items, and zeros after them, one a plane."""
    chunk = np.zeros((layout.chunk_items, *layout.item_shape), layout.dtype)
    chunk[: len(items)] = items
    planes = layout.items_as_planes(chunk).reshape(layout.n_planes, -1)
    return [crc32c(np.ascontiguousarray(plane).data.cast("B")) for plane in planes]


def check_lineage(store: TraceStore, remote: Remote, where: str) -> None:
    """Raise SchemaError unless a local store begins with the rows of one in a bucket.

    That is at the address `where`.
    """
    manifest = remote.manifest
    if manifest.uuid != store.uuid:
        raise SchemaError(
            f"{where}: expected an earlier state of {store.path}, found another store; choose "
            "another address"
        )
    record = remote.record
    if not record.in_bucket:
        if manifest == store.manifest:
            return
        raise SchemaError(
            f"{where}: expected a store that was pushed, found a copy that another program made: "
            "nothing says that this one begins with its rows; push it to another address"
        )
    if manifest.n_rows > len(store):
        raise SchemaError(
            f"{where}: expected at most the {len(store):,} traces of {store.path}, found "
            f"{manifest.n_rows:,}; pull it, and append to that"
        )
    replaced = replaced_columns(store.schema, manifest.schema)
    own = {array.layout.path: array for array in checked_arrays(store.manifest)}
    for array in checked_arrays(manifest):
        path = array.layout.path
        whole = own.get(path)
        if whole is None:
            if array.column not in replaced:
                raise SchemaError(
                    f"{where}: expected an earlier state of {store.path}, found {path!r}, which "
                    "that never had: another copy was pushed since; pull it and go on with that, "
                    "or choose another address"
                )
            continue
        is_longer = whole.layout == array.layout and whole.n_items >= array.n_items
        earlier = (record.pushed.get(path), record.in_bucket.get(path))
        if not is_longer or _sums_at(store, whole, array.n_items) not in earlier:
            raise SchemaError(
                f"{where}: expected an earlier state of {store.path}, found other values in "
                f"{path!r}: the two grew on their own; pull it and append to that, or choose "
                "another address"
            )


def replaced_columns(schema: Schema, earlier: Schema) -> list[str]:
    """The columns of an earlier schema of which this one has a later array."""
    return [
        name
        for name in earlier.stored
        if name in schema.stored and schema.array_number(name) > earlier.array_number(name)
    ]


def _first_items(array: StoredArray, n_items: int) -> StoredArray:
    """The array when it had so many items."""
    segments = None
    if array.segments is not None:
        firsts = [first for first in array.segments.firsts.tolist() if first < n_items]
        segments = Segments(array.layout, firsts, n_items) if firsts else None
    return array._replace(n_items=n_items, segments=segments)
