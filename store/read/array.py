"""What the readers of raw and of compressed arrays share: shards, checksums, advice to the kernel.

They know items and shards, not rows, ids or strings. Every read is checked against the number of
items that the manifest states, so nothing beyond a commit is ever seen.

An array of several segments is asked for items, as all are, and looks for places: the number of an
item in the shards (`store.format.segments`). Without segments the two are one.
"""

import mmap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray
from store.format.ranges import cells, join_ranges, plan_pieces
from store.read.checked_chunks import CheckedChunks
from store.read.chunk_sums import ChunkSums
from store.read.directory import StoreDirectory
from store.read.read_options import DEFAULT, Located, NextUse, ReadOptions, Schedule, Select
from store.read.shard import RESTORE, CompressedShard, RawShard

__all__ = ["Array", "Holder", "pairs"]


class Holder(Protocol):
    """Has the chunks of an array brought here before they are read (`store.read.held_array`)."""

    def read(
        self,
        array: "Array",
        located: Located,
        select: Select,
        options: ReadOptions,
    ) -> np.ndarray: ...

    def portions(
        self, array: "Array", start: int, stop: int, planes: np.ndarray
    ) -> Iterator[tuple[int, int]]: ...

    def announce(
        self,
        array: "Array",
        ranges: tuple[np.ndarray, np.ndarray],
        planes: np.ndarray,
        schedule: Schedule,
    ) -> bool: ...

    def is_there(self, place: int) -> bool: ...

    def is_whole(self) -> bool: ...


ShardType = TypeVar("ShardType", RawShard, CompressedShard)


