"""Stores read as one, where they lie: `open_joined`. The rows of each follow those before it.

What reads a store reads this one, as only its source differs. Columns whose files are here and laid
out alike are one array of segments, as after a merge by reference: their shards are those of the
stores, and no byte is copied twice. Of other columns each store reads its own part, and the parts
are put in order. Offsets and the table of ids are held in memory: 8 bytes a row and axis.
"""

import math
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np

from store.errors import CorruptError, DamagedItemsError, SchemaError
from store.format.contents import StoredArray, run_arrays
from store.format.ids import Run
from store.format.manifest import Manifest
from store.format.schema import Schema
from store.format.segments import Segments
from store.read.array import Array
from store.read.chunk_cache import ChunkCache
from store.read.compressed_array import CompressedArray
from store.read.directory import StoreDirectory
from store.read.location import Located
from store.read.raw_array import RawArray
from store.read.read_options import DEFAULT, ReadOptions, Schedule, Select
from store.read.shard import CompressedShard, RawShard
from store.read.source import MAX_MAPS, LocalSource
from store.read.store import TraceStore
from store.read.union import (
    check_origin,
    has_one_layout,
    have_dtype,
    joined_provenance,
    plan_joined,
    unite_columns,
)

__all__ = ["JOINED", "Stores", "Weights", "open_joined", "read_weights", "row_cuts"]

JOINED = " + "  # between the places of stores
Stores = str | Path | TraceStore | Sequence[str | Path | TraceStore]
"""One store, or several to be read as one, by path or address, or open."""
Weights = Mapping[str, float] | Sequence[float]
"""A number above 0 of each store, in their order, or by their names: those of their directories,
with or without what follows a dot, or their whole paths or addresses."""


def open_joined(stores: Stores, cache_bytes: int | None = None) -> TraceStore:
    """Open one store, or several as one: rows are numbered through, in the order of the stores.

    It has the columns that all of them have, with one meaning; of an id in several stores it finds
    the last. An append to the last store keeps the numbers of all rows, and so the identity.

    Raises
    ------
    SchemaError
        There is no store, or what they share, their models or layers differ; see `merge_stores`.
    """
    if not isinstance(stores, list | tuple):
        return TraceStore.open(cast("Any", stores), cache_bytes)
    opened = [TraceStore.open(store, cache_bytes) for store in stores]
    if not opened:
        raise SchemaError("stores: expected one or more, found none")
    if len(opened) == 1:
        return opened[0]
    check_origin(opened)
    source = JoinedSource(opened)
    return TraceStore(source, source.manifest, cache_bytes)


def parts_of(store: TraceStore) -> list[TraceStore]:
    """The stores that `open_joined` made one of, or the one that it opened."""
    return store.source.stores if isinstance(store.source, JoinedSource) else [store]


def row_cuts(store: TraceStore) -> np.ndarray:
    """Where the rows of each store of `open_joined` begin: int64 `(n_stores + 1,)`."""
    return np.cumsum([0, *map(len, parts_of(store))])


def read_weights(store: TraceStore, weights: Weights) -> list[float]:
    """The weight of each store of `open_joined`.

    Raises ValueError unless each store has one weight, a finite number above 0.
    """
    places = [part.location.rstrip("/") for part in parts_of(store)]
    if isinstance(weights, Mapping):
        weights = _in_order(places, weights)
    if len(weights) != len(places):
        raise ValueError(f"weights: expected {len(places)}, one a store, found {len(weights)}")
    for place, weight in zip(places, weights, strict=True):
        if not (isinstance(weight, Real) and 0 < weight < math.inf):
            raise ValueError(f"weights: expected a number above 0 for {place}, found {weight!r}")
    return list(map(float, weights))


