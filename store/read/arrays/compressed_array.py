"""A compressed array, read through decoded chunks."""

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.read.arrays.buffers import BufferPool
from store.read.arrays.file_array import FileArray
from store.read.arrays.item_location import Located, NextUse, Part, next_use_of_places, plan_parts
from store.read.arrays.read_options import DEFAULT, ItemSlices, ReadOptions
from store.read.arrays.shard import CompressedShard

__all__ = ["CompressedArray"]

IDLE_CHUNK_BYTES = 8 * 1024 * 1024


class Visit(NamedTuple):
    """A chunk, and the parts of it that a read needs, in the order of the ranges.

    It is whole if one range holds it whole, and no other range needs it. `next_use` is when it is
    needed after this read; None: not known.
    """

    chunk: int
    parts: list[Part]
    is_whole: bool
    next_use: float | None


class CompressedArray(FileArray[CompressedShard]):
    """A compressed array: only the chunks that a read needs are decoded.

    A chunk that one range holds whole is decoded into its place and not kept. A chunk that ranges
    share is decoded once for a read, and goes through the cache, which the arrays of a store share.
    """

    shard_type = CompressedShard

    @cached_property
    def _pool(self) -> BufferPool:
        """The memory of decoded chunks."""
        return BufferPool(IDLE_CHUNK_BYTES)

    def read_located(
        self, located: Located, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`."""
        layout = self.layout
        starts, stops = located.starts.tolist(), located.stops.tolist()
        parts = plan_parts(starts, stops, layout.chunk_items)
        self.open_shards(chunk // layout.shard_chunks for chunk in parts)
        n_items = sum(stops) - sum(starts)
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        next_use = next_use_of_places(self.segments, located.starts, options.next_use)
        visits = self._visits(parts, next_use, is_selected=bool(select))
        unsplit = self.unsplit(select)
        for number, plane in self.views_of_planes(out, select):
            read = partial(self._read_visits, number, plane, unsplit)
            options.threads.run(read, visits, len(visits) * layout.chunk_bytes)
        return out

    def _visits(
        self, parts: dict[int, list[Part]], next_use: NextUse | None, *, is_selected: bool
    ) -> list[Visit]:
        """Each chunk with its parts, and when it is needed again."""
        n = self.layout.chunk_items
        is_whole = {
            chunk: len(of_chunk) == 1 and of_chunk[0][2] - of_chunk[0][1] == n and not is_selected
            for chunk, of_chunk in parts.items()
        }
        uses: dict[int, float] = {}
        if next_use is not None:
            shared = [chunk for chunk in parts if not is_whole[chunk]]
            last_ranges = np.array([parts[chunk][-1][0] for chunk in shared], np.int64)
            firsts = np.array(shared, np.int64) * n
            lasts = np.minimum(self.array.n_places, firsts + n) - 1
            uses = dict(zip(shared, next_use(last_ranges, firsts, lasts).tolist(), strict=True))
        return [
            Visit(chunk, of_chunk, is_whole[chunk], uses.get(chunk))
            for chunk, of_chunk in parts.items()
        ]

    def _read_visits(
        self,
        plane: int,
        out: np.ndarray,
        select: ItemSlices,
        visits: list[Visit],
    ) -> None:
        """Fill the parts of `out` `(n_items, *selected plane item)` that chunks belong to."""
        selected = (slice(None), *select)
        chunk_items = self.layout.chunk_items
        is_contiguous = out[:chunk_items].flags.c_contiguous
        for chunk, parts, is_whole, next_use in visits:
            if is_whole and is_contiguous:
                at = parts[0][-1]
                self.fill_chunk(plane, chunk, out[at : at + chunk_items])
                continue
            key = (self.layout.path, chunk, plane)  # in the cache of the whole store
            items = None if is_whole else self.cache.get(key, next_use, len(parts))
            if items is None:
                items = self._empty_chunk()
                self.fill_chunk(plane, chunk, items)
                if not is_whole:
                    self.cache.put(key, items, next_use)
            if select:
                items = items[selected]
            for _, start, stop, at in parts:
                out[at : at + stop - start] = items[start:stop]

    def _empty_chunk(self) -> np.ndarray:
        """Memory for a decoded chunk `(chunk_items, *plane_item_shape)`."""
        layout = self.layout
        return self._pool.empty((layout.chunk_items, *layout.plane_item_shape), layout.dtype)

    def fill_chunk(self, plane: int, chunk: int, out: np.ndarray) -> None:
        """Fill `out`, contiguous, with the chunk's items in one plane."""
        number, inside = divmod(chunk, self.layout.shard_chunks)
        shard = self.shard(number)
        if not self._checked.has_all:
            self._check_chunks(np.array([chunk]), np.array([plane]))
        try:
            shard.read_chunk(inside, plane, out)
        except CorruptError as error:
            raise DamagedItemsError(str(error), self.array.items_of_chunk(chunk)) from error
