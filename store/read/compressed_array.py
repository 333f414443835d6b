"""A compressed array, read through decoded chunks."""

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.layout import ArrayLayout
from store.format.ranges import packed_offsets
from store.read.array import Array, ChunkSums, NextUse, ReadOptions, Select, cells
from store.read.buffers import BufferPool
from store.read.chunk_cache import ChunkCache
from store.read.directory import StoreDirectory
from store.read.shard import CompressedShard

__all__ = ["CompressedArray"]

IDLE_CHUNK_BYTES = 8 * 1024 * 1024


class Whole(NamedTuple):
    """A chunk that is read whole, and goes to the items `at:` of the packed batch."""

    chunk: int
    at: int


class Part(NamedTuple):
    """Items `start:stop` of a chunk, which go to the items `at:` of the packed batch."""

    start: int
    stop: int
    at: int


class Shared(NamedTuple):
    """A chunk that is not read whole, and all that a read takes of it.

    `next_use` is when the chunk is needed after this read; None: not known.
    """

    chunk: int
    parts: list[Part]
    next_use: float | None


Visit = Shared | Whole


class Pieces(NamedTuple):
    """Ranges cut where chunks end: int64 `(n,)` each.

    Items `start:stop` of chunk `chunk` belong to the i-th range, and go to the items `at:` of the
    packed batch.
    """

    i: np.ndarray
    chunk: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    at: np.ndarray

    def take(self, index: np.ndarray) -> "Pieces":
        """Some of them, in the order of `index`."""
        return Pieces(*(field[index] for field in self))


class CompressedArray(Array[CompressedShard]):
    """A compressed array: only the chunks that a read needs are decoded.

    A chunk that lies wholly inside a range goes straight into its place where that is contiguous; a
    chunk that other ranges need as well goes through the cache.

    Parameters
    ----------
    directory, array, max_maps, sums
        See `Array`.
    cache
        Shared by the arrays of a store.
    """

    shard_type = CompressedShard

    def __init__(
        self,
        directory: StoreDirectory,
        array: StoredArray,
        max_maps: int,
        sums: ChunkSums | None,
        cache: ChunkCache,
    ) -> None:
        super().__init__(directory, array, max_maps, sums)
        self.cache = cache
        self._pool = BufferPool(IDLE_CHUNK_BYTES)

    def _read_places(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, options: ReadOptions
    ) -> np.ndarray:
        """See `Array`."""
        layout = self.layout
        pieces = _pieces(starts, stops, layout.chunk_items)
        self.open_shards(np.unique(pieces.chunk // layout.shard_chunks).tolist())
        n_items = int((stops - starts).sum())
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        planes = layout.items_as_planes(out)
        numbers = self._planes(select)
        unsplit = tuple(part for axis, part in enumerate(select) if axis not in layout.split_axes)
        in_place = not select and _chunks_are_contiguous(planes, layout)
        visits = self._visits(pieces, in_place, options.next_use)
        for place in np.ndindex(numbers.shape):
            plane = planes[place]
            read = partial(self._read_plane, int(numbers[place]), plane, unsplit)
            options.run(read, visits, plane.nbytes)
        return out

    def _visits(self, pieces: Pieces, in_place: bool, next_use: NextUse | None) -> list[Visit]:
        """What to do with each chunk; `in_place`: one that is read whole is decoded there."""
        chunk_items = self.layout.chunk_items
        is_whole = (pieces.stop - pieces.start == chunk_items) & in_place
        whole = pieces.take(np.flatnonzero(is_whole))
        shared = pieces.take(np.flatnonzero(~is_whole))
        # a chunk that several ranges need is decoded once, and they follow each other
        shared = shared.take(np.argsort(shared.chunk, kind="stable"))
        ends = np.flatnonzero(np.diff(shared.chunk, append=-1)) + 1
        last = shared.take(ends - 1)
        uses: list[float | None] = [None] * len(ends)
        if next_use is not None:
            first_item = last.chunk * chunk_items
            last_item = np.minimum(self.array.n_places, first_item + chunk_items) - 1
            uses = next_use(last.i, first_item, last_item).tolist()
        parts = list(map(Part, shared.start.tolist(), shared.stop.tolist(), shared.at.tolist()))
        cuts = pairwise([0, *ends.tolist()])
        return [
            *map(Shared, last.chunk.tolist(), (parts[a:b] for a, b in cuts), uses),
            *map(Whole, whole.chunk.tolist(), whole.at.tolist()),
        ]

    def _read_plane(self, plane: int, out: np.ndarray, select: Select, visits: list[Visit]) -> None:
        """Fill `out` `(n_items, *selected plane item)` with one plane of the ranges."""
        chunk_items = self.layout.chunk_items
        selected = (slice(None), *select)
        spare = None
        for visit in visits:
            if isinstance(visit, Whole):
                self._decode(visit.chunk, plane, out[visit.at : visit.at + chunk_items])
                continue
            items, spare = self._cached(visit, plane, spare)
            if select:
                items = items[selected]
            for start, stop, at in visit.parts:
                out[at : at + stop - start] = items[start:stop]

    def _cached(
        self, visit: Shared, plane: int, spare: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """A decoded chunk `(chunk_items, *plane_item_shape)`, from the cache or into it.

        `spare` is memory for one that the cache does not take; returned with the chunk is what may
        be written after the chunk was used.
        """
        layout = self.layout
        key = (layout.path, visit.chunk, plane)
        items = self.cache.get(key, visit.next_use, len(visit.parts))
        if items is not None:
            return items, spare
        if spare is None:
            spare = self._pool.empty((layout.chunk_items, *layout.plane_item_shape), layout.dtype)
        self._decode(visit.chunk, plane, spare)
        is_kept = self.cache.put(key, spare, visit.next_use)
        return spare, None if is_kept else spare

    def _decode(self, chunk: int, plane: int, out: np.ndarray) -> None:
        number, inside = divmod(chunk, self.layout.shard_chunks)
        shard = self.shard(number)
        if self.sums is not None:
            for fault in self.faults(chunk, chunk + 1, [plane]):
                raise fault
        try:
            shard.read_chunk(inside, plane, out.reshape(-1).view(np.uint8))
        except CorruptError as error:
            raise DamagedItemsError(str(error), self.array.items_of_chunk(chunk)) from error


def _pieces(starts: np.ndarray, stops: np.ndarray, chunk_items: int) -> Pieces:
    """The ranges `starts:stops` of an array, cut where its chunks end."""
    i, chunk = cells(starts, stops, chunk_items)
    base = chunk * chunk_items
    start = np.maximum(starts[i] - base, 0)
    stop = np.minimum(stops[i] - base, chunk_items)
    at = packed_offsets(starts, stops)[i] + base + start - starts[i]
    return Pieces(i, chunk, start, stop, at)


def _chunks_are_contiguous(planes: np.ndarray, layout: ArrayLayout) -> bool:
    """Whether a chunk's items lie one after the other in each plane of a packed batch."""
    plane = planes[(0,) * len(layout.plane_grid)]
    return bool(plane[: layout.chunk_items].flags.c_contiguous)
