"""An uncompressed array, read through the maps of its shards."""

import numpy as np

from store.format.ranges import Piece, plan_pieces
from store.read.array import PLAIN, Array, Destination, NextUse, Select, read_only
from store.read.shard import RawShard

__all__ = ["RawArray"]


# ranges shorter than this are gathered by one call, without a Python step each
JOINED_BYTES = 8 * 1024


class RawArray(Array):
    """An uncompressed array: its bytes are copied once, from the map into their place."""

    shard_type = RawShard

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`: a read-only view if one shard holds them all, else a copy."""
        self.check(np.array([start]), np.array([stop]))
        number = start // self.layout.shard_items
        if start < stop <= (number + 1) * self.layout.shard_items:
            base = number * self.layout.shard_items
            return self.shard(number).items[start - base : stop - base]
        return read_only(self._gather(np.array([start]), np.array([stop])))

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
            Not used: nothing is cached but what the kernel caches.
        """
        self.check(starts, stops, select, into)
        return self._gather(starts, stops, select, into)

    def _gather(
        self, starts: np.ndarray, stops: np.ndarray, select: Select = (), into: Destination = PLAIN
    ) -> np.ndarray:
        """Checked items; see `read_ranges`."""
        layout, n_items = self.layout, int((stops - starts).sum())
        n_bytes = n_items * layout.item_bytes
        if layout.n_planes == 1 and not select and 0 < n_bytes < len(starts) * JOINED_BYTES:
            return into.place(self._join(starts, stops))
        wanted = plan_pieces(starts, stops, layout.shard_items)
        self.open_shards(piece.shard for piece in wanted)
        out = into.empty((n_items, *self.selected_shape(select)), layout.dtype)

        def copy(pieces: list[Piece]) -> None:
            for number, start, stop, at in pieces:
                items = self.shard(number).items[start:stop]
                np.copyto(
                    out[at : at + stop - start], items[(slice(None), *select)] if select else items
                )

        into.run(copy, wanted, out.nbytes)
        return out

    def _join(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Many short ranges: one call of `join` over slices of the maps' bytes, or NumPy's gather
        if all are alike."""
        layout, n, lengths = self.layout, self.layout.item_bytes, stops - starts
        shards = starts // layout.shard_items
        begins = starts - shards * layout.shard_items
        ends = begins + lengths
        # an empty range, or one over the end of a shard
        if lengths.min() == 0 or ends.max() > layout.shard_items:
            pieces = plan_pieces(starts, stops, layout.shard_items)
            parts = [self.shard(s).memory[a * n : b * n] for s, a, b, _ in pieces]
        elif (number := int(shards[0])) == shards.min() == shards.max():
            if lengths.min() == lengths.max():
                return self._equal(number, begins, int(lengths[0]))
            memory = self.shard(number).memory
            parts = [
                memory[a:b] for a, b in zip((begins * n).tolist(), (ends * n).tolist(), strict=True)
            ]
        else:
            numbers = shards.tolist()
            memories = {number: self.shard(number).memory for number in set(numbers)}
            bounds = zip(numbers, (begins * n).tolist(), (ends * n).tolist(), strict=True)
            parts = [memories[s][a:b] for s, a, b in bounds]
        joined = bytearray().join(parts)
        return np.frombuffer(joined, layout.dtype).reshape(-1, *layout.item_shape)

    def _equal(self, shard: int, starts: np.ndarray, length: int) -> np.ndarray:
        """Short ranges of one length in one shard: NumPy's own gather, over every window of that
        length."""
        items = self.shard(shard).items
        shape = (len(items) - length + 1, length, *items.shape[1:])
        windows = np.ndarray(
            shape, items.dtype, self.shard(shard).memory, 0, (items.strides[0], *items.strides)
        )
        return windows[starts].reshape(-1, *items.shape[1:])

    def take(
        self,
        positions: np.ndarray,
        select: Select = (),
        into: Destination = PLAIN,
        next_use: NextUse | None = None,
    ) -> np.ndarray:
        """The items at `positions`, int64 `(n,)`; see `read_ranges`."""
        self.check(positions, positions + 1, select, into)
        layout = self.layout
        if layout.item_bytes >= JOINED_BYTES or not len(positions):
            return self._gather(positions, positions + 1, select, into)
        if self.n_items <= layout.shard_items:
            return into.place(self.shard(0).items[(positions, *select)])
        out = into.empty((len(positions), *self.selected_shape(select)), layout.dtype)
        shards = positions // layout.shard_items
        for number in np.unique(shards).tolist():
            here = np.flatnonzero(shards == number)
            out[here] = self.shard(number).items[
                (positions[here] - number * layout.shard_items, *select)
            ]
        return out
