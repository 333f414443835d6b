"""The segments of an array: parts behind each other, each from the beginning of a shard. Pure.

Stores that are merged by reference keep the shards of their parts. The last shard of a part is
hardly ever full, and the next part begins with a shard of its own. So an item has two numbers: its
*item* number, which offsets and rows count, and its *place*, which counts the padding at the end of
earlier segments as well and which shards and chunks follow from.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from store.format.layout import ArrayLayout

__all__ = ["Segments", "count_shards", "joined_firsts"]


BUCKETS_PER_SEGMENT = 512
MAX_BUCKETS = 65_536


class Segments:
    """Where the items of an array of several segments are.

    A segment has the items from its first one to the first of the next, and as many shards as they
    need; `firsts` rise from 0 and are below `n_items`. Shards are numbered through all segments.
    `n_places` is the place after the last item; `n_chunks` counts, in each plane, those of all
    segments, with the padded last one of each.
    """

    def __init__(self, layout: ArrayLayout, firsts: Sequence[int], n_items: int) -> None:
        self.layout = layout
        self.n_items = n_items
        self._first_list = list(firsts)  # of one item, the segment is found faster in a list
        self.firsts = np.array(firsts, np.int64)
        self.stops = np.append(self.firsts[1:], n_items)
        counts = self.stops - self.firsts
        n_shards = -(-counts // layout.shard_items)
        n_chunks = -(-counts // layout.chunk_items)
        self.first_shards = np.cumsum(n_shards) - n_shards
        self._first_chunks = np.cumsum(n_chunks) - n_chunks
        self.shifts = self.first_shards * layout.shard_items - self.firsts  # place less item
        self.n_places = n_items + int(self.shifts[-1])
        self.n_chunks = int(n_chunks.sum())

    def __len__(self) -> int:
        return len(self._first_list)

    def of_items(self, items: np.ndarray) -> np.ndarray:
        """The segment of each item, int64, of the shape of `items`."""
        return self.firsts.searchsorted(items, "right") - 1

    @cached_property
    def _buckets(self) -> tuple[np.ndarray, np.ndarray]:
        """Items in buckets of equal size, a power of two, instead of a search among the segments.

        Its steps cannot be predicted for shuffled items: of 256 it takes 8 us, the buckets 1 us.

        Returns the logarithm of a bucket's size, int64 `()`, as NumPy takes a Python number 0.2 us
        later; and for each bucket, int64 `(n_buckets, 2)`, the end of the segment that its first
        item is in, and what that item's place is more than the item: side by side both come into
        the processor's cache at once.
        """
        wanted = min(MAX_BUCKETS, BUCKETS_PER_SEGMENT * len(self))
        bits = max(0, (self.n_items // wanted).bit_length())
        n_buckets = (self.n_items >> bits) + 1
        segments = self.of_items(np.arange(n_buckets) << bits)
        table = np.stack([self.stops[segments], self.shifts[segments]], axis=1)
        return np.array(bits), table

    def of_places(self, places: np.ndarray) -> np.ndarray:
        """The segment of each place, int64, of the shape of `places`."""
        return self.first_shards.searchsorted(places // self.layout.shard_items, "right") - 1

    def split(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Item ranges as ranges of places; one that crosses a border becomes several.

        The ranges are int64 `(n,)`, with `0 <= starts <= stops <= n_items`. As many are returned
        unless one crosses a border; no row does.
        """
        # `take` and `count_nonzero` are the fastest of their kind for few numbers
        bits, table = self._buckets
        found = table.take(starts >> bits, 0)
        shifts = found[:, 1]
        is_beyond = stops > found[:, 0]
        if np.count_nonzero(is_beyond):  # a border is in the bucket, or in the range
            beyond = np.flatnonzero(is_beyond)
            segments = self.of_items(starts[beyond])
            if np.count_nonzero(stops[beyond] > self.stops[segments]):
                return self._cut(starts, stops)
            shifts[beyond] = self.shifts[segments]
        return starts + shifts, stops + shifts

    def _cut(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Item ranges as ranges of places, cut where a segment ends."""
        first = self.of_items(starts)
        last = np.maximum(first, self.of_items(stops - 1))
        counts = last - first + 1
        owner = np.repeat(np.arange(len(starts)), counts)  # range of each piece
        before = np.cumsum(counts) - counts
        segments = first[owner] + np.arange(len(owner)) - before[owner]
        shifts = self.shifts[segments]
        begin = np.maximum(starts[owner], self.firsts[segments])
        end = np.minimum(stops[owner], self.stops[segments])
        return begin + shifts, end + shifts

    def places_of(self, items: np.ndarray) -> np.ndarray:
        """The place of each item, int64 `(n,)`."""
        places, _ = self.split(items, items + 1)
        return places

    def place_of_range(self, start: int, stop: int) -> int | None:
        """The place of the item `start`; None if a border lies between it and `stop`."""
        segment = bisect_right(self._first_list, start) - 1
        if stop > self.stops[segment]:
            return None
        return start + int(self.shifts[segment])

    def items_of_places(self, start: int, stop: int) -> tuple[int, int]:
        """The items at the places `start:stop` of one shard, padding left out."""
        segment = self._of_place(start)
        shift = int(self.shifts[segment])
        return start - shift, min(stop - shift, int(self.stops[segment]))

    def sum_of_chunk(self, chunk: int) -> int:
        """Where the checksums of a chunk are, which is counted through all shards.

        The array of the checksums has no gaps: it has the chunks of all segments, one after the
        other.
        """
        segment = self._of_place(chunk * self.layout.chunk_items)
        first = int(self.first_shards[segment]) * self.layout.shard_chunks
        return int(self._first_chunks[segment]) + chunk - first

    def _of_place(self, place: int) -> int:
        return int(self.of_places(np.array(place)))


def count_shards(firsts: Sequence[int], n_items: int, shard_items: int) -> int:
    """The shards of an array of these segments; see `Segments`."""
    ends = [*firsts[1:], n_items]
    counts = (end - first for first, end in zip(firsts, ends, strict=False))  # of no item: none
    return sum(-(-n // shard_items) for n in counts)


def joined_firsts(
    parts: Iterable[tuple[int, Sequence[int]]], shard_items: int
) -> tuple[list[int], int]:
    """The segments of arrays that are put behind each other, shard after shard.

    A part that ends where a shard does is followed without a border.

    A part has the items of its array, and the first items of its segments (none: it is one).
    Returns the first item of each segment, and the items of all.
    """
    parts = list(parts)
    bases = [0, *accumulate(n_items for n_items, _ in parts)]
    firsts: list[int] = []
    for base, (n_items, own) in zip(bases, parts, strict=False):
        for first in (own or [0]) if n_items else []:
            is_full = bool(firsts) and (base + first - firsts[-1]) % shard_items == 0
            if not is_full:
                firsts.append(base + first)
    return firsts, bases[-1]
