"""What arrays have in common whose shards are files here: maps, checksums, advice to the kernel."""

import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar, cast

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.ranges import chunks_touched, join_ranges
from store.read.arrays.array import Array
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.chunk_sums import CheckedChunks, ChunkSums
from store.read.arrays.copies import selected_runs
from store.read.arrays.item_location import plan_pieces
from store.read.arrays.read_options import DEFAULT, ItemSlices, ReadOptions, Schedule
from store.read.arrays.shard import RESTORE, CompressedShard, RawShard
from store.read.directory import StoreDirectory

__all__ = ["FileArray", "OpenShard"]

# of each item, not to be read: less is not worth a call of the kernel for each
APART_BYTES = 16 * 1024
FIRST_PLANE = np.zeros(1, np.int64)

ShardType = TypeVar("ShardType", RawShard, CompressedShard)
OpenShard: TypeAlias = Callable[[int], RawShard | CompressedShard]
"""Opens a shard by number, of the kind that an array has."""


class FileArray(Array, Generic[ShardType]):
    """The shards of one array, opened when first needed, the oldest closed beyond a number.

    They are opened by `open_shard`, by number; None: they are files of `directory`, and a shard of
    another store, that has taken its place, is refused. `cache` is for decoded chunks.
    """

    shard_type: type[ShardType]

    def __init__(
        self,
        directory: StoreDirectory,
        array: StoredArray,
        max_maps: int,
        sums: ChunkSums | None,
        cache: ChunkCache | None = None,
        open_shard: OpenShard | None = None,
    ) -> None:
        super().__init__(array, sums)
        self.directory = directory
        self.max_maps = max_maps
        self.cache = cache or ChunkCache(0)
        self._opener: Callable[[int], ShardType] | None = cast("Any", open_shard)
        n_chunks = 0 if sums is None else self.layout.n_chunks(array.n_places)
        self._checked = CheckedChunks(n_chunks, self.layout.n_planes)
        self.close_shards()

    def shard(self, number: int) -> ShardType:
        """A shard, mapped; views of it outlive its being closed here."""
        shard = self._shards.get(number)
        if shard is None:
            shard = (self._opener or self._open_file)(number)
            self._shards[number] = shard
            for oldest in list(self._shards)[: -self.max_maps]:  # a copy: other threads open shards
                self._shards.pop(oldest, None)
        return shard

    def open_shards(self, numbers: Iterable[int]) -> None:
        """Open shards before memory is taken for items: there must be files that hold them."""
        for number in dict.fromkeys(numbers):
            self.shard(number)

    def _open_file(self, number: int) -> ShardType:
        items = self.array.items_of_shard(number)
        first, stop = items
        place = self.directory.now()
        try:
            shard = self.shard_type(place, self.layout, number, stop - first)
        except (CorruptError, FileNotFoundError) as error:
            if self.directory.now() != place:
                return self._open_file(number)
            self.directory.check()  # first: what is missing may be of another store
            raise DamagedItemsError(str(error), items) from error
        self.directory.check()
        return shard

    def close_shards(self) -> None:
        """Forget the shards that are mapped; views of them stay good."""
        self._shards: dict[int, ShardType] = {}

    def check_shard(self, number: int) -> None:
        """See `Array`."""
        shard = self.shard(number)
        if shard.end != shard.n_data:
            message = (
                f"{shard.where}: expected its table after byte {shard.end}, "
                f"found {shard.n_data} bytes before it"
            )
            raise DamagedItemsError(message, self.array.items_of_shard(number))

    def faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        """See `Array`."""
        if self.sums is None:
            return
        shard_chunks = self.layout.shard_chunks
        for number in range(start // shard_chunks, -(-stop // shard_chunks)):
            base = number * shard_chunks
            first = max(start, base)
            last = min(stop, base + shard_chunks)
            shard = self.shard(number)
            expected = self.sums.read_chunks(first, last)
            for plane in range(self.layout.n_planes) if planes is None else planes:
                sums = expected[:, plane].tolist()
                found = shard.checksums(first - base, last - base, plane)
                if found == sums:  # of all chunks at once: a step for each would cost more
                    continue
                for chunk, right, wrong in zip(range(first, last), sums, found, strict=True):
                    if right != wrong:
                        where = shard.where_of(chunk - base, plane)
                        message = f"expected checksum {right:08x}, found {wrong:08x}; {RESTORE}"
                        items = self.array.items_of_chunk(chunk)
                        n_bits = (right ^ wrong).bit_count()
                        yield DamagedItemsError(f"{where}: {message}", items, n_bits)

    def _check(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: ItemSlices = (),
        options: ReadOptions = DEFAULT,
    ) -> None:
        """Check the chunks that hold the ranges of places `starts:stops`, int64 `(n,)`.

        Each is checked once, by whichever read comes first, which raises DamagedItemsError. Nothing
        is checked without `sums`.
        """
        if self._checked.has_all:
            return
        chunks = np.unique(chunks_touched(starts, stops, self.layout.chunk_items)[1])
        self.open_shards((chunks // self.layout.shard_chunks).tolist())
        self._check_chunks(chunks, self.planes(select).ravel(), options)

    def _check_chunks(
        self, chunks: np.ndarray, planes: np.ndarray, options: ReadOptions = DEFAULT
    ) -> None:
        """Check chunks, int64 `(n,)` and rising, in some planes; see `_check`."""
        chunks = self._checked.missing(chunks, planes)

        def check(runs: list[tuple[int, int]]) -> None:
            for start, stop in runs:
                for fault in self.faults(start, stop, planes.tolist()):
                    raise fault

        n_bytes = len(chunks) * len(planes) * self.layout.chunk_bytes
        firsts, stops = join_ranges(chunks, chunks + 1)
        runs = list(zip(firsts.tolist(), stops.tolist(), strict=True))
        options.threads.run(check, runs, n_bytes)
        self._checked.add(chunks, planes)

    def unsplit(self, select: ItemSlices) -> ItemSlices:
        """What is selected of the axes that a plane has."""
        split_axes = self.layout.split_axes
        return tuple(part for axis, part in enumerate(select) if axis not in split_axes)

    def views_of_planes(self, out: np.ndarray, select: ItemSlices) -> list[tuple[int, np.ndarray]]:
        """The selected planes: number, and view `(n_items, *selected plane item)` of `out`."""
        if not self.layout.split_axes:
            return [(0, out)]
        numbers = self.planes(select)
        planes = self.layout.items_as_planes(out)
        return [(int(numbers[place]), planes[place]) for place in np.ndindex(numbers.shape)]

    def advise_places(
        self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices, schedule: Schedule
    ) -> None:
        """See `Array`: the kernel is told, which takes no times."""
        if not self.reads_files(starts, stops, select):
            self.advise_kernel(starts, stops, select)

    def advise_chunks(self, start: int, stop: int) -> None:
        """See `Array`."""
        chunk_items = self.layout.chunk_items
        first = np.array([start * chunk_items])
        last = np.array([min(stop * chunk_items, self.array.n_places)])
        self.advise_kernel(first, last, ())

    def advise_kernel(self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices) -> None:
        """Have the kernel fetch what it lacks of ranges of places."""
        planes = self.planes(select).ravel()
        wanted = self._parts_of_item(select)
        item_bytes = self.layout.plane_item_bytes
        for number, start, stop, _ in plan_pieces(starts, stops, self.layout.shard_items):
            shard = self.shard(number)
            for first, last in shard.byte_ranges(start, stop, planes):
                parts = [(first, last)]
                if wanted:
                    items = range(first, last, item_bytes)
                    parts = [(at + low, at + high) for at in items for low, high in wanted]
                for begin, end in parts:
                    shard.file.advise(begin, end, mmap.MADV_WILLNEED)

    def _parts_of_item(self, select: ItemSlices) -> list[tuple[int, int]]:
        """Where in a raw item the selected parts lie; empty for all of it, or where so little lies
        between them that they are best read together."""
        layout = self.layout
        if layout.codec is not None or layout.n_planes > 1 or not select:
            return []
        runs, width = selected_runs(layout.item_shape, select, layout.dtype.itemsize)
        firsts, stops = join_ranges(runs, runs + width)
        gaps = np.append(firsts[1:], firsts[0] + layout.plane_item_bytes) - stops
        if gaps.min() < APART_BYTES:
            return []
        return list(zip(firsts.tolist(), stops.tolist(), strict=True))

    def is_place_cached(self, place: int) -> bool:
        """See `Array`."""
        number, inside = divmod(place, self.layout.shard_items)
        shard = self.shard(number)
        ((first, _),) = shard.byte_ranges(inside, inside + 1, FIRST_PLANE)
        return shard.file.is_cached(first)