def _in_order(places: list[str], weights: Mapping[str, float]) -> list[float]:
    """Weights by name in the order of the stores."""
    owners = {}
    for name in weights:
        of_name = [i for i, place in enumerate(places) if name.rstrip("/") in _names_of(place)]
        if len(of_name) != 1 or of_name[0] in owners:
            raise ValueError(
                f"weights: expected names that mean one of {', '.join(places)} each, found "
                f"{name!r}; give whole paths, or a list of weights"
            )
        owners[of_name[0]] = weights[name]
    missing = [place for i, place in enumerate(places) if i not in owners]
    if missing:
        raise ValueError(f"weights: expected one of each store, found none of {missing[0]}")
    return [owners[i] for i in range(len(places))]


def _names_of(place: str) -> set[str]:
    name = place.rpartition("/")[2]
    return {place, name, name.partition(".")[0]}


class JoinedSource(LocalSource):
    """Opens arrays of several stores as one."""

    def __init__(self, stores: Sequence[TraceStore]) -> None:
        self.stores = list(stores)
        self.directory = StoreDirectory(Path(self.where), 0, None)

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
        return replace(
            planned,
            uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, repr(identity))),
            generation=sum(store.generation for store in stores),
            runs=tuple(self._runs),
        )

    @cached_property
    def _linked(self) -> list[str]:
        """The columns that are one array of segments."""
        if any(store.mirror is not None or store.check for store in self.stores):
            return []
        return [name for name in self.schema.stored if has_one_layout(self.stores, name)]

    @cached_property
    def _runs(self) -> dict[Run, tuple[TraceStore, Run, int]]:
        """The runs of the id table: the store of each, its run there, and the first row."""
        bases = accumulate(map(len, self.stores), initial=0)
        return {
            (first + base, stop + base): (store, (first, stop), base)
            for store, base in zip(self.stores, bases, strict=False)
            for first, stop in store.manifest.runs
        }

    def open_array(
        self,
        array: StoredArray,
        cache: ChunkCache | None = None,
        max_maps: int = MAX_MAPS,
        check: Manifest | None = None,
    ) -> Array:
        """See `LocalSource`; each store checks its own part."""
        if array.column is not None:
            return self._open_column(array, array.column, cache or ChunkCache(0), max_maps)
        if array.axis is not None:
            return HeldArray(array, self._offsets(array.axis))
        for run, (store, own, base) in self._runs.items():
            for kind, joined in enumerate(run_arrays(run)):
                if joined.layout.path == array.layout.path:
                    values = store.reader.id_table.run(own)[kind]
                    return HeldArray(array, values + base if kind else values)
        raise CorruptError(f"{self.where}: expected an array of a store, found {array.layout.path}")

    def _open_column(
        self, array: StoredArray, name: str, cache: ChunkCache, max_maps: int
    ) -> Array:
        stores = [store for store in self.stores if store.n_items(name)]
        parts = [store.reader.column(name) for store in stores]
        if name not in self._linked or not parts:
            return RoutedArray(array, parts)
        if array.layout.codec is None:
            return LinkedRaw(self.directory, array, max_maps, parts)
        return LinkedCompressed(self.directory, array, max_maps, cache, parts)

    def _offsets(self, axis: str) -> np.ndarray:
        parts = [store.reader.offsets(axis).read_checked() for store in self.stores]
        bases = accumulate((int(part[-1]) for part in parts), initial=0)
        moved = [part[1:] + base for part, base in zip(parts, bases, strict=False)]
        return np.concatenate([np.zeros(1, np.int64), *moved])

    def file_bytes(self, path: str = "") -> int:
        """See `LocalSource`."""
        return sum(store.file_bytes(path or None) for store in self.stores)

    def committed(self) -> tuple[LocalSource, Manifest]:
        """See `LocalSource`."""
        now = JoinedSource([store.refresh() for store in self.stores])
        return now, now.manifest


