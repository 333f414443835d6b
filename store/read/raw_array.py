"""An uncompressed array, read through the maps of its shards."""

from typing import Any

import numpy as np

from store.format.contents import StoredArray
from store.format.ranges import Piece, cut_ranges, join_ranges, plan_pieces
from store.read.array import Array, pairs
from store.read.chunk_sums import ChunkSums
from store.read.directory import StoreDirectory
from store.read.file_reads import FileRange, FileReads
from store.read.landed_chunks import LandedChunks
from store.read.maps import Maps
from store.read.pack import gather, scatter, window_width
from store.read.read_options import DEFAULT, Located, ReadOptions, Select
from store.read.shard import RawShard

__all__ = ["RawArray"]

# Ranges shorter than this are copied by one call, without a Python step each: at 4 KB it takes 514
# ns a range against 625, at 8 KB 931 against 918.
SHORT_BYTES = 6 * 1024
# Of longer ranges the interpreter's lock is released for each, which at 64 KB costs 3% of the copy.
UNLOCKED_BYTES = 128 * 1024
LONG_BYTES = 512 * 1024
# cold ranges of this mean length are worth a read of the file each
FILE_BYTES = 64 * 1024

Copy = tuple[int, int, int]
"""Bytes of the memory of maps, first and after the last, and where they go."""


