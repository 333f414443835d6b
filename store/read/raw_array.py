"""An uncompressed array, read through the maps of its shards."""

import numpy as np

from store.format.ranges import Piece, plan_pieces, split_ranges
from store.read.array import Array, ReadOptions, Select
from store.read.shard import RawShard

__all__ = ["RawArray"]

# ranges shorter than this are gathered by one call, without a Python step each
JOINED_BYTES = 8 * 1024


class RawArray(Array[RawShard]):
    """An uncompressed array: its bytes are copied once, from the map into their place.

    One range in one shard is a view. Long ranges are copied piece by piece. Short ones are joined
    by one call, and items of one length are gathered by NumPy.
    """

    shard_type = RawShard

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
        if self.sums is not None:
            self._check(np.array([place]), np.array([end]))
        return self.shard(number).items[inside : inside + stop - start]

    def _read_places(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, options: ReadOptions
    ) -> np.ndarray:
        """See `Array`."""
        self._check(starts, stops, select, options)
        n_bytes = int((stops - starts).sum()) * self.layout.item_bytes
        is_bare = self.layout.n_planes == 1 and not select
        if is_bare and 0 < n_bytes < len(starts) * JOINED_BYTES:
            return options.place(self._join(starts, stops))
        return self._copy_pieces(starts, stops, select, options)

    def _take_places(self, places: np.ndarray, select: Select, options: ReadOptions) -> np.ndarray:
        """See `Array`."""
        self._check(places, places + 1, select, options)
        layout = self.layout
        if layout.item_bytes >= JOINED_BYTES or not len(places):
            return self._copy_pieces(places, places + 1, select, options)
        if self.array.n_places <= layout.shard_items:
            index: tuple[np.ndarray | slice, ...] = (places, *select)
            return options.place(self.shard(0).items[index])
        out = options.empty((len(places), *self.selected_shape(select)), layout.dtype)
        shards = places // layout.shard_items
        for number in np.unique(shards).tolist():
            here = np.flatnonzero(shards == number)
            index = (places[here] - number * layout.shard_items, *select)
            out[here] = self.shard(number).items[index]
        return out

    def _copy_pieces(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, options: ReadOptions
    ) -> np.ndarray:
        """Long ranges: a copy for each piece of a shard."""
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

    def _join(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Many short ranges: one call of `join` over slices of the maps' bytes."""
        layout = self.layout
        lengths = stops - starts
        shards = starts // layout.shard_items
        begins = starts - shards * layout.shard_items
        ends = begins + lengths
        if lengths.min() == 0 or ends.max() > layout.shard_items:  # empty, or over a shard's end
            shards, begins, ends, _ = split_ranges(starts, stops, layout.shard_items)
        elif shards.min() == shards.max() and lengths.min() == lengths.max():
            return self._gather_windows(int(shards[0]), begins, int(lengths[0]))
        numbers = shards.tolist()
        memories = {number: self.shard(number).memory for number in set(numbers)}
        first_bytes = (begins * layout.item_bytes).tolist()
        last_bytes = (ends * layout.item_bytes).tolist()
        if len(memories) == 1:  # the usual case, without a look-up for each range
            (memory,) = memories.values()
            pairs = zip(first_bytes, last_bytes, strict=True)
            parts = [memory[first:last] for first, last in pairs]
        else:
            triples = zip(numbers, first_bytes, last_bytes, strict=True)
            parts = [memories[number][first:last] for number, first, last in triples]
        return np.frombuffer(bytearray().join(parts), layout.dtype).reshape(-1, *layout.item_shape)

    def _gather_windows(self, number: int, starts: np.ndarray, length: int) -> np.ndarray:
        """Short ranges of one length in one shard: NumPy's own gather, over every window."""
        shard = self.shard(number)
        items = shard.items
        shape = (len(items) - length + 1, length, *items.shape[1:])
        strides = (items.strides[0], *items.strides)
        windows = np.ndarray(shape, items.dtype, shard.memory, 0, strides)
        return windows[starts].reshape(-1, *items.shape[1:])
