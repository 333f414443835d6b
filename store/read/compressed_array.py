"""A compressed array, read through decoded chunks."""

from collections.abc import Iterator
from functools import partial
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


class Visit(NamedTuple):
    """Items `start:stop` of a chunk, which go to items `at:` of the packed batch.

    `next_use` is when the chunk is needed again; None: not known.
    """

    chunk: int
    start: int
    stop: int
    at: int
    next_use: float | None


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
        offsets = packed_offsets(starts, stops)
        visits = list(self._visits(starts, stops, offsets, options.next_use))
        self.open_shards(visit.chunk // layout.shard_chunks for visit in visits)
        out = options.empty((int(offsets[-1]), *self.selected_shape(select)), layout.dtype)
        planes = layout.items_as_planes(out)
        numbers = self.planes(select)
        unsplit = tuple(part for axis, part in enumerate(select) if axis not in layout.split_axes)
        for place in np.ndindex(numbers.shape):
            plane = planes[place]
            read = partial(self._read_plane, int(numbers[place]), plane, unsplit)
            options.run(read, visits, plane.nbytes)
        return out

    def _read_plane(self, plane: int, out: np.ndarray, select: Select, visits: list[Visit]) -> None:
        """Fill `out` `(n_items, *selected plane item)` with one plane of the ranges."""
        chunk_items = self.layout.chunk_items
        selected = (slice(None), *select)
        for chunk, start, stop, at, next_use in visits:
            target = out[at : at + stop - start]
            if stop - start == chunk_items and not select and target.flags.c_contiguous:
                self._decode(chunk, plane, target)
            else:
                items = self._cached(chunk, plane, next_use)[start:stop]
                np.copyto(target, items[selected] if select else items)

    def _visits(
        self, starts: np.ndarray, stops: np.ndarray, offsets: np.ndarray, next_use: NextUse | None
    ) -> Iterator[Visit]:
        chunk_items = self.layout.chunk_items
        i, chunk = cells(starts, stops, chunk_items)
        base = chunk * chunk_items
        start = np.maximum(starts[i] - base, 0)
        stop = np.minimum(stops[i] - base, chunk_items)
        at = offsets[i] + base + start - starts[i]
        uses: list[float | None] = [None] * len(i)
        if next_use is not None:
            last = np.minimum(self.array.n_places, base + chunk_items) - 1
            uses = next_use(i, base, last).tolist()
        return map(Visit, chunk.tolist(), start.tolist(), stop.tolist(), at.tolist(), uses)

    def _cached(self, chunk: int, plane: int, next_use: float | None) -> np.ndarray:
        """A decoded chunk `(chunk_items, *plane_item_shape)`, from the cache or into it."""
        layout = self.layout
        key = (layout.path, chunk, plane)
        items = self.cache.get(key, next_use)
        if items is None:
            shape = (layout.chunk_items, *layout.plane_item_shape)
            items = self._pool.empty(shape, layout.dtype)
            self._decode(chunk, plane, items)
            self.cache.put(key, items, next_use)
        return items

    def _decode(self, chunk: int, plane: int, out: np.ndarray) -> None:
        number, inside = divmod(chunk, self.layout.shard_chunks)
        shard = self.shard(number)
        if self.sums is not None:
            for fault in self._faults(chunk, chunk + 1, [plane]):
                raise fault
        try:
            shard.read_chunk(inside, plane, out.reshape(-1).view(np.uint8))
        except CorruptError as error:
            raise DamagedItemsError(str(error), self.array.items_of_chunk(chunk)) from error
