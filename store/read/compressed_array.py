"""A compressed array, read through decoded chunks."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.read.buffers import BufferPool
from store.read.chunk_cache import ChunkCache
from store.read.chunk_sums import ChunkSums
from store.read.directory import StoreDirectory
from store.read.file_array import FileArray
from store.read.location import Located, NextUse, next_use_of_places
from store.read.read_options import DEFAULT, ChunkSource, ReadOptions, Select
from store.read.shard import CompressedShard
from store.read.threads import SHARED_BYTES

__all__ = ["CompressedArray"]

IDLE_CHUNK_BYTES = 8 * 1024 * 1024

Decode = Callable[[int, np.ndarray], None]
"""(chunk, out): fills `out` with the items of a chunk in one plane."""

Part = tuple[int, int, int, int]
"""(i, start, stop, at): of the i-th range, items `start:stop` of a chunk, which go to the items
`at:` of the packed batch."""


class Whole(NamedTuple):
    """A chunk that one range holds whole, and where it goes in the packed batch."""

    chunk: int
    at: int


class Shared(NamedTuple):
    """A chunk, and the parts of it that a read needs, in the order of the ranges.

    `next_use` is when the chunk is needed after this read; None: not known.
    """

    chunk: int
    parts: list[Part]
    next_use: float | None


class CompressedArray(FileArray[CompressedShard]):
    """A compressed array: only the chunks that a read needs are decoded.

    A chunk that lies wholly inside a range goes into its place and is not kept, because no other
    range needs it. A chunk that ranges share is decoded once for a read, and goes through the
    cache.

    Parameters
    ----------
    directory, array, max_maps, sums
        See `FileArray`.
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

    def read_located(
        self, located: Located, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`."""
        starts, stops, _ = located
        layout = self.layout
        first_items, end_items = starts.tolist(), stops.tolist()
        wholes, parts = plan_visits(first_items, end_items, layout.chunk_items, bool(select))
        chunks = [*parts, *(whole.chunk for whole in wholes)]
        self.open_shards(chunk // layout.shard_chunks for chunk in chunks)
        n_items = sum(end_items) - sum(first_items)
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        next_use = next_use_of_places(self.segments, starts, options.next_use)
        shared = self._shared(parts, next_use)
        unsplit = self.unsplit(select)
        for number, plane in self.views_of_planes(out, select):
            n_bytes = self._bytes_to_decode(shared, number) + len(wholes) * layout.chunk_bytes
            decode = partial(self._decode, number, options.source)
            read = partial(self._read_visits, number, plane, unsplit, decode)
            options.threads.run(read, [*shared, *wholes], n_bytes)
        return out

    def _shared(self, parts: dict[int, list[Part]], next_use: NextUse | None) -> list[Shared]:
        """Each chunk with its parts, and when it is needed again."""
        uses: list[float | None] = [None] * len(parts)
        if next_use is not None:
            last_ranges = np.array([of_chunk[-1][0] for of_chunk in parts.values()], np.int64)
            first_items = np.array([*parts], np.int64) * self.layout.chunk_items
            ends = np.minimum(self.array.n_places, first_items + self.layout.chunk_items)
            uses = next_use(last_ranges, first_items, ends - 1).tolist()
        return list(map(Shared, parts, parts.values(), uses))

    def _bytes_to_decode(self, shared: list[Shared], plane: int) -> int:
        """Bytes of the chunks that are not in the cache; if they are few, of all."""
        n_chunks = len(shared)
        if n_chunks * self.layout.chunk_bytes >= SHARED_BYTES:
            n_chunks = self.cache.n_missing([self._key(visit.chunk, plane) for visit in shared])
        return n_chunks * self.layout.chunk_bytes

    def _read_visits(
        self,
        plane: int,
        out: np.ndarray,
        select: Select,
        decode: Decode,
        visits: list[Shared | Whole],
    ) -> None:
        """Fill the parts of `out` `(n_items, *selected plane item)` that chunks belong to."""
        shared = [visit for visit in visits if isinstance(visit, Shared)]
        wholes = [visit for visit in visits if isinstance(visit, Whole)]
        if shared:
            self._read_shared(plane, out, select, decode, shared)
        if wholes:
            self._read_wholes(out, decode, wholes)

    def _read_wholes(self, out: np.ndarray, decode: Decode, wholes: list[Whole]) -> None:
        """Fill the parts of `out` `(n_items, *plane item)` that whole chunks belong to."""
        layout = self.layout
        chunk_items = layout.chunk_items
        apart = None if out[:chunk_items].flags.c_contiguous else self._empty_chunk()
        for chunk, at in wholes:
            target = out[at : at + chunk_items]
            if apart is None:
                decode(chunk, target)
            else:
                decode(chunk, apart)
                target[...] = apart

    def _read_shared(
        self,
        plane: int,
        out: np.ndarray,
        select: Select,
        decode: Decode,
        shared: list[Shared],
    ) -> None:
        """Fill the parts of `out` `(n_items, *selected plane item)` that share chunks."""
        selected = (slice(None), *select)
        spare = None
        for visit in shared:
            key = self._key(visit.chunk, plane)
            items = self.cache.get(key, visit.next_use, len(visit.parts))
            if items is None:
                items = self._empty_chunk() if spare is None else spare
                decode(visit.chunk, items)
                # memory that the cache does not take holds the next chunk
                spare = None if self.cache.put(key, items, visit.next_use) else items
            if select:
                items = items[selected]
            for _, start, stop, at in visit.parts:
                out[at : at + stop - start] = items[start:stop]

    def _key(self, chunk: int, plane: int) -> tuple[str, int, int]:
        """What the cache of the whole store calls a chunk."""
        return self.layout.path, chunk, plane

    def _empty_chunk(self) -> np.ndarray:
        """Memory for a decoded chunk `(chunk_items, *plane_item_shape)`."""
        layout = self.layout
        return self._pool.empty((layout.chunk_items, *layout.plane_item_shape), layout.dtype)

    def _decode(self, plane: int, source: ChunkSource | None, chunk: int, out: np.ndarray) -> None:
        """Fill `out`, contiguous, with the chunk's items in one plane."""
        number, inside = divmod(chunk, self.layout.shard_chunks)
        shard = self.shard(number)
        if not self._checked.has_all:
            self._check_chunks(np.array([chunk]), np.array([plane]))
        try:
            if source is None:
                shard.read_chunk(inside, plane, out, once=True)
            else:
                data = source.copy(chunk, plane, shard.chunk_bytes(inside, plane))
                shard.read_copy(inside, plane, out, data)
        except CorruptError as error:
            raise DamagedItemsError(str(error), self.array.items_of_chunk(chunk)) from error


def plan_visits(
    starts: list[int], stops: list[int], chunk_items: int, is_selected: bool
) -> tuple[list[Whole], dict[int, list[Part]]]:
    """What ranges of items need of chunks.

    It is a plain loop: for one row, which a page or a script waits for, NumPy's calls cost five
    times as much, and for many the decoding costs more.

    Parameters
    ----------
    starts, stops
        The ranges, which follow each other in the packed batch.
    chunk_items
        Items a chunk.
    is_selected
        Whether less than whole items are read: no chunk goes into its place then.

    Returns
    -------
    wholes
        Chunks that one range holds whole.
    parts
        Chunk -> what is needed of it, for every other chunk.
    """
    wholes: list[Whole] = []
    parts: dict[int, list[Part]] = {}
    at = 0
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        while start < stop:
            chunk, inside = divmod(start, chunk_items)
            n_items = min(stop - start, chunk_items - inside)
            if n_items == chunk_items and not is_selected:
                wholes.append(Whole(chunk, at))
            else:
                parts.setdefault(chunk, []).append((i, inside, inside + n_items, at))
            start += n_items
            at += n_items
    return wholes, parts
