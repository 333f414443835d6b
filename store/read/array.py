"""One array over its shards, read: `RawArray` through maps, `CompressedArray` through decoded chunks.

They know items and shards, not rows, ids or strings. Every read is checked against the number of
items that the manifest states, so nothing beyond a commit is ever seen.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.format.ranges import Piece, packed_offsets, plan_pieces
from store.format.schema import ArrayLayout
from store.read.chunk_cache import ChunkCache
from store.read.mapped_file import BufferPool
from store.read.shard import RESTORE, CompressedShard, RawShard

__all__ = ["CompressedArray", "Destination", "RawArray", "open_array"]

MAX_MAPS = 1024
IDLE_CHUNK_BYTES = 8 * 1024 * 1024
# ranges shorter than this are gathered by one call, without a Python step each
JOINED_BYTES = 8 * 1024
SHARED_BYTES = 4 * 1024 * 1024  # reads larger than this are worth sharing among threads

Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
Select = tuple[slice, ...]
NextUse = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(i, first, last) -> when any of the items first..last is needed again after the i-th of what is read; all `(n,)`."""


class Destination(NamedTuple):
    """How a read gets its memory, and its work done.

    Attributes
    ----------
    empty
        (shape, dtype) -> uninitialised memory.
    share
        (work, items): calls `work` with lists that together hold the items, one after the other or
        in threads.
    only
        Whether every array must lie in this memory; else what was gathered elsewhere may stay
        there.
    """

    empty: Empty = np.empty
    share: Callable[[Callable[[list], None], list], None] = lambda work, items: work(items)
    only: bool = False

    def place(self, array: np.ndarray) -> np.ndarray:
        """An array that was made elsewhere, copied if it must lie here."""
        if not self.only:
            return array
        out = self.empty(array.shape, array.dtype)
        np.copyto(out, array)
        return out

    def run(self, work: Callable[[list], None], items: list, n_bytes: int) -> None:
        """Do the work that fills so many bytes, shared if it is large."""
        if n_bytes < SHARED_BYTES:
            work(items)
        else:
            self.share(work, items)


PLAIN = Destination()


class Visit(NamedTuple):
    """Items `start:stop` of a chunk go to items `at:` of the packed batch; the chunk is needed
    again at `next_use`."""

    chunk: int
    start: int
    stop: int
    at: int
    next_use: float | None


def open_array(
    root: Path,
    array: StoredArray,
    cache: ChunkCache | None = None,
    max_maps: int = MAX_MAPS,
    check: Manifest | None = None,
    inode: int | None = None,
) -> "RawArray | CompressedArray":
    """The reader of an array; nothing is opened until items are asked for.

    Parameters
    ----------
    root, array, max_maps
        See `_Array`.
    cache
        For decoded chunks.
    check
        What is committed: if given, every chunk is checked before it is used.
    inode
        Number of the directory that was opened: a shard of another one, that has taken its place,
        is refused.
    """
    common = (
        root,
        array.layout,
        array.n_items,
        max_maps,
        check and ChunkSums(root, array, check),
        inode,
    )
    return (
        RawArray(*common)
        if array.layout.codec is None
        else CompressedArray(*common, cache or ChunkCache(0))
    )


class ChunkSums:
    """The checksums that the chunks of an array should have.

    Parameters
    ----------
    root, array
        The array that they are of.
    manifest
        What is committed; knows those of the padded last chunk.
    """

    def __init__(self, root: Path, array: StoredArray, manifest: Manifest) -> None:
        self._whole = open_array(root, array.checksums)
        self._tail = np.array([manifest.tails.get(array.layout.path, [])], np.uint32)
        self._n_tail = bool(array.n_items % array.layout.chunk_items) * array.layout.n_planes

    def read(self, start: int, stop: int) -> np.ndarray:
        """Of the chunks `start:stop`: uint32 `(n, n_planes)`; raises CorruptError."""
        n_whole, n_tail = self._whole.n_items, self._tail.size
        if n_tail != self._n_tail:
            expected = f"{self._n_tail} checksums of its last chunk"
            raise CorruptError(
                f"array {self._whole.layout.path!r}: expected {expected}, found {n_tail}; {RESTORE}"
            )
        try:
            whole = self._whole.read(min(start, n_whole), min(stop, n_whole))
        except DamagedItemsError as error:  # its items are chunks: nobody must take them for rows
            raise CorruptError(str(error)) from error
        return np.concatenate([whole, self._tail]) if stop > n_whole else whole


