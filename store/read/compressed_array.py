"""A compressed array, read through decoded chunks."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.layout import ArrayLayout
from store.format.ranges import packed_offsets
from store.read.array import PLAIN, Array, ChunkSums, Destination, NextUse, Select, cells, read_only
from store.read.buffers import BufferPool
from store.read.chunk_cache import ChunkCache
from store.read.shard import CompressedShard

__all__ = ["CompressedArray"]


IDLE_CHUNK_BYTES = 8 * 1024 * 1024


class Visit(NamedTuple):
    """Items `start:stop` of a chunk go to items `at:` of the packed batch; the chunk is needed
    again at `next_use`."""

    chunk: int
    start: int
    stop: int
    at: int
    next_use: float | None


class CompressedArray(Array):
    """A compressed array: only the chunks that a read needs are decoded.

    A chunk that lies wholly inside a range goes straight into its place where that is contiguous; a
    chunk that other ranges need too goes through the cache.

    Parameters
    ----------
    cache
        Shared by the arrays of a store.
    """

    shard_type = CompressedShard

    def __init__(
        self,
        root: Path,
        layout: ArrayLayout,
        n_items: int,
        max_maps: int,
        sums: ChunkSums | None,
        inode: int | None,
        cache: ChunkCache,
    ) -> None:
        super().__init__(root, layout, n_items, max_maps, sums, inode)
        self.cache, self._pool = cache, BufferPool(IDLE_CHUNK_BYTES)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`, a copy."""
        return read_only(self.read_ranges(np.array([start]), np.array([stop])))

    def take(
        self,
        positions: np.ndarray,
        select: Select = (),
        into: Destination = PLAIN,
        next_use: NextUse | None = None,
    ) -> np.ndarray:
        """The items at `positions`, int64 `(n,)`; see `read_ranges`."""
        return self.read_ranges(positions, positions + 1, select, into, next_use)

    def read_ranges(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: Select = (),
        into: Destination = PLAIN,
        next_use: NextUse | None = None,
    ) -> np.ndarray:
        """The items of the ranges `starts:stops`, int64 `(n,)`, one behind the other.

        Parameters
        ----------
        select
            A slice an item axis, or nothing for whole items.
        into
            Where to.
        next_use
            When items are needed after a range was read; None: not known.
        """
        layout, offsets = self.layout, packed_offsets(starts, stops)
        visits = list(self._visits(starts, stops, offsets, next_use))
        self.open_shards(visit.chunk // layout.shard_chunks for visit in visits)
        out = into.empty((int(offsets[-1]), *self.selected_shape(select)), layout.dtype)
        planes = np.moveaxis(
            out, [axis + 1 for axis in layout.split_axes], range(len(layout.split_axes))
        )
        inner = tuple(select[i] for i in range(len(select)) if i not in layout.split_axes)
        grid = [
            range(n)[part]
            for part, n in zip(self._plane_parts(select), layout.plane_grid, strict=True)
        ]
        for place, plane in zip(
            product(*(range(len(axis)) for axis in grid)), product(*grid), strict=True
        ):
            number = int(np.ravel_multi_index(plane, layout.plane_grid)) if plane else 0
            read = partial(self._read_plane, number, planes[place], inner)
            into.run(read, visits, planes[place].nbytes)
        return out

    def _read_plane(self, plane: int, out: np.ndarray, inner: Select, visits: list[Visit]) -> None:
        """Fill `out` `(n_items, *selected plane item)` with one plane of the ranges."""
        k = self.layout.chunk_items
        for chunk, start, stop, at, use in visits:
            target = out[at : at + stop - start]
            if stop - start == k and not inner and target.flags.c_contiguous:
                self._decode(chunk, plane, target)
            else:
                items = self._cached(chunk, plane, use)[start:stop]
                np.copyto(target, items[(slice(None), *inner)] if inner else items)

    def _visits(
        self, starts: np.ndarray, stops: np.ndarray, offsets: np.ndarray, next_use: NextUse | None
    ) -> Iterator[Visit]:
        """The chunks to read, in turn."""
        k = self.layout.chunk_items
        i, chunk = cells(starts, stops, k)
        start, stop = np.maximum(starts[i] - chunk * k, 0), np.minimum(stops[i] - chunk * k, k)
        at = offsets[i] + chunk * k + start - starts[i]
        if next_use is None:
            uses = [None] * len(i)
        else:
            uses = next_use(i, chunk * k, np.minimum(self.n_items, (chunk + 1) * k) - 1).tolist()
        return map(Visit, chunk.tolist(), start.tolist(), stop.tolist(), at.tolist(), uses)

    def _cached(self, chunk: int, plane: int, next_use: float | None) -> np.ndarray:
        """A decoded chunk `(chunk_items, *plane_item_shape)`, from the cache or into it."""
        key = (self.layout.path, chunk, plane)
        found = self.cache.get(key, next_use)
        if found is None:
            found = self._pool.empty(
                (self.layout.chunk_items, *self.layout.plane_item_shape), self.layout.dtype
            )
            self._decode(chunk, plane, found)
            self.cache.put(key, found, next_use)
        return found

    def _decode(self, chunk: int, plane: int, out: np.ndarray) -> None:
        number, inside = divmod(chunk, self.layout.shard_chunks)
        shard = self.shard(number)
        if self.sums:
            for fault in self.faults(chunk, chunk + 1, [plane]):
                raise fault
        try:
            shard.read_chunk(inside, plane, out.reshape(-1).view(np.uint8))
        except CorruptError as error:
            raise DamagedItemsError(str(error), self._items_of(chunk)) from error
