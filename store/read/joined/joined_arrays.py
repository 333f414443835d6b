"""The arrays of stores that are read as one.

Those of equal layouts are linked: their shards are those of the stores, numbered through. Of others
each store reads its own items. Small ones are held in memory.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from store.errors import DamagedItemsError
from store.format.contents import StoredArray
from store.format.segments import Segments
from store.read.arrays.array import Array
from store.read.arrays.file_array import FileArray
from store.read.arrays.item_location import Located
from store.read.arrays.read_options import DEFAULT, ItemSlices, ReadOptions, Schedule
from store.read.arrays.shard import CompressedShard, RawShard

__all__ = ["HeldArray", "LinkedShards", "RoutedArray"]


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
        self, positions: np.ndarray, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`."""
        return self._values.take(positions, 0)

    def read_located(
        self, located: Located, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`; the places are those of the items."""
        ranges = zip(located.starts.tolist(), located.stops.tolist(), strict=True)
        items = [self._values[start:stop] for start, stop in ranges]
        return options.place(np.concatenate([self._values[:0], *items]))

    def advise_places(
        self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices, schedule: Schedule
    ) -> None:
        """See `Array`: there is nothing to do."""

    def is_place_cached(self, place: int) -> bool:
        """See `Array`."""
        return True


class LinkedShards:
    """The shards of arrays of equal layouts, numbered through: those of one array of segments."""

    def __init__(self, array: StoredArray, parts: Sequence[FileArray]) -> None:
        self._array = array
        self._parts = parts
        counts = [part.array.n_shards for part in parts]
        self._firsts = list(accumulate(counts, initial=0))

    def open(self, number: int) -> RawShard | CompressedShard:
        """A shard; errors name items of the joined array."""
        i = bisect_right(self._firsts, number, hi=len(self._parts)) - 1
        try:
            return self._parts[i].shard(number - self._firsts[i])
        except DamagedItemsError as error:
            raise DamagedItemsError(str(error), self._array.items_of_shard(number)) from error


class RoutedArray(Array):
    """Arrays of several stores, each of which reads its own items; a part is a segment."""

    def __init__(self, array: StoredArray, parts: Sequence[Array]) -> None:
        firsts = list(accumulate((part.n_items for part in parts), initial=0))[:-1] or [0]
        segments = Segments(array.layout, firsts, array.n_items)
        super().__init__(array._replace(segments=segments), None)
        self._joined = segments
        self._parts = parts

    def read_located(
        self, located: Located, select: ItemSlices = (), options: ReadOptions = DEFAULT
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
        self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices, schedule: Schedule
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
