"""One array over its shards, read: `RawArray` through maps, `CompressedArray` through decoded chunks.

They know items and shards, not rows, ids or strings. Every read is checked against the number of
items that the manifest states, so nothing beyond a commit is ever seen.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.layout import ArrayLayout
from store.format.manifest import Manifest
from store.format.ranges import plan_pieces
from store.read.shard import RESTORE, CompressedShard, RawShard

__all__ = ["PLAIN", "Array", "ChunkSums", "Destination", "NextUse", "Select"]

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


class ChunkSums:
    """The checksums that the chunks of an array should have.

    Parameters
    ----------
    whole
        The array of the checksums of whole chunks.
    array
        The array that they are of.
    manifest
        What is committed; knows those of the padded last chunk.
    """

    def __init__(self, whole: "Array", array: StoredArray, manifest: Manifest) -> None:
        self._whole = whole
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


class Array:
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
        needed = np.unique(cells(starts, stops, self.layout.chunk_items)[1])
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


def cells(starts: np.ndarray, stops: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
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


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