class Array(Generic[ShardType]):
    """The shards of one array, opened when first needed, the oldest closed beyond a number.

    Parameters
    ----------
    directory
        The store; a shard of another one, that has taken its place, is refused.
    array
        The array, with the committed items.
    max_maps
        Shards to keep mapped.
    sums
        What to check chunks against before they are first used; None: they are not checked.
    """

    shard_type: type[ShardType]

    def __init__(
        self,
        directory: StoreDirectory,
        array: StoredArray,
        max_maps: int,
        sums: "ChunkSums | None",
    ) -> None:
        self.directory = directory
        self.array = array
        self.layout = array.layout
        self.n_items = array.n_items
        self.segments = array.segments
        self.max_maps = max_maps
        self.sums = sums
        n_chunks = 0 if sums is None else self.layout.n_chunks(array.n_places)
        self._checked = CheckedChunks(n_chunks, self.layout.n_planes)
        self.holder: Holder | None = None  # None: the files are here, whole
        self._shards: dict[int, ShardType] = {}

    def read(self, start: int, stop: int) -> np.ndarray:
        """Items `start:stop`, read-only."""
        copied = self.read_ranges(np.array([start]), np.array([stop]))
        copied.flags.writeable = False
        return copied

    def take(
        self, positions: np.ndarray, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """The items at `positions`, int64 `(n,)`."""
        return self.read_ranges(positions, positions + 1, select, options)

    def read_ranges(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: Select = (),
        options: ReadOptions = DEFAULT,
    ) -> np.ndarray:
        """The items of the ranges `starts:stops`, int64 `(n,)`, one after the other."""
        (located,) = self.locate(starts, stops, np.array([0, len(starts)]))
        return self.read_located(located, select, options)

    def locate(self, starts: np.ndarray, stops: np.ndarray, cuts: np.ndarray) -> list[Located]:
        """Where the items of several reads are, found at once; touches no file.

        Parameters
        ----------
        starts, stops
            The ranges of all reads: int64 `(n,)`.
        cuts
            The i-th read has the ranges `cuts[i]` to `cuts[i + 1]`: int64 `(n_reads + 1,)`.
        """
        if self.segments is not None:
            places = self.segments.split(starts, stops)
            if len(places[0]) != len(starts):  # a range crosses a border, which no row does
                split = self.segments.split
                counts: list[int] = [len(split(starts[a:b], stops[a:b])[0]) for a, b in pairs(cuts)]
                cuts = np.cumsum([0, *counts])
            starts, stops = places
        return self._locate_places(starts, stops, cuts)

    def _locate_places(
        self, starts: np.ndarray, stops: np.ndarray, cuts: np.ndarray
    ) -> list[Located]:
        return [Located(starts[a:b], stops[a:b]) for a, b in pairs(cuts)]

    def read_located(
        self, located: Located, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """The items of one read, one after the other."""
        if self.holder is None:
            return self.read_here(located, select, options)
        return self.holder.read(self, located, select, options)

    def read_here(self, located: Located, select: Select, options: ReadOptions) -> np.ndarray:
        """As `read_located`, of chunks that are in the files."""
        raise NotImplementedError

    def read_places(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, options: ReadOptions
    ) -> np.ndarray:
        """As `read_here`, of ranges of places that are not located yet."""
        (located,) = self._locate_places(starts, stops, np.array([0, len(starts)]))
        return self.read_here(located, select, options)

    def shard(self, number: int) -> ShardType:
        """A shard, mapped; views of it outlive its being closed here."""
        shard = self._shards.get(number)
        if shard is None:
            shard = self._open_shard(number)
            self._shards[number] = shard
            for oldest in list(self._shards)[: -self.max_maps]:  # a copy: other threads open shards
                self._shards.pop(oldest, None)
        return shard

    def _open_shard(self, number: int) -> ShardType:
        items = self.array.items_of_shard(number)
        first, stop = items
        try:
            shard = self.shard_type(self.directory.path, self.layout, number, stop - first)
        except (CorruptError, FileNotFoundError) as error:
            self.directory.check()  # first: what is missing may be of another store
            raise DamagedItemsError(str(error), items) from error
        self.directory.check()
        return shard

    def close_shards(self) -> None:
        """Forget the shards that are mapped; views of them stay good."""
        self._shards.clear()

    def open_shards(self, numbers: Iterable[int]) -> None:
        """Open shards before memory is taken for items: there must be files that hold them."""
        for number in dict.fromkeys(numbers):
            self.shard(number)

    def faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        """The chunks among `start:stop` with other checksums than they should have.

        They are counted through all shards.

        Parameters
        ----------
        planes
            Numbers of the planes to look at; all if None.

        Raises
        ------
        CorruptError
            The expected checksums cannot be read.
        """
        if self.holder is None:
            yield from self._faults(start, stop, planes)
            return
        chunk_items = self.layout.chunk_items
        wanted = np.arange(self.layout.n_planes) if planes is None else np.array(planes)
        places = start * chunk_items, min(stop * chunk_items, self.array.n_places)
        for first, last in self.holder.portions(self, *places, wanted):
            yield from self._faults(first // chunk_items, -(-last // chunk_items), planes)

    def _faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        """See `faults`; the chunks are here."""
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
                        yield DamagedItemsError(
                            f"{where}: {message}", self.array.items_of_chunk(chunk)
                        )

    def _check(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: Select = (),
        options: ReadOptions = DEFAULT,
    ) -> None:
        """Check the chunks that hold the ranges of places `starts:stops`, int64 `(n,)`.

        Each is checked once, by whichever read comes first. Nothing is checked without `sums`.

        Raises
        ------
        DamagedItemsError
            One has another checksum than it should.
        """
        if self._checked.has_all:
            return
        chunks = np.unique(cells(starts, stops, self.layout.chunk_items)[1])
        self.open_shards((chunks // self.layout.shard_chunks).tolist())
        self._check_chunks(chunks, self.planes(select).ravel(), options)

    def _check_chunks(
        self, chunks: np.ndarray, planes: np.ndarray, options: ReadOptions = DEFAULT
    ) -> None:
        """Check chunks, int64 `(n,)` and rising, in some planes; see `_check`."""
        chunks = self._checked.missing(chunks, planes)

        def run(runs: list[tuple[int, int]]) -> None:
            for start, stop in runs:
                for fault in self._faults(start, stop, planes.tolist()):
                    raise fault

        n_bytes = len(chunks) * len(planes) * self.layout.chunk_bytes
        firsts, stops = join_ranges(chunks, chunks + 1)
        runs = list(zip(firsts.tolist(), stops.tolist(), strict=True))
        options.run(run, runs, n_bytes)
        self._checked.add(chunks, planes)

    def selected_shape(self, select: Select) -> tuple[int, ...]:
        """Shape of an item of which only `select` is read."""
        shape = self.layout.item_shape
        if not select:
            return shape
        return tuple(len(range(n)[part]) for part, n in zip(select, shape, strict=True))

    def unsplit(self, select: Select) -> Select:
        """What is selected of the axes that a plane has."""
        split_axes = self.layout.split_axes
        return tuple(part for axis, part in enumerate(select) if axis not in split_axes)

    def views_of_planes(self, out: np.ndarray, select: Select) -> list[tuple[int, np.ndarray]]:
        """The selected planes: number, and view `(n_items, *selected plane item)` of `out`."""
        if not self.layout.split_axes:
            return [(0, out)]
        numbers = self.planes(select)
        planes = self.layout.items_as_planes(out)
        return [(int(numbers[place]), planes[place]) for place in np.ndindex(numbers.shape)]

    def planes(self, select: Select) -> np.ndarray:
        """The numbers of the selected planes, in the shape of the selected part of their grid."""
        numbers = np.arange(self.layout.n_planes).reshape(self.layout.plane_grid)
        if select:
            numbers = numbers[tuple(select[axis] for axis in self.layout.split_axes)]
        return np.asarray(numbers)

    def advise(
        self,
        starts: np.ndarray,
        stops: np.ndarray,
        select: Select,
        schedule: Schedule | None = None,
    ) -> None:
        """Announce that these items will be read; returns before they are.

        Announced to the kernel, or, with when they are read, to the mirror that lacks some.
        """
        if self.segments is not None:
            starts, stops = self.segments.split(starts, stops)
        if self.holder is not None:
            planned = self._schedule_of_places(starts, schedule or Schedule())
            planes = self.planes(select).ravel()
            if not self.holder.announce(self, (starts, stops), planes, planned):
                return
        if not self._reads_files(starts, stops, select):
            self._advise_places(starts, stops, select)

    def reads_files(self, starts: np.ndarray, stops: np.ndarray, select: Select) -> bool:
        """Whether `ReadOptions.files`, if it is given, reads the items `starts:stops`."""
        if self.segments is not None:
            starts, stops = self.segments.split(starts, stops)
        return self._reads_files(starts, stops, select)

    def _reads_files(self, starts: np.ndarray, stops: np.ndarray, select: Select) -> bool:
        """The same of ranges of places."""
        return False

    def _schedule_of_places(self, starts: np.ndarray, schedule: Schedule) -> Schedule:
        return schedule._replace(next_use=self._use_of_places(starts, schedule.next_use))

    def _use_of_places(self, starts: np.ndarray, next_use: NextUse | None) -> NextUse | None:
        """When places are needed again, of when items are; `starts` begin the ranges of places."""
        if next_use is None or self.segments is None:
            return next_use
        segments = self.segments.of_places(starts)
        shifts = self.segments.shifts[segments]
        last_items = self.segments.stops[segments] - 1

        def of_places(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            last_of_chunk = np.minimum(last - shifts[i], last_items[i])
            return next_use(i, first - shifts[i], last_of_chunk)

        return of_places

    def advise_chunks(self, start: int, stop: int) -> None:
        """Announce that all planes of the chunks `start:stop` of one shard will be read."""
        chunk_items = self.layout.chunk_items
        first = np.array([start * chunk_items])
        last = np.array([min(stop * chunk_items, self.array.n_places)])
        self._advise_places(first, last, ())

    def _advise_places(self, starts: np.ndarray, stops: np.ndarray, select: Select) -> None:
        planes = self.planes(select).ravel()
        for number, start, stop, _ in plan_pieces(starts, stops, self.layout.shard_items):
            shard = self.shard(number)
            for first, last in shard.byte_ranges(start, stop, planes):
                shard.file.advise(first, last, mmap.MADV_WILLNEED)

    def is_cached(self, item: int) -> bool:
        """Whether the first bytes of an item are in the page cache."""
        place = item
        if self.segments is not None:
            place = int(self.segments.places_of(np.array([item]))[0])
        if self.holder is not None and not self.holder.is_there(place):
            return False
        number, inside = divmod(place, self.layout.shard_items)
        shard = self.shard(number)
        return shard.file.is_cached(shard.first_byte(inside))


def pairs(cuts: np.ndarray) -> Iterator[tuple[int, int]]:
    return pairwise(cuts.tolist())
