"""A column of a store at an address: its chunks are brought into the cache, and copied from there.

Chunks that are not here are asked for, by halves where they are too many at a time.
"""

import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np

from store.errors import CorruptError, DamagedItemsError, UnreachableError
from store.format.contents import StoredArray
from store.format.ranges import chunks_touched, cut_ranges, join_ranges
from store.read.arrays.array import Array
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.item_location import Located
from store.read.arrays.raw_array import RawArray
from store.read.arrays.read_options import DEFAULT, ItemSlices, ReadOptions, Schedule
from store.read.directory import StoreDirectory
from store.remote.cache.chunk_index import (
    are_here,
    cells_of_chunks,
    n_cells,
    positions_of,
)
from store.remote.cache.messages import UNKNOWN
from store.remote.cache.reader.chunks import ATTEMPTS, Chunks, CompressedChunks, Evicted, Seen
from store.remote.cache.reader.mirror import Mirror

__all__ = ["MirroredArray"]

ONE_PLANE = np.zeros(1, np.int64)  # the number of the only one, or of the first
Read = Callable[[Seen], np.ndarray]
"""Makes an array of chunks that are here."""


class TooMany(Exception):
    """More chunks were asked for at a time than the cache has room for now."""


class MirroredArray(Array):
    """One column's array of a store at an address, in one process.

    `cache` is for decoded chunks. If it `is_checked`, chunks are compared with their checksums
    before their first use here, by the fetching process.
    """

    def __init__(
        self,
        mirror: Mirror,
        directory: StoreDirectory,
        array: StoredArray,
        cache: ChunkCache,
        *,
        is_checked: bool,
    ) -> None:
        super().__init__(array, None)
        self.mirror = mirror
        self.path = self.layout.path
        self._raw = RawArray(directory, array, 0, None)
        self._chunks = Chunks(mirror, array)
        self._compressed = CompressedChunks(directory, array, cache, self._chunks)
        self._is_doubted = np.ones(n_cells(array), bool) if is_checked else None
        self._is_announced = False

    @property
    def n_together(self) -> int | None:
        """See `Array`: those of a chunk; chunks of a compressed array are looked up one by one."""
        return self.layout.chunk_items if self.layout.codec is None else None

    def read_located(
        self, located: Located, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`: always a copy, as what is in a slot changes."""
        cells, read = self._reading(located, select, options)
        with suppress(CorruptError):  # what lies in the cache may have rotted
            found = None if self._doubts(cells) else self._attempt(cells, read)
            if found is not None:
                self.mirror.hits += 1
                return found
        with suppress(TooMany):
            return self._fetch_cells(cells, read)
        return self._read_halves(located, select, options)

    def _read_halves(
        self, located: Located, select: ItemSlices, options: ReadOptions
    ) -> np.ndarray:
        """Read one half of the chunks after the other, into one array."""
        _, starts, stops, chunks = cut_ranges(*located[:2], self.layout.chunk_items)
        ends = np.cumsum(stops - starts)
        out = options.empty((int(ends[-1]), *self.selected_shape(select)), self.layout.dtype)
        half = len(starts) // 2
        n_first = int(ends[half - 1])
        for part, place in ((slice(half), out[:n_first]), (slice(half, None), out[n_first:])):
            numbers = None if self.n_together is None else chunks[part]
            into = options._replace(empty=_only(place), required=True, next_use=None)
            self.read_located(Located(starts[part], stops[part], numbers), select, into)
        return out

    def _reading(
        self, located: Located, select: ItemSlices, options: ReadOptions
    ) -> tuple[np.ndarray, Read]:
        """The cells that a read needs, and how they are read."""
        planes = self.planes(select).ravel()
        starts, stops, chunks = located
        if chunks is None:
            _, chunks = chunks_touched(starts, stops, self.layout.chunk_items)
            cells = cells_of_chunks(self.array, chunks, planes)
            return cells, lambda _: self._compressed.read_located(located, select, options)
        is_filled = stops > starts
        if not is_filled.all():
            starts, stops, chunks = starts[is_filled], stops[is_filled], chunks[is_filled]
        insides = (starts - chunks * self.layout.chunk_items) * self.layout.plane_item_bytes

        def read(seen: Seen) -> np.ndarray:
            positions = seen.positions.reshape(len(planes), len(chunks)) + insides
            memory = seen.state.memory
            return self._raw.read_at(stops - starts, positions, memory, select, options)

        return cells_of_chunks(self.array, chunks, planes), read

    def _fetch_cells(self, cells: np.ndarray, read: Read) -> np.ndarray:
        """What `read` makes of cells that are asked for; raises TooMany.

        What is damaged may have rotted in the cache: all is compared with its checksums once more.
        """
        needed = np.unique(cells)
        if self._doubts(needed):
            self.mirror.doubt(self.path, needed)
        is_compared = False
        for _ in range(ATTEMPTS):
            if not self.mirror.need(self.path, needed, is_announced=self._is_announced):
                raise TooMany
            if self._is_doubted is not None:
                self._is_doubted[needed] = False
            self._chunks.current()
            try:
                found = self._attempt(cells, read)
            except CorruptError:
                if is_compared:
                    raise
                self.mirror.doubt(self.path, needed)
                is_compared = True
                continue
            self.mirror.done()
            if found is not None:
                return found
        raise UnreachableError(
            f"array {self.path!r}: expected its chunks to stay in the cache while they are "
            f"copied, found them evicted {ATTEMPTS} times; give it more bytes"
        )

    def _attempt(self, cells: np.ndarray, read: Read) -> np.ndarray | None:
        """What was read, if the chunks were here all the time; else None."""
        seen = self._chunks.look(cells)
        if seen is None:
            return None
        try:
            found = read(seen)
        except Evicted:
            return None
        except CorruptError:
            if seen.is_unchanged():
                raise
            return None
        return found if seen.is_unchanged() else None

    def _doubts(self, cells: np.ndarray) -> bool:
        """Whether one of some cells was not compared with its checksum since it was opened."""
        return self._is_doubted is not None and bool(self._is_doubted[cells].any())

    def planes(self, select: ItemSlices) -> np.ndarray:
        return super().planes(select) if self.layout.split_axes else ONE_PLANE

    def faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        wanted = np.arange(self.layout.n_planes) if planes is None else np.array(planes)
        cells = cells_of_chunks(self.array, np.arange(start, stop), wanted)
        fetch = partial(self._fetch_cells, np.sort(cells), lambda seen: seen.positions)
        try:
            self._of_chunks(start, stop, fetch)
            return
        except TooMany:
            pass
        except DamagedItemsError as fault:
            if stop - start == 1:
                yield fault
                return
        middle = (start + stop) // 2
        yield from self.faults(start, middle, planes)
        yield from self.faults(middle, stop, planes)

    def check_shard(self, number: int) -> None:
        """See `Array`: its table comes with its first chunk, or its last, if that is damaged."""
        first = number * self.layout.shard_chunks
        last = min(first + self.layout.shard_chunks, self.layout.n_chunks(self.array.n_places)) - 1
        try:
            self._need_chunk(first)
        except DamagedItemsError:
            self._need_chunk(last)

    def _need_chunk(self, chunk: int) -> None:
        """Have the first plane of a chunk be here."""
        cells = cells_of_chunks(self.array, np.array([chunk]), ONE_PLANE)
        self._of_chunks(chunk, chunk + 1, partial(self.mirror.need, self.path, cells))

    def _of_chunks(self, start: int, stop: int, work: Callable[[], object]) -> None:
        """Do what needs the chunks `start:stop`; an error of them names their items."""
        try:
            work()
        except DamagedItemsError:
            raise
        except CorruptError as error:
            n = self.layout.chunk_items
            items = self.array.items_of_places(start * n, min(stop * n, self.array.n_places))
            raise DamagedItemsError(str(error), items) from error

    def advise_places(
        self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices, schedule: Schedule
    ) -> None:
        """See `Array`: the kernel is told of chunks that are here, the cache of the others."""
        planes = self.planes(select).ravel()
        array = self.array
        state = self._chunks.current()
        i, all_chunks = chunks_touched(starts, stops, array.layout.chunk_items)
        # a chunk that many rows share is one announcement: its first use, and that after its last
        chunks, firsts = np.unique(all_chunks, return_index=True)
        lasts = len(i) - 1 - np.unique(all_chunks[::-1], return_index=True)[1]
        cells = cells_of_chunks(array, chunks, planes)
        words = state.words[cells]
        is_there = bool(are_here(words).all())
        if is_there:
            ends = positions_of(words) + state.sizes[cells]
            spans = join_ranges(*np.sort([positions_of(words), ends]))
            for first, last in zip(*map(np.ndarray.tolist, spans), strict=True):
                state.slab.advise(first, last, mmap.MADV_WILLNEED)
        if self._chunks.are_all_here() or (is_there and schedule.next_use is None):
            return
        uses = np.full((len(chunks), 2), UNKNOWN)
        uses[:, 0] = (schedule.first + schedule.step * i[firsts]) * schedule.row_bytes
        if schedule.next_use is not None:
            base = chunks * array.layout.chunk_items
            last = np.minimum(array.n_places, base + array.layout.chunk_items) - 1
            uses[:, 1] = schedule.next_use(i[lasts], base, last) * schedule.row_bytes
        times = np.tile(np.minimum(uses, UNKNOWN).astype(np.int64), (len(planes), 1))
        now = schedule.now * schedule.row_bytes
        self.mirror.want(self.path, np.column_stack([cells, times]), now)
        self._is_announced = True

    def is_place_cached(self, place: int) -> bool:
        """See `Array`; no if the first plane of its chunk is not here."""
        state = self._chunks.state
        if state is None:
            return False
        chunk = np.array([place // self.layout.chunk_items])
        words = state.words[cells_of_chunks(self.array, chunk, ONE_PLANE)]
        position = int(positions_of(words)[0])
        is_mapped = position < len(state.memory)
        return bool(are_here(words)[0]) and is_mapped and state.slab.is_cached(position)

    def is_here(self) -> bool:
        return self._chunks.are_all_here()


def _only(place: np.ndarray) -> Callable[[tuple[int, ...], np.dtype], np.ndarray]:
    """Memory for one array: this one."""
    return lambda shape, dtype: place.reshape(shape)
