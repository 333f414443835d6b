"""An uncompressed array, read through the maps of its shards."""

from functools import partial

import numpy as np

from store.format.ranges import join_ranges
from store.read.arrays.copies import (
    SHORT_BYTES,
    ByteRanges,
    common_unit,
    copy_ranges,
    gather,
    gather_into,
    plan_copies,
    plan_gathers,
    scatter,
    selected_runs,
    window_width,
)
from store.read.arrays.file_array import FileArray
from store.read.arrays.file_reads import FileRange, FileReads
from store.read.arrays.item_location import Located, Piece, plan_pieces
from store.read.arrays.read_options import DEFAULT, SHARED_BYTES, ItemSlices, ReadOptions
from store.read.arrays.shard import MappedShards, RawShard

__all__ = ["RawArray"]

# Of longer ranges the interpreter's lock is released for each, which at 64 KB costs 3% of the copy.
UNLOCKED_BYTES = 128 * 1024
# Shorter runs of an item are not worth an index each.
FEWEST_BYTES = 64
# cold ranges of this mean length are worth a read of the file each
FILE_BYTES = 64 * 1024


WHOLE = np.zeros(1, np.int64)  # the one run of a whole item


class RawArray(FileArray[RawShard]):
    """An uncompressed array: its bytes are copied once, from the map into their place.

    One range in one shard is a view. Long ranges are copied one by one, short ones by one call.
    """

    shard_type = RawShard

    @property
    def n_together(self) -> int:
        """See `Array`: those of a shard."""
        return self.layout.shard_items

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`: a read-only view if one shard holds them all, else a copy."""
        place: int | None = start
        if self.segments is not None:
            place = self.segments.place_of_range(start, stop)
        if place is None or not start < stop:
            return super().read(start, stop)
        end = place + stop - start
        number, inside = divmod(place, self.layout.shard_items)
        if inside + stop - start > self.layout.shard_items:
            return super().read(start, stop)
        if not self._checked.has_all:
            self._check(np.array([place]), np.array([end]))
        return self.shard(number).items[inside : inside + stop - start]

    def take(
        self, positions: np.ndarray, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`; what is short of an item is gathered, all by one call."""
        if options.files is not None:
            ranges = positions, positions + 1
            if self.reads_files(*self.places(*ranges), select):
                return self.read_ranges(*join_ranges(*ranges), select, options)
        layout = self.layout
        runs, width = self._runs_of(select)
        if not width or not len(positions):
            return super().take(positions, select, options)
        places = positions if self.segments is None else self.segments.places_of(positions)
        if not self._checked.has_all:
            self._check(places, places + 1, select, options)
        n_bytes = len(places) * len(runs) * width
        is_small = n_bytes < SHARED_BYTES and layout.n_planes == 1
        # positions among the parts would be paired with the places
        has_slices = all(isinstance(part, slice) for part in select)
        if is_small and has_slices and self.array.n_shards == 1:
            return options.place(self.shard(0).items[places, *select])
        shards = places // layout.shard_items
        maps, _ = self._maps_with(shards)
        firsts = maps.bases[shards] + places * layout.plane_item_bytes
        if layout.n_planes > 1:
            planes = self.planes(select).ravel()
            firsts = (firsts[:, None] + maps.strides[shards][:, None] * planes).reshape(-1)
        if len(runs) > 1 or runs[0]:
            firsts = (firsts[:, None] + runs).reshape(-1)
        shape = (len(places), *self.selected_shape(select))
        if len(firsts) * width < SHARED_BYTES:
            data = gather(maps.memory, firsts, width)
            return options.place(data.view(layout.dtype).reshape(shape))
        out = options.empty(shape, layout.dtype)
        unit = common_unit(firsts, width)
        work = partial(gather_into, maps.memory, firsts, width, unit, _bytes_of(out))
        options.threads.run(work, plan_gathers(len(firsts), width), out.nbytes)
        return out

    def _runs_of(self, select: ItemSlices) -> tuple[np.ndarray, int]:
        """Where what is selected of an item begins in each plane, in runs of bytes, int64
        `(n_runs,)`, and their length; 0 if they are copied better in another way."""
        layout = self.layout
        shape = layout.plane_item_shape
        runs, width = WHOLE, layout.plane_item_bytes
        if select:
            runs, width = selected_runs(shape, self.unsplit(select), layout.dtype.itemsize)
        in_order = layout.split_axes == tuple(range(len(layout.split_axes)))
        is_short = width < FILE_BYTES and (width >= FEWEST_BYTES or len(runs) == 1)
        return runs, width if in_order and is_short else 0

    def read_located(
        self, located: Located, select: ItemSlices = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`."""
        starts, stops, shards = located
        self._check(starts, stops, select, options)
        layout = self.layout
        if shards is None or layout.n_planes > 1 or select:
            return self._copy_selected(starts, stops, select, options)
        sizes = (stops - starts) * layout.item_bytes
        n_bytes = int(np.add.reduce(sizes))
        if not n_bytes:
            return self._empty(0, options)
        maps, ends = self._maps_with(shards)
        firsts = maps.bases[shards] + starts * layout.item_bytes
        if options.files is not None and self.reads_files(starts, stops, select):
            return self._read_files(maps, shards, firsts, sizes, options, options.files)
        return self._pack(ByteRanges(maps.memory, firsts, sizes, ends), n_bytes, options)

    def _pack(self, ranges: ByteRanges, n_bytes: int, options: ReadOptions) -> np.ndarray:
        """Copy ranges, `n_bytes` in all, one after the other."""
        memory, firsts, sizes, _ = ranges
        mean = n_bytes // len(sizes)
        width = window_width(sizes, mean) if mean < SHORT_BYTES else 0
        if width and np.minimum.reduce(sizes) == width:
            return options.place(self._as_items(gather(memory, firsts, width)))
        out = self._empty(n_bytes, options)
        target = _bytes_of(out)
        if width:  # too short for a step each
            scatter(*ranges, width, target)
        elif mean < UNLOCKED_BYTES:
            copy_ranges(memory.data, target.data, plan_copies(firsts, sizes))
        else:
            work = partial(copy_ranges, memory, target)
            options.threads.run(work, plan_copies(firsts, sizes), n_bytes)
        return out

    def read_at(
        self,
        counts: np.ndarray,
        positions: np.ndarray,
        memory: np.ndarray,
        select: ItemSlices = (),
        options: ReadOptions = DEFAULT,
    ) -> np.ndarray:
        """As `read_located`, of items that are somewhere else than in shards.

        Of each range there are `counts` items, int64 `(n,)`, which begin at `positions`, int64
        `(n_planes, n)`, in `memory`, uint8, in each selected plane.
        """
        layout = self.layout
        n_items = int(counts.sum())
        if layout.n_planes == 1 and not select and n_items:
            firsts, stops = join_ranges(positions[0], positions[0] + counts * layout.item_bytes)
            ends = np.full(len(firsts), len(memory))
            n_bytes = n_items * layout.item_bytes
            ranges = ByteRanges(memory, firsts, stops - firsts, ends)
            return self._pack(ranges, n_bytes, options)
        out = options.empty((n_items, *self.selected_shape(select)), layout.dtype)
        selected = (slice(None), *self.unsplit(select))
        ats = np.cumsum(counts) - counts
        stops = positions + counts * layout.plane_item_bytes
        views = self.views_of_planes(out, select)
        for (_, view), *of_plane in zip(views, positions, stops, strict=True):

            def copy(some: list, view: np.ndarray = view) -> None:
                for first, stop, at, end in some:
                    items = memory[first:stop].view(layout.dtype)
                    items = items.reshape(end - at, *layout.plane_item_shape)
                    np.copyto(view[at:end], items[selected])

            columns = map(np.ndarray.tolist, (*of_plane, ats, ats + counts))
            options.threads.run(copy, list(zip(*columns, strict=True)), view.nbytes)
        return out

    def _empty(self, n_bytes: int, options: ReadOptions) -> np.ndarray:
        """Memory for whole items of so many bytes: `(n_items, *item_shape)`."""
        n_items = n_bytes // self.layout.item_bytes
        return options.empty((n_items, *self.layout.item_shape), self.layout.dtype)

    def _as_items(self, data: np.ndarray) -> np.ndarray:
        """Bytes, uint8 `(n,)`, as `(n_items, *item_shape)`."""
        return data.view(self.layout.dtype).reshape(-1, *self.layout.item_shape)

    def close_shards(self) -> None:
        """See `FileArray`."""
        super().close_shards()
        self._maps = MappedShards({}, self.layout)

    def _maps_with(self, shards: np.ndarray) -> tuple[MappedShards, np.ndarray]:
        """The maps of at least these shards, and where each of them ends."""
        maps = self._maps
        ends = maps.ends_of(shards)
        if ends is None:
            needed = {number: self.shard(number) for number in np.unique(shards).tolist()}
            self._maps = maps = MappedShards(self._shards | needed, self.layout)
            ends = maps.ends[shards]
        return maps, ends

    def reads_files(self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices) -> bool:
        """See `Array`: long whole items that lie together and are not checked.

        Where the kernel does not tell what is in memory, maps are read: of warm rows they are
        faster than files by more than they are slower of cold ones.
        """
        is_plain = self.layout.n_planes == 1 and not select
        if not is_plain or self.sums is not None:
            return False
        starts, stops = join_ranges(starts, stops)
        n_items = int((stops - starts).sum())
        if not n_items or n_items * self.layout.item_bytes < len(starts) * FILE_BYTES:
            return False
        return self.shard(int(starts[0]) // self.layout.shard_items).file.tells_cached

    def _read_files(
        self,
        maps: MappedShards,
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
        self, starts: np.ndarray, stops: np.ndarray, select: ItemSlices, options: ReadOptions
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

        options.threads.run(copy, pieces, out.nbytes)
        return out


def _bytes_of(items: np.ndarray) -> np.ndarray:
    """The bytes of contiguous items, a view: uint8 `(n_bytes,)`."""
    return items.reshape(-1).view(np.uint8)
