"""Stores read as one, where they lie: `open_joined`. The rows of each follow those before it.

What reads a store reads this one, as only its source differs. Columns whose files are here and laid
out alike are one array of segments, as after a merge by reference: their shards are those of the
stores, and no byte is copied twice. Of other columns each store reads its own part, and the parts
are put in order. Offsets are held in memory, 8 bytes a row and axis; and ids, where they begin with
the names of their stores.
"""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np

from store.errors import CorruptError, SchemaError
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.format.schema import TRACE_ID, Schema
from store.read.arrays.array import Array
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.file_array import FileArray
from store.read.directory import StoreDirectory
from store.read.joined.joined_arrays import HeldArray, LinkedShards, RoutedArray
from store.read.joined.joined_ids import (
    JoinedIds,
    id_prefixes,
    ids_with_prefixes,
)
from store.read.joined.union import (
    check_origin,
    has_one_layout,
    have_dtype,
    joined_provenance,
    plan_joined,
    unite_columns,
)
from store.read.source import MAX_ARRAY_MAPS, StoreSource
from store.read.store import TraceStore
from store.read.trace_ids import TraceIds

__all__ = [
    "JOINED",
    "Stores",
    "open_joined",
    "prefixes_of",
    "row_cuts",
]

JOINED = " + "  # between the places of stores
Stores = str | Path | TraceStore | Sequence[str | Path | TraceStore]
"""One store, or several to be read as one, by path or address, or open."""


def open_joined(stores: Stores, cache_bytes: int | None = None) -> TraceStore:
    """Open one store, or several as one: rows are numbered through, in the order of the stores.

    It has the columns that all of them have, with one meaning. Where an id is in two of them, all
    ids begin with the names of their stores (`store.read.joined.joined_ids`). An append to the last
    store keeps the numbers of all rows, and so the identity.

    Raises
    ------
    SchemaError
        There is no store, or they share no column, or what they share, their models or layers
        differ; see `merge_stores`.
    """
    if not isinstance(stores, list | tuple):
        return TraceStore.open(cast("Any", stores), cache_bytes)
    opened = [part for one in stores for part in TraceStore.open(one, cache_bytes).parts]
    if not opened:
        raise SchemaError("stores: expected one or more, found none")
    if len(opened) == 1:
        return opened[0]
    check_origin(opened)
    source = JoinedSource(opened)
    if not source.schema.columns:
        found = "; ".join(f"{one.path}: {', '.join(one.schema.columns)}" for one in opened)
        raise SchemaError(f"expected stores that share a column, found {found:.1000}")
    return JoinedStore(source, source.manifest, cache_bytes)


def prefixes_of(store: TraceStore) -> dict[str, TraceStore]:
    """What ids begin with, and the stores of `open_joined` whose ids those are; {} where ids are as
    the stores have them."""
    if not isinstance(store.source, JoinedSource) or not any(store.source.prefixes):
        return {}
    return dict(zip(store.source.prefixes, store.source.stores, strict=True))


def row_cuts(store: TraceStore) -> np.ndarray:
    """Where the rows of each store of `open_joined` begin: int64 `(n_stores + 1,)`."""
    return np.cumsum([0, *map(len, store.parts)])


class JoinedSource(StoreSource):
    """Opens arrays of several stores as one."""

    def __init__(self, stores: Sequence[TraceStore]) -> None:
        self.stores = list(stores)
        self.prefixes = id_prefixes(self.stores)
        self.directory = StoreDirectory(Path(self.where))

    @property
    def where(self) -> str:
        return JOINED.join(store.location for store in self.stores)

    @cached_property
    def schema(self) -> Schema:
        """The columns that all of them have."""
        united = unite_columns(self.stores, shared=True).columns.items()
        return Schema(
            {name: one for name, one in united if have_dtype(self.stores, name, one.dtype)}
        )

    @cached_property
    def manifest(self) -> Manifest:
        """What is committed in all of them."""
        stores = self.stores
        planned = plan_joined(stores, self.schema, self._linked, joined_provenance(stores))
        *others, last = stores
        identity = [(store.uuid, len(store)) for store in others], last.uuid
        n_added = sum(n * len(one) for n, one in zip(self._prefix_bytes, stores, strict=True))
        return replace(
            planned,
            uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, repr(identity))),
            generation=sum(store.generation for store in stores),
            n_items=planned.n_items | {TRACE_ID: planned.n_items[TRACE_ID] + n_added},
            runs=(),  # each store looks up its own ids
        )

    @property
    def _prefix_bytes(self) -> list[int]:
        """How many bytes the ids of each store begin with."""
        return [len(prefix.encode()) for prefix in self.prefixes]

    @cached_property
    def _linked(self) -> list[str]:
        """The columns that are one array of segments."""
        if any(store.mirror is not None or store.check for store in self.stores):
            return []
        linked = [name for name in self.schema.stored if has_one_layout(self.stores, name)]
        return [name for name in linked if name != TRACE_ID or not any(self.prefixes)]

    def open_array(
        self,
        array: StoredArray,
        cache: ChunkCache | None = None,
        max_maps: int = MAX_ARRAY_MAPS,
        check: Manifest | None = None,
    ) -> Array:
        """See `StoreSource`; each store checks its own part."""
        if array.column is not None:
            return self._open_column(array, array.column, cache or ChunkCache(0), max_maps)
        if array.axis is not None:
            return HeldArray(array, self._offsets(array.axis))
        raise CorruptError(f"{self.where}: expected an array of a store, found {array.layout.path}")

    def _open_column(
        self, array: StoredArray, name: str, cache: ChunkCache, max_maps: int
    ) -> Array:
        if name == TRACE_ID and any(self.prefixes):
            return HeldArray(array, ids_with_prefixes(self.stores, self.prefixes))
        stores = [store for store in self.stores if store.n_items(name)]
        parts = [store.reader.column(name) for store in stores]
        if name not in self._linked or not parts:
            return RoutedArray(array, parts)
        linked = LinkedShards(array, cast("list[FileArray]", parts))  # no mirror is among them
        return self.open_files(array, cache, max_maps, None, linked.open)

    def _offsets(self, axis: str) -> np.ndarray:
        parts = [store.reader.offsets(axis).read_checked() for store in self.stores]
        if axis == TRACE_ID:
            lengths = zip(parts, self._prefix_bytes, strict=True)
            parts = [part + n * np.arange(len(part)) for part, n in lengths]
        bases = accumulate((int(part[-1]) for part in parts), initial=0)
        moved = [part[1:] + base for part, base in zip(parts, bases, strict=False)]
        return np.concatenate([np.zeros(1, np.int64), *moved])

    def file_bytes(self, path: str = "") -> int:
        """See `StoreSource`."""
        return sum(store.file_bytes(path or None) for store in self.stores)

    def committed(self) -> tuple[StoreSource, Manifest]:
        """See `StoreSource`."""
        stores = [store.refresh() for store in self.stores]
        is_same = all(one is other for one, other in zip(stores, self.stores, strict=True))
        now = self if is_same else JoinedSource(stores)
        return now, now.manifest


class JoinedStore(TraceStore):
    """Several stores as one; use `open_joined`."""

    source: JoinedSource

    @property
    def parts(self) -> list[TraceStore]:
        """See `TraceStore`."""
        return self.source.stores

    @property
    def ids(self) -> TraceIds:
        """See `TraceStore`."""
        return JoinedIds(self, self.source.stores, self.source.prefixes)
