"""An array of a mirrored store: its chunks are brought here before they are read, and kept until
they are copied.

A chunk that is here is read as from a local store, or from the landing memory of the process that
fetches. Its version is compared before and after the copy, so a chunk that is evicted meanwhile is
never taken for a hole's zeros. Chunks that are not here are asked for, a bounded portion at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError, UnreachableError
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.format.ranges import cells, count_cells, cut_ranges
from store.read.array import Array
from store.read.chunk_cache import ChunkCache
from store.read.chunk_states import (
    CHUNK_MARGIN,
    ChunkStates,
    cells_of_chunks,
    cells_of_ranges,
    n_cells,
)
from store.read.compressed_array import CompressedArray
from store.read.directory import StoreDirectory
from store.read.location import Located, locate_places
from store.read.mirror import NEVER, Mirror
from store.read.open_array import MAX_MAPS, LocalSource
from store.read.raw_array import RawArray
from store.read.read_options import DEFAULT, ReadOptions, Schedule, Select
from store.read.shard import CompressedShard, RawShard

__all__ = ["CachedArray", "MirrorSource", "plan_portions"]

SMALL_BYTES = 4 * 1024 * 1024  # an array whose shards have no more is fetched whole
ATTEMPTS = 20  # of reading what other readers' limits evict under us
FETCHES = 5  # of files of a mirror whose fetching process is killed

Ranges = tuple[np.ndarray, np.ndarray]


class LandedChunks(NamedTuple):
    """The chunks of one array that are in the landing memory; see `ChunkSource`."""

    array: StoredArray
    states: ChunkStates
    memory: np.ndarray
    is_empty: bool = False

    def positions(self, chunks: np.ndarray, plane: int) -> np.ndarray:
        """See `ChunkSource`."""
        some = cells_of_chunks(self.array, chunks, np.array([plane]))
        return self.states.positions(some)

    def copy(self, chunk: int, plane: int, n_bytes: int) -> bytes | None:
        """See `ChunkSource`.

        Another chunk of the same size, which has come into its place meanwhile, would be right by a
        checksum of its own: decoded, it would be kept as this one.

        Raises
        ------
        CorruptError
            It has left the memory meanwhile.
        """
        if self.is_empty:
            return None
        cell = cells_of_chunks(self.array, np.array([chunk]), np.array([plane]))
        before = int(self.states.versions[cell][0])
        position = int(self.states.positions(cell)[0])
        if position < 0:
            return None
        found = self.memory[position : position + n_bytes].tobytes()
        if not before & 1 or int(self.states.versions[cell][0]) != before:
            raise CorruptError(
                f"array {self.array.layout.path!r}, chunk {chunk}: expected it to stay while it is "
                "copied, found that it went; read it again"
            )
        return found


class CacheState(NamedTuple):
    """What a fetching process has made known of an array.

    Attributes
    ----------
    landed
        Those that are not in their shards.
    """

    session: str
    states: ChunkStates
    landed: LandedChunks


class CachedArray(Array):
    """One array of a mirrored store, in one process.

    Parameters
    ----------
    local
        Reads its shards, which are sparse files here.
    """

    def __init__(self, mirror: Mirror, local: RawArray | CompressedArray) -> None:
        super().__init__(local.array, local.sums)
        self.mirror = mirror
        self.local = local
        self.path = self.layout.path
        self.n_bytes = n_cells(self.array) * (self.layout.chunk_bytes + CHUNK_MARGIN)
        self._is_announced = False
        self._known: CacheState | None = None

    def shard(self, number: int) -> RawShard | CompressedShard:
        """See `Array`; a chunk brings the table of its shard."""
        first = np.array([number * self.layout.shard_items])
        with self._held((first, first + 1), np.zeros(1, np.int64)):
            return self.local.shard(number)

    def read_located(
        self, located: Located, select: Select = (), options: ReadOptions = DEFAULT
    ) -> np.ndarray:
        """See `Array`: always a copy, as under a view a hole would be zeros."""
        found = self._read_whole(located, select, options)
        if found is not None:
            return found
        # of an empty range no chunk is asked for, so its shard need not be there
        is_filled = located.stops > located.starts
        ranges = located.starts[is_filled], located.stops[is_filled]
        planes = self.planes(select).ravel()
        n_bytes = self.mirror.portion_bytes
        portions = list(plan_portions(self.array, *ranges, len(planes), n_bytes))
        if len(portions) == 1:
            return self._read_portion(ranges, planes, select, options)
        n_items = int((ranges[1] - ranges[0]).sum())
        out = options.empty((n_items, *self.selected_shape(select)), self.layout.dtype)
        at = 0
        for portion in portions:
            stop = at + int((portion[1] - portion[0]).sum())
            into = options._replace(empty=_only(out[at:stop]), required=True, next_use=None)
            self._read_portion(portion, planes, select, into)
            at = stop
        return out

    def _read_whole(
        self, located: Located, select: Select, options: ReadOptions
    ) -> np.ndarray | None:
        """What is read, if the mirror holds the whole array before and after; else None."""
        known = self._known  # which another thread may open again meanwhile
        if known is None or known.session != self.mirror.session:
            return None
        states = known.states
        before = states.whole
        if not before & 1:
            return None
        in_shards = options._replace(source=known.landed._replace(is_empty=True))
        found = _confirmed(
            lambda: self.local.read_located(located, select, in_shards),
            lambda: states.whole == before and states.is_current(),
        )
        self.mirror.hits += found is not None
        return found

    def _read_portion(
        self, ranges: Ranges, planes: np.ndarray, select: Select, options: ReadOptions
    ) -> np.ndarray:
        some = cells_of_ranges(self.array, *ranges, planes)
        (located,) = locate_places(self.layout, *ranges, np.array([0, len(ranges[0])]))

        def attempt() -> np.ndarray | None:
            known = self._current()
            versions = known.states.versions
            before = versions[some]
            if not (before & 1).all():
                return None
            is_landed = bool(known.states.has_landed(some).any())
            if is_landed and self.sums is not None:  # checks look for chunks in their shards
                return None
            chosen = options._replace(source=known.landed._replace(is_empty=not is_landed))
            return _confirmed(
                lambda: self.local.read_located(located, select, chosen),
                lambda: np.array_equal(versions[some], before) and known.states.is_current(),
            )

        found = attempt()
        if found is not None:
            self.mirror.hits += 1
            return found
        asked = some
        if self.n_bytes <= min(SMALL_BYTES, self.mirror.portion_bytes):
            asked = np.arange(n_cells(self.array))
        how = {"is_announced": self._is_announced, "in_shards": self.sums is not None}
        for _ in range(ATTEMPTS):
            with self.mirror.held(self.path, asked, **how):
                found = attempt()
            if found is not None:
                return found
        raise UnreachableError(
            f"array {self.path!r}: expected its chunks to stay in the mirror while they are "
            f"copied, found them evicted {ATTEMPTS} times; give it more bytes"
        )

    def faults(
        self, start: int, stop: int, planes: list[int] | None = None
    ) -> Iterator[DamagedItemsError]:
        """See `Array`."""
        n = self.layout.chunk_items
        wanted = np.arange(self.layout.n_planes) if planes is None else np.array(planes)
        whole = np.array([start * n]), np.array([min(stop * n, self.array.n_places)])
        n_bytes = self.mirror.portion_bytes
        for portion in plan_portions(self.array, *whole, len(wanted), n_bytes):
            first, last = int(portion[0][0]), int(portion[1][-1])
            with self._held(portion, wanted):
                yield from self.local.faults(first // n, -(-last // n), planes)

    @contextmanager
    def _held(self, ranges: Ranges, planes: np.ndarray) -> Iterator[None]:
        """Have the chunks of some places in their shards until the block ends."""
        self._current()
        starts, stops = ranges
        some = cells_of_ranges(self.array, starts, stops, planes)
        with ExitStack() as held:
            try:
                held.enter_context(self.mirror.held(self.path, some, in_shards=True))
            except CorruptError as error:
                items = self.array.items_of_places(int(starts[0]), int(stops[-1]))
                raise DamagedItemsError(str(error), items) from error
            yield

    def advise_places(
        self, starts: np.ndarray, stops: np.ndarray, select: Select, schedule: Schedule
    ) -> None:
        """See `Array`: the kernel is told if all chunks are in their shards, else the mirror."""
        if self._announce((starts, stops), self.planes(select).ravel(), schedule):
            self.local.advise_kernel(starts, stops, select)

    def _announce(self, ranges: Ranges, planes: np.ndarray, schedule: Schedule) -> bool:
        """Say that ranges of places will be read; return whether all are in the shards."""
        states = self._current().states
        if states.whole & 1:
            return True
        array = self.array
        i, all_chunks = cells(*ranges, array.layout.chunk_items)
        # a chunk that many rows share is one announcement: its first use, and that after its last
        chunks, firsts = np.unique(all_chunks, return_index=True)
        lasts = len(i) - 1 - np.unique(all_chunks[::-1], return_index=True)[1]
        some = cells_of_chunks(array, chunks, planes)
        is_there = bool((states.versions[some] & 1).all())
        uses = np.full((len(chunks), 2), float(NEVER))
        uses[:, 0] = (schedule.first + schedule.step * i[firsts]) * schedule.row_bytes
        if schedule.next_use is not None:
            base = chunks * array.layout.chunk_items
            last = np.minimum(array.n_places, base + array.layout.chunk_items) - 1
            uses[:, 1] = schedule.next_use(i[lasts], base, last) * schedule.row_bytes
        if schedule.next_use is not None or not is_there:
            times = np.tile(np.minimum(uses, NEVER).astype(np.int64), (len(planes), 1))
            now = schedule.now * schedule.row_bytes
            self.mirror.want(self.path, np.column_stack([some, times]), now)
            self._is_announced = True
        return is_there and not states.has_landed(some).any()

    def is_place_cached(self, place: int) -> bool:
        """See `Array`; no if the first plane of its chunk is not in its shard."""
        known = self._known
        if known is None:
            return False
        chunk = np.array([place // self.layout.chunk_items])
        cell = cells_of_chunks(self.array, chunk, np.array([0]))
        is_here = known.states.versions[cell] & 1 > 0
        is_in_shard = bool((is_here & ~known.states.has_landed(cell))[0])
        return is_in_shard and self.local.is_place_cached(place)

    def is_here(self) -> bool:
        """See `Array`."""
        known = self._known
        return known is not None and bool(known.states.whole & 1)

    def _current(self) -> CacheState:
        """What is known, asked for again if another fetching process may have made the files."""
        known = self._known
        if known is not None and not known.states.is_current():
            self.mirror.drop_link()  # perhaps its fetching process writes into a removed directory
            known = None
        if known is None or known.session != self.mirror.session:
            known = self._open_states()
            self.local.close_shards()
            self._known = known
        return known

    def _open_states(self) -> CacheState:
        for _ in range(ATTEMPTS):
            file = self.mirror.open_array(self.path)
            session = self.mirror.session
            landed = self.mirror.landed
            with suppress(FileNotFoundError):  # another process has taken its place just now
                states = ChunkStates(file)
                if states.landing == landed.number:
                    chunks = LandedChunks(self.array, states, landed.memory)
                    return CacheState(session, states, chunks)
            self.mirror.drop_link()
        raise UnreachableError(
            f"{file}: expected a file of the fetching process, found none {ATTEMPTS} times; open "
            "the store again"
        )


class MirrorSource(LocalSource):
    """The arrays of a mirrored store.

    Chunks of columns are fetched as they are read; other arrays, which are small, at once.
    """

    is_trusted = False

    def __init__(self, directory: StoreDirectory, mirror: Mirror) -> None:
        super().__init__(directory)
        self.mirror = mirror

    def open_array(
        self,
        array: StoredArray,
        cache: ChunkCache | None = None,
        max_maps: int = MAX_MAPS,
        check: Manifest | None = None,
    ) -> Array:
        """See `LocalSource`."""
        local = self.open_files(array, cache, max_maps, self.sums(array, check))
        if array.column is not None:
            return CachedArray(self.mirror, local)
        self._fetch_whole(local)
        return local

    def _fetch_whole(self, array: RawArray | CompressedArray) -> None:
        """Fetch a small array, and map its files at once: a map stays when a file goes."""
        numbers = range(array.array.n_shards)
        for _ in range(FETCHES):
            self.mirror.fetch_whole(array.layout.path)
            with suppress(CorruptError):  # whoever fetched them was killed just now
                array.open_shards(numbers)
                return
            self.mirror.forget_whole(array.layout.path)
        array.open_shards(numbers)


def _confirmed(
    read: Callable[[], np.ndarray], is_unchanged: Callable[[], bool]
) -> np.ndarray | None:
    """What was read, if its chunks were there all the time; else None."""
    try:
        found = read()
    except CorruptError:
        if is_unchanged():
            raise
        return None
    return found if is_unchanged() else None


def plan_portions(
    array: StoredArray, starts: np.ndarray, stops: np.ndarray, n_planes: int, n_bytes: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cut ranges of places into portions whose chunks take at most so many bytes of a mirror.

    Parameters
    ----------
    starts, stops
        int64 `(n,)`.
    n_planes
        Planes of each chunk that are read.
    n_bytes
        Of a portion; one chunk in all these planes is one in any case.

    Yields
    ------
    starts, stops
        Of the ranges of a portion, which together are those given.
    """
    chunk_items = array.layout.chunk_items
    most = max(1, n_bytes // ((array.layout.chunk_bytes + CHUNK_MARGIN) * n_planes))
    counts = count_cells(starts, stops, chunk_items)
    if counts.sum() <= most:
        yield starts, stops
        return
    if counts.max() > most:
        _, starts, stops, _ = cut_ranges(starts, stops, most * chunk_items)
        counts = count_cells(starts, stops, chunk_items)
    first = 0
    n = 0
    for i, count in enumerate(counts.tolist()):
        if n + count > most and i > first:
            yield starts[first:i], stops[first:i]
            first = i
            n = 0
        n += count
    yield starts[first:], stops[first:]


def _only(place: np.ndarray) -> Callable[[tuple[int, ...], np.dtype], np.ndarray]:
    """Memory for one array: this one."""
    return lambda shape, dtype: place.reshape(shape)