class RawArray(Array[RawShard]):
    """An uncompressed array: its bytes are copied once, from the map into their place.

    One range in one shard is a view. Long ranges are copied one by one, short ones by one call.
    """

    shard_type = RawShard

    def __init__(
        self,
        directory: StoreDirectory,
        array: StoredArray,
        max_maps: int,
        sums: ChunkSums | None,
    ) -> None:
        super().__init__(directory, array, max_maps, sums)
        self._maps = Maps({}, self.layout)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`: a read-only view if one shard holds them all, else a copy.

        Of a mirror it is always a copy: under a view, a hole would be zeros.
        """
        place: int | None = start
        if self.segments is not None:
            place = self.segments.place_of_range(start, stop)
        if place is None or not start < stop or self.holder is not None:
            return super().read(start, stop)
        end = place + stop - start
        number, inside = divmod(place, self.layout.shard_items)
        if inside + stop - start > self.layout.shard_items:
            return super().read(start, stop)
        if not self._checked.has_all:
            self._check(np.array([place]), np.array([end]))
        return self.shard(number).items[inside : inside + stop - start]

    def take(
        self, positions: np.ndarray, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`; short items are gathered by NumPy."""
        layout = self.layout
        is_short = layout.item_bytes < SHORT_BYTES and layout.n_planes == 1
        if not is_short or not len(positions) or self.holder is not None:
            return super().take(positions, select, options)
        places = positions if self.segments is None else self.segments.places_of(positions)
        if not self._checked.has_all:
            self._check(places, places + 1, select, options)
        if self.array.n_shards == 1:
            index: tuple[np.ndarray | slice, ...] = (places, *select)
            return options.place(self.shard(0).items[index])
        shards = places // layout.shard_items
        maps, _ = self._maps_with(shards)
        firsts = maps.bases[shards] + places * layout.item_bytes
        items = self._as_items(gather(maps.memory, firsts, layout.item_bytes))
        if select:
            items = np.ascontiguousarray(items[(slice(None), *select)])
        return options.place(items)

    def _locate_places(
        self, starts: np.ndarray, stops: np.ndarray, cuts: np.ndarray
    ) -> list[Located]:
        """See `Array`; ranges are cut where a shard ends."""
        owners, starts, stops, shards = cut_ranges(starts, stops, self.layout.shard_items)
        if owners is not None:
            cuts = owners.searchsorted(cuts)
        return [Located(starts[a:b], stops[a:b], shards[a:b]) for a, b in pairs(cuts)]

    def read_here(self, located: Located, select: Select, options: ReadOptions) -> np.ndarray:
        """See `Array`."""
        starts, stops, shards = located
        if not self._checked.has_all:
            self._check(starts, stops, select, options)
        if options.landed is not None:
            return self._read_landed(starts, stops, select, options, options.landed)
        layout = self.layout
        if shards is None or layout.n_planes > 1 or select:
            return self._copy_selected(starts, stops, select, options)
        sizes = (stops - starts) * layout.item_bytes
        n_bytes = int(np.add.reduce(sizes))
        if not n_bytes:
            return self._empty(0, options)
        maps, ends = self._maps_with(shards)
        firsts = maps.bases[shards] + starts * layout.item_bytes
        if options.files is not None and self._reads_files(starts, stops, select):
            return self._read_files(maps, shards, firsts, sizes, options, options.files)
        return self._pack(maps.memory, firsts, sizes, ends, n_bytes, options)

    def _pack(
        self,
        memory: np.ndarray,
        firsts: np.ndarray,
        sizes: np.ndarray,
        ends: np.ndarray,
        n_bytes: int,
        options: ReadOptions,
    ) -> np.ndarray:
        """Copy ranges of bytes one after the other; see `scatter`. They have `n_bytes` in all."""
        if n_bytes >= len(sizes) * SHORT_BYTES:
            return self._copy(memory, firsts, sizes, options)
        width = window_width(sizes, n_bytes // len(sizes))
        if np.minimum.reduce(sizes) == width:
            return options.place(self._as_items(gather(memory, firsts, width)))
        out = self._empty(n_bytes, options)
        scatter(memory, firsts, sizes, ends, width, _bytes_of(out))
        return out

    def _read_landed(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: Select,
        options: ReadOptions,
        landed: LandedChunks,
    ) -> np.ndarray:
        """As `read_here`, of chunks some of which are not in their shards."""
        layout = self.layout
        n_items = int((stops - starts).sum())
        _, starts, stops, chunks = cut_ranges(starts, stops, layout.chunk_items)
        inside = starts - chunks * layout.chunk_items
        counts = stops - starts
        if layout.n_planes == 1 and not select and n_items:
            firsts = landed.positions(chunks, 0)
            if firsts.min() >= 0:
                firsts += inside * layout.item_bytes
                firsts, stops = join_ranges(firsts, firsts + counts * layout.item_bytes)
                ends = np.full(len(firsts), len(landed.memory))
                n_bytes = n_items * layout.item_bytes
                return self._pack(landed.memory, firsts, stops - firsts, ends, n_bytes, options)
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        selected = (slice(None), *self.unsplit(select))
        ats = np.cumsum(counts) - counts
        for plane, view in self.views_of_planes(out, select):
            positions = landed.positions(chunks, plane)
            fields = (chunks, positions, inside, inside + counts, ats, ats + counts)

            def copy(some: list, plane: int = plane, view: np.ndarray = view) -> None:
                for chunk, position, start, stop, at, end in some:
                    items = self._chunk_items(chunk, plane, position, landed.memory)
                    np.copyto(view[at:end], items[start:stop][selected])

            options.run(copy, list(zip(*map(np.ndarray.tolist, fields), strict=True)), view.nbytes)
        return out

    def _chunk_items(self, chunk: int, plane: int, position: int, memory: np.ndarray) -> np.ndarray:
        """A chunk in one plane, a view `(chunk_items, *plane_item_shape)`.

        It is at a position of the memory; at -1 it is in its shard.
        """
        layout = self.layout
        if position < 0:
            number, inside = divmod(chunk, layout.shard_chunks)
            shard = self.shard(number)
            position = int(shard.entries[inside, plane, 0])
            memory = shard.file.bytes
        data = memory[position : position + layout.chunk_bytes]
        return data.view(layout.dtype).reshape(layout.chunk_items, *layout.plane_item_shape)

    def _empty(self, n_bytes: int, options: ReadOptions) -> np.ndarray:
        """Memory for whole items of so many bytes: `(n_items, *item_shape)`."""
        n_items = n_bytes // self.layout.item_bytes
        return options.empty((n_items, *self.layout.item_shape), self.layout.dtype)

    def _as_items(self, data: np.ndarray) -> np.ndarray:
        """Bytes, uint8 `(n,)`, as `(n_items, *item_shape)`."""
        return data.view(self.layout.dtype).reshape(-1, *self.layout.item_shape)

    def close_shards(self) -> None:
        """See `Array`."""
        super().close_shards()
        self._maps = Maps({}, self.layout)

    def _maps_with(self, shards: np.ndarray) -> tuple[Maps, np.ndarray]:
        """The maps of at least these shards, and where each of them ends."""
        maps = self._maps
        ends = maps.ends_of(shards)
        if ends is None:
            needed = {number: self.shard(number) for number in np.unique(shards).tolist()}
            self._maps = maps = Maps(self._shards | needed, self.layout)
            ends = maps.ends[shards]
        return maps, ends

    def _copy(
        self, memory: np.ndarray, firsts: np.ndarray, sizes: np.ndarray, options: ReadOptions
    ) -> np.ndarray:
        """Long ranges of bytes: a copy for each."""
        stops = sizes.cumsum()
        n_bytes = int(stops[-1])
        out = self._empty(n_bytes, options)
        source: Any = memory
        target: Any = _bytes_of(out)
        is_locked = n_bytes < len(sizes) * UNLOCKED_BYTES
        if is_locked:
            source, target = memory.data, target.data

        def copy(some: list[Copy]) -> None:
            for first, stop, at in some:
                target[at : at + stop - first] = source[first:stop]

        ends = (firsts + sizes).tolist()
        copies = list(zip(firsts.tolist(), ends, (stops - sizes).tolist(), strict=True))
        if np.maximum.reduce(sizes) > LONG_BYTES:
            copies = _cut(copies)
        if is_locked:
            copy(copies)
        else:
            options.run(copy, copies, n_bytes)
        return out

    def _reads_files(self, starts: np.ndarray, stops: np.ndarray, select: Select) -> bool:
        """See `Array`: long whole items that lie together and are not checked.

        Where the kernel does not tell what is in memory, maps are read: of warm rows they are
        faster than files by more than they are slower of cold ones.
        """
        is_plain = self.layout.n_planes == 1 and not select
        if not is_plain or self.sums is not None or self.holder is not None:
            return False
        n_items = int((stops - starts).sum())
        if not n_items or n_items * self.layout.item_bytes < len(starts) * FILE_BYTES:
            return False
        first = int(starts[np.argmax(stops > starts)])
        return self.shard(first // self.layout.shard_items).file.tells_cached

    def _read_files(
        self,
        maps: Maps,
        shards: np.ndarray,
        firsts: np.ndarray,
        sizes: np.ndarray,
        options: ReadOptions,
        files: FileReads,
    ) -> np.ndarray:
        """Long ranges that are not in memory: a read of the file for each."""
        stops = sizes.cumsum()
        out = self._empty(int(stops[-1]), options)
        target = _bytes_of(out)
        ranges = []
        for number, first, size, stop in zip(
            shards.tolist(), firsts.tolist(), sizes.tolist(), stops.tolist(), strict=True
        ):
            file = maps.held[number].file
            file_start = int(maps.ends[number]) - file.n_bytes
            ranges.append(FileRange(file, first - file_start, target[stop - size : stop]))
        files.read(ranges)
        return out

    def _copy_selected(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, options: ReadOptions
    ) -> np.ndarray:
        """Parts of items, or items whose parts lie apart: a copy for each piece of a shard."""
        layout = self.layout
        n_items = int((stops - starts).sum())
        pieces = plan_pieces(starts, stops, layout.shard_items)
        self.open_shards(piece.shard for piece in pieces)
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        selected = (slice(None), *select)

        def copy(some: list[Piece]) -> None:
            for number, start, stop, at in some:
                items = self.shard(number).items[start:stop]
                np.copyto(out[at : at + stop - start], items[selected] if select else items)

        options.run(copy, pieces, out.nbytes)
        return out


def _bytes_of(items: np.ndarray) -> np.ndarray:
    """The bytes of contiguous items, a view: uint8 `(n_bytes,)`."""
    return items.reshape(-1).view(np.uint8)


def _cut(copies: list[Copy]) -> list[Copy]:
    """Copies of at most `LONG_BYTES`, so that threads get equal shares of them."""
    return [
        (begin, min(begin + LONG_BYTES, stop), at + begin - first)
        for first, stop, at in copies
        for begin in range(first, stop, LONG_BYTES)
    ]
