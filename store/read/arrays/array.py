"""An array of a store: its items by number, wherever its chunks come from.

An array knows items and shards, not rows, ids or strings. Every read is checked against the number
of items that the manifest states, so nothing beyond a commit is ever seen. Items are asked for by
number and looked for at their places (`store.read.row_location`); without segments the two are one.
"""

from collections.abc import Iterator

import numpy as np

from store.errors import DamagedItemsError
from store.format.contents import StoredArray
from store.format.ranges import cut_ranges
from store.read.arrays.chunk_sums import ChunkSums
from store.read.arrays.item_location import Located, next_use_of_places, pairs
from store.read.arrays.read_options import (
    DEFAULT,
    UNSCHEDULED,
    ItemSlices,
    ReadOptions,
    Schedule,
    n_selected,
)

__all__ = ["Array"]


class Array:
    """What every array offers: its committed items. Chunks are checked against `sums`, if there are
    some, before they are first used."""

    def __init__(self, array: StoredArray, sums: ChunkSums | None) -> None:
        self.array = array
        self.layout = array.layout
        self.n_items = array.n_items
        self.segments = array.segments
        self.sums = sums

    @property
    def n_together(self) -> int | None:
        """Places that lie together, of a shard or a chunk: ranges are cut where they end; None: the
        ranges of a read stay whole."""
        return None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`, read-only."""
        copied = self.read_ranges(np.array([start]), np.array([stop]))
        copied.flags.writeable = False
        return copied

    def take(
        self, positions: np.ndarray, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """The items at `positions`, int64 `(n,)`."""
        return self.read_ranges(positions, positions + 1, select, options)

    def read_ranges(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: ItemSlices = (),
        options: ReadOptions = DEFAULT,
    ) -> np.ndarray:
        """The items of the ranges `starts:stops`, int64 `(n,)`, one after the other."""
        (located,) = self.locate(starts, stops, np.array([0, len(starts)]))
        return self.read_located(located, select, options)

    def locate(self, starts: np.ndarray, stops: np.ndarray, cuts: np.ndarray) -> list[Located]:
        """Where the items of several reads are, found at once.

        Starts and stops are the item ranges of all reads, int64 `(n,)`; the i-th read has those
        from `cuts[i]` to `cuts[i + 1]`, int64 `(n_reads + 1,)`.
        """
        if self.segments is not None:
            split = self.segments.split
            places = split(starts, stops)
            if len(places[0]) != len(starts):  # a range crosses a border, which no row does
                counts: list[int] = [len(split(starts[a:b], stops[a:b])[0]) for a, b in pairs(cuts)]
                cuts = np.cumsum([0, *counts])
            starts, stops = places
        if self.n_together is None:
            return [Located(starts[a:b], stops[a:b]) for a, b in pairs(cuts)]
        owners, starts, stops, numbers = cut_ranges(starts, stops, self.n_together)
        if owners is not None:
            cuts = owners.searchsorted(cuts)
        return [Located(starts[a:b], stops[a:b], numbers[a:b]) for a, b in pairs(cuts)]

    def read_located(
        self, located: Located, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """The items of one read, one after the other."""
        raise NotImplementedError

    def faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        """The chunks among `start:stop`, counted through all shards, with other checksums than they
        should have, in all planes or in these.

        Raises CorruptError if the expected checksums cannot be read.
        """
        raise NotImplementedError

    def check_shard(self, number: int) -> None:
        """Raise DamagedItemsError if a shard is not there, or its table or size is wrong."""
        raise NotImplementedError

    def selected_shape(self, select: ItemSlices) -> tuple[int, ...]:
        """Shape of an item of which only `select` is read."""
        shape = self.layout.item_shape
        if not select:
            return shape
        return tuple(map(n_selected, select, shape))

    def planes(self, select: ItemSlices) -> np.ndarray:
        """The numbers of the selected planes, in the shape of the selected part of their grid."""
        numbers = np.arange(self.layout.n_planes).reshape(self.layout.plane_grid)
        if select:
            numbers = numbers[tuple(select[axis] for axis in self.layout.split_axes)]
        return np.asarray(numbers)

    def advise(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: ItemSlices,
        schedule: Schedule = UNSCHEDULED,
    ) -> None:
        """Announce that these items will be read, and perhaps when; returns before they are."""
        starts, stops = self.places(starts, stops)
        next_use = next_use_of_places(self.segments, starts, schedule.next_use)
        self.advise_places(starts, stops, select, schedule._replace(next_use=next_use))

    def places(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ranges of items as ranges of places."""
        if self.segments is None:
            return starts, stops
        return self.segments.split(starts, stops)

    def advise_places(
        self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices, schedule: Schedule
    ) -> None:
        """As `advise`, of ranges of places."""
        raise NotImplementedError

    def advise_chunks(self, start: int, stop: int) -> None:
        """Announce that all planes of the chunks `start:stop` of one shard will be read."""

    def reads_files(self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices) -> bool:
        """Whether `ReadOptions.files`, if it is given, reads these ranges of places."""
        return False

    def is_here(self) -> bool:
        """Whether all chunks are on this machine."""
        return True

    def is_cached(self, item: int) -> bool:
        """Whether the first bytes of an item are in the page cache."""
        if self.segments is not None:
            (item,) = self.segments.places_of(np.array([item])).tolist()
        return self.is_place_cached(item)

    def is_place_cached(self, place: int) -> bool:
        """As `is_cached`, of a place."""
        raise NotImplementedError
