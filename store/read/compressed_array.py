"""A compressed array, read through decoded chunks."""

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.ranges import packed_offsets
from store.read.array import Array, ChunkSums, NextUse, ReadOptions, Select, cells
from store.read.buffers import BufferPool
from store.read.chunk_cache import ChunkCache
from store.read.directory import StoreDirectory
from store.read.shard import CompressedShard

__all__ = ["CompressedArray"]

IDLE_CHUNK_BYTES = 8 * 1024 * 1024
# A chunk up to this size is decoded into memory that stays in a core's cache, and copied from
# there: 5 to 8% faster with Blosc than to decode where the batch is, which is in none; with zstd
# there is no difference.
HOT_BYTES = 512 * 1024


class Whole(NamedTuple):
    """A chunk that one range holds whole, and where it goes in the packed batch."""

    chunk: int
    at: int


class Shared(NamedTuple):
    """A chunk, and the parts of it that a read needs: (start, stop, at) each.

    Its items `start:stop` go to the items `at:` of the packed batch. `next_use` is when the chunk
    is needed after this read; None: not known.
    """

    chunk: int
    parts: list[tuple[int, int, int]]
    next_use: float | None


class Pieces(NamedTuple):
    """Ranges cut where chunks end: int64 `(n,)` each.

    Items `start:stop` of the array, in chunk `chunk`, belong to the i-th range, and go to the items
    `at:` of the packed batch.
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

    A chunk that lies wholly inside a range goes into its place and is not kept, because no other
    range needs it. A chunk that ranges share is decoded once for a read, and goes through the
    cache.

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
        self.open_shards((pieces.chunk // layout.shard_chunks).tolist())
        n_items = int((stops - starts).sum())
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        planes = layout.items_as_planes(out)
        numbers = self._planes(select)
        unsplit = tuple(part for axis, part in enumerate(select) if axis not in layout.split_axes)
        is_whole = (pieces.stop - pieces.start == layout.chunk_items) & (not select)
        wholes = _wholes(pieces.take(is_whole))
        shared = self._shared(pieces.take(~is_whole), options.next_use)
        for place in np.ndindex(numbers.shape):
            plane = planes[place]
            number = int(numbers[place])
            keys = [self._key(visit.chunk, number) for visit in shared]
            n_bytes = self.cache.n_missing(keys) * layout.chunk_bytes
            options.run(partial(self._read_shared, number, plane, unsplit), shared, n_bytes)
            if wholes:
                options.run(partial(self._read_wholes, number, plane), wholes, plane.nbytes)
        return out

    def _shared(self, pieces: Pieces, next_use: NextUse | None) -> list[Shared]:
        """Each chunk once, and all that is read of it."""
        chunk_items = self.layout.chunk_items
        pieces = pieces.take(np.argsort(pieces.chunk, kind="stable"))
        ends = np.flatnonzero(np.diff(pieces.chunk, append=-1)) + 1
        last = ends - 1
        chunks = pieces.chunk[last]
        first_items = chunks * chunk_items
        uses: list[float | None] = [None] * len(ends)
        if next_use is not None:
            last_items = np.minimum(self.array.n_places, first_items + chunk_items) - 1
            uses = next_use(pieces.i[last], first_items, last_items).tolist()
        base = pieces.chunk * chunk_items
        starts = (pieces.start - base).tolist()
        stops = (pieces.stop - base).tolist()
        parts = list(zip(starts, stops, pieces.at.tolist(), strict=True))
        parts_of_chunk = [parts[a:b] for a, b in pairwise([0, *ends.tolist()])]
        return list(map(Shared, chunks.tolist(), parts_of_chunk, uses))

    def _read_wholes(self, plane: int, out: np.ndarray, wholes: list[Whole]) -> None:
        """Fill the parts of `out` `(n_items, *plane item)` that whole chunks belong to."""
        layout = self.layout
        chunk_items = layout.chunk_items
        hot = None
        if layout.chunk_bytes <= HOT_BYTES or not out[:chunk_items].flags.c_contiguous:
            hot = self._empty_chunk()
        for chunk, at in wholes:
            target = out[at : at + chunk_items]
            if hot is None:
                self._decode(chunk, plane, target)
            else:
                self._decode(chunk, plane, hot)
                target[...] = hot

    def _read_shared(
        self, plane: int, out: np.ndarray, select: Select, shared: list[Shared]
    ) -> None:
        """Fill the parts of `out` `(n_items, *selected plane item)` that share chunks."""
        selected = (slice(None), *select)
        spare = None
        for visit in shared:
            key = self._key(visit.chunk, plane)
            items = self.cache.get(key, visit.next_use, len(visit.parts))
            if items is None:
                items = self._empty_chunk() if spare is None else spare
                self._decode(visit.chunk, plane, items)
                # memory that the cache does not take holds the next chunk
                spare = None if self.cache.put(key, items, visit.next_use) else items
            if select:
                items = items[selected]
            for start, stop, at in visit.parts:
                out[at : at + stop - start] = items[start:stop]

    def _key(self, chunk: int, plane: int) -> tuple[str, int, int]:
        """What the cache of the whole store calls a chunk."""
        return self.layout.path, chunk, plane

    def _empty_chunk(self) -> np.ndarray:
        """Memory for a decoded chunk `(chunk_items, *plane_item_shape)`."""
        layout = self.layout
        return self._pool.empty((layout.chunk_items, *layout.plane_item_shape), layout.dtype)

    def _decode(self, chunk: int, plane: int, out: np.ndarray) -> None:
        """Fill `out`, contiguous, with the chunk's items in one plane."""
        number, inside = divmod(chunk, self.layout.shard_chunks)
        shard = self.shard(number)
        if self.sums is not None:
            for fault in self.faults(chunk, chunk + 1, [plane]):
                raise fault
        try:
            shard.read_chunk(inside, plane, out)
        except CorruptError as error:
            raise DamagedItemsError(str(error), self.array.items_of_chunk(chunk)) from error


def _pieces(starts: np.ndarray, stops: np.ndarray, chunk_items: int) -> Pieces:
    """The ranges `starts:stops` of an array, cut where its chunks end."""
    i, chunk = cells(starts, stops, chunk_items)
    shifts = packed_offsets(starts, stops)[:-1] - starts
    base = chunk * chunk_items
    start = np.maximum(starts[i], base)
    stop = np.minimum(stops[i], base + chunk_items)
    return Pieces(i, chunk, start, stop, start + shifts[i])


def _wholes(pieces: Pieces) -> list[Whole]:
    return list(map(Whole, pieces.chunk.tolist(), pieces.at.tolist()))