class _Array:
    """The shards of one array, opened when first needed, the oldest closed beyond a number.

    Parameters
    ----------
    root
        The store.
    layout
        The array's bytes.
    n_items
        Committed items.
    max_maps
        Shards to keep mapped.
    sums
        What to check chunks against before they are used; None: they are not.
    inode
        See `open_array`.
    """

    shard_type: type

    def __init__(
        self,
        root: Path,
        layout: ArrayLayout,
        n_items: int,
        max_maps: int,
        sums: ChunkSums | None,
        inode: int | None,
    ) -> None:
        self.root, self.layout, self.n_items, self.max_maps = root, layout, n_items, max_maps
        self.sums, self.inode = sums, inode
        self._shards: dict[int, RawShard | CompressedShard] = {}

    def shard(self, number: int) -> RawShard | CompressedShard:
        """A shard, mapped; views of it outlive its being closed here."""
        found = self._shards.get(number)
        if found is None:
            found = self._shards[number] = self._open_shard(number)
            # a copy: threads go on
            for oldest in list(self._shards)[: max(0, len(self._shards) - self.max_maps)]:
                self._shards.pop(oldest, None)
        return found

    def _open_shard(self, number: int) -> RawShard | CompressedShard:
        n_items, first = (
            self.layout.items_in_shard(number, self.n_items),
            number * self.layout.shard_items,
        )
        try:
            opened = self.shard_type(self.root, self.layout, number, n_items)
            if self.inode not in (None, self.root.stat().st_ino):
                raise CorruptError(
                    f"{self.root}: expected what was opened, found another store there; open it again"
                )
        except (CorruptError, FileNotFoundError) as error:
            raise DamagedItemsError(str(error), (first, first + n_items)) from error
        return opened

    def open_shards(self, numbers: Iterable[int]) -> None:
        """Open shards before memory is taken for items: there must be files that hold them."""
        for number in dict.fromkeys(numbers):
            self.shard(number)

    def faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        """The chunks among `start:stop` that have other checksums than they should; all planes by
        default."""
        expected, k = self.sums.read(start, stop), self.layout.shard_chunks
        for number in range(start // k, -(-stop // k)):
            first, last, shard = (
                max(start, number * k),
                min(stop, (number + 1) * k),
                self.shard(number),
            )
            for plane in range(self.layout.n_planes) if planes is None else planes:
                sums = expected[first - start : last - start, plane].tolist()
                found = shard.checksums(first - number * k, last - number * k, plane)
                wrong = (
                    [i for i in range(last - first) if found[i] != sums[i]] if found != sums else []
                )
                for i in wrong:
                    where = f"{shard.where}, chunk {first + i - number * k}"
                    where += f", plane {plane}" * (self.layout.n_planes > 1)
                    text = (
                        f"{where}: expected checksum {sums[i]:08x}, found {found[i]:08x}; {RESTORE}"
                    )
                    yield DamagedItemsError(text, self._items_of(first + i))

    def _items_of(self, chunk: int) -> tuple[int, int]:
        k = self.layout.chunk_items
        return chunk * k, min(self.n_items, (chunk + 1) * k)

    def check(
        self, starts: np.ndarray, stops: np.ndarray, select: Select = (), into: Destination = PLAIN
    ) -> None:
        """Check the chunks that hold the items of the ranges `starts:stops`, int64 `(n,)`; nothing
        without `sums`.

        Raises
        ------
        DamagedItemsError
            One has another checksum than it should.
        """
        if self.sums is None:
            return
        self.open_shards(
            piece.shard for piece in plan_pieces(starts, stops, self.layout.shard_items)
        )
        needed = np.unique(_cells(starts, stops, self.layout.chunk_items)[1])
        planes = self._planes(select).tolist()

        def run(some: list[tuple[int, int]]) -> None:
            for start, stop in some:
                for fault in self.faults(start, stop, planes):
                    raise fault

        into.run(run, _stretches(needed), len(needed) * len(planes) * self.layout.chunk_bytes)

    def selected_shape(self, select: Select) -> tuple[int, ...]:
        """Shape of an item of which only `select`, a slice an axis, is read (all of it if
        empty)."""
        shape = self.layout.item_shape
        return (
            tuple(len(range(n)[part]) for part, n in zip(select, shape, strict=True))
            if select
            else shape
        )

    def _plane_parts(self, select: Select) -> list[slice]:
        """The selected planes, a slice a split axis."""
        return [select[axis] if select else slice(None) for axis in self.layout.split_axes]

    def _planes(self, select: Select) -> np.ndarray:
        """The numbers of the selected planes."""
        grid = np.arange(self.layout.n_planes).reshape(self.layout.plane_grid)
        return grid[tuple(self._plane_parts(select))].ravel()

    def advise(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: Select,
        advice: int = mmap.MADV_WILLNEED,
    ) -> None:
        """Tell the kernel that the items of these ranges will be read; returns before they are."""
        planes = self._planes(select)
        for number, start, stop, _ in plan_pieces(starts, stops, self.layout.shard_items):
            shard = self.shard(number)
            for first, last in shard.byte_ranges(start, stop, planes):
                shard.file.advise(first, last, advice)

    def is_cached(self, item: int) -> bool:
        """Whether the first bytes of an item are in the page cache."""
        number, inside = divmod(item, self.layout.shard_items)
        shard = self.shard(number)
        return shard.file.is_cached(shard.byte_ranges(inside, inside + 1, np.array([0]))[0][0])


class RawArray(_Array):
    """An uncompressed array: its bytes are copied once, from the map into their place."""

    shard_type = RawShard

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`: a read-only view if one shard holds them all, else a copy."""
        self.check(np.array([start]), np.array([stop]))
        number = start // self.layout.shard_items
        if start < stop <= (number + 1) * self.layout.shard_items:
            base = number * self.layout.shard_items
            return self.shard(number).items[start - base : stop - base]
        return _read_only(self._gather(np.array([start]), np.array([stop])))

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


class CompressedArray(_Array):
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
        return _read_only(self.read_ranges(np.array([start]), np.array([stop])))

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
        i, chunk = _cells(starts, stops, k)
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


def _cells(starts: np.ndarray, stops: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The chunks of `n` items that ranges touch, range by range: (which range, which chunk),
    int64."""
    first = starts // n
    counts = np.where(stops > starts, -(-stops // n) - first, 0)
    i = np.repeat(np.arange(len(starts)), counts)
    return i, np.arange(len(i)) + np.repeat(first - (np.cumsum(counts) - counts), counts)


def _stretches(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Ascending numbers as ranges of consecutive ones: (first, behind the last)."""
    if not len(numbers):
        return []
    border = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts, lasts = numbers[np.r_[0, border]], numbers[np.r_[border, len(numbers)] - 1]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