class HeldArray(Array):
    """A small array in memory."""

    def __init__(self, array: StoredArray, values: np.ndarray) -> None:
        super().__init__(array, None)
        self._values = values
        values.flags.writeable = False

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Array`: a view."""
        return self._values[start:stop]

    def take(
        self, positions: np.ndarray, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`."""
        return self._values.take(positions, 0)


class _Shards:
    """The shards of several arrays, numbered through."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        counts = [part.array.n_shards for part in parts]
        self._firsts = list(accumulate(counts, initial=0))

    def open(self, number: int, items: tuple[int, int]) -> RawShard | CompressedShard:
        """A shard; `items` are those that it has in the joined array, for errors."""
        i = bisect_right(self._firsts, number, hi=len(self._parts)) - 1
        try:
            return self._parts[i].shard(number - self._firsts[i])
        except DamagedItemsError as error:
            raise DamagedItemsError(str(error), items) from error


class LinkedRaw(RawArray):
    """Uncompressed arrays of several stores, as one of segments."""

    def __init__(
        self, directory: StoreDirectory, array: StoredArray, max_maps: int, parts: Sequence[Array]
    ) -> None:
        super().__init__(directory, array, max_maps, None)
        self._of_parts = _Shards(parts)

    def _open_shard(self, number: int) -> RawShard:
        return cast("RawShard", self._of_parts.open(number, self.array.items_of_shard(number)))


class LinkedCompressed(CompressedArray):
    """Compressed arrays of several stores, as one of segments."""

    def __init__(
        self,
        directory: StoreDirectory,
        array: StoredArray,
        max_maps: int,
        cache: ChunkCache,
        parts: Sequence[Array],
    ) -> None:
        super().__init__(directory, array, max_maps, None, cache)
        self._of_parts = _Shards(parts)

    def _open_shard(self, number: int) -> CompressedShard:
        items = self.array.items_of_shard(number)
        return cast("CompressedShard", self._of_parts.open(number, items))


class RoutedArray(Array):
    """Arrays of several stores, each of which reads its own items; a part is a segment."""

    def __init__(self, array: StoredArray, parts: Sequence[Array]) -> None:
        firsts = list(accumulate((part.n_items for part in parts), initial=0))[:-1] or [0]
        segments = Segments(array.layout, firsts, array.n_items)
        super().__init__(array._replace(segments=segments), None)
        self._joined = segments
        self._parts = parts

    def read_located(
        self, located: Located, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`."""
        starts, stops, _ = located
        sizes = stops - starts
        ends = np.cumsum(sizes)
        n_items = int(sizes.sum())
        out = options.empty((n_items, *self.selected_shape(select)), self.layout.dtype)
        own_options = ReadOptions(threads=options.threads)
        for part, here, shift in self._owners(starts, stops):
            own = starts[here] - shift, stops[here] - shift
            try:
                items = self._parts[part].read_ranges(*own, select, own_options)
            except DamagedItemsError as error:
                first, stop = (item + int(self._joined.firsts[part]) for item in error.items)
                raise DamagedItemsError(str(error), (first, stop)) from error
            if len(items) == len(here):
                out[ends[here] - 1] = items
                continue
            cuts = np.cumsum([0, *sizes[here]]).tolist()
            for end, (first, stop) in zip(ends[here].tolist(), pairwise(cuts), strict=True):
                out[end - (stop - first) : end] = items[first:stop]
        return out

    def _owners(self, starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, np.ndarray, int]]:
        """Each part that has some of these ranges of places, which of them, int64 `(n,)`, and what
        their places are more than the items of the part; an empty range has no owner."""
        owners = np.where(stops > starts, self._joined.of_places(starts), -1)
        firsts = self._joined.first_shards * self.layout.shard_items
        return [
            (part, np.flatnonzero(owners == part), int(firsts[part]))
            for part in np.unique(owners[owners >= 0]).tolist()
        ]

    def advise_places(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, schedule: Schedule
    ) -> None:
        """See `Array`; the parts get no times of visits."""
        for part, here, shift in self._owners(starts, stops):
            self._parts[part].advise(starts[here] - shift, stops[here] - shift, select)

    def is_here(self) -> bool:
        """See `Array`."""
        return all(part.is_here() for part in self._parts)

    def is_place_cached(self, place: int) -> bool:
        """See `Array`."""
        ((part, _, shift),) = self._owners(np.array([place]), np.array([place + 1]))
        return self._parts[part].is_cached(place - shift)
