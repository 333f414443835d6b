"""Reads of one array through a mirror: its chunks are there before they are read, and after.

A chunk that is there is read as from a local store, or from the memory in which it has come. Its
version is looked at before and after the copy, so a chunk that leaves its place meanwhile is never
taken for a hole's zeros. What is not there is asked for, a bounded portion at a time, and kept
until it is copied.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError, UnreachableError
from store.format.contents import StoredArray
from store.format.ranges import cells, count_cells, cut_ranges
from store.read.array import Array
from store.read.chunk_states import (
    CHUNK_MARGIN,
    ChunkStates,
    cells_of_chunks,
    cells_of_ranges,
    n_cells,
)
from store.read.landed_chunks import LandedChunks
from store.read.mirror import NEVER, Mirror
from store.read.read_options import Located, ReadOptions, Schedule, Select

__all__ = ["HeldArray", "plan_portions"]

SMALL_BYTES = 4 * 1024 * 1024  # an array whose shards have no more is fetched whole
ATTEMPTS = 20  # of reading what other readers' limits evict under us

Ranges = tuple[np.ndarray, np.ndarray]
Read = Callable[[np.ndarray, np.ndarray, ReadOptions], np.ndarray]


class Known(NamedTuple):
    """What a fetching process has made known of an array.

    Attributes
    ----------
    session
        Which process.
    states
        Which chunks are there.
    landed
        Those that are not in their shards.
    """

    session: str
    states: ChunkStates
    landed: LandedChunks


class HeldArray:
    """One array of a mirrored store, in one process; see `store.read.array.Holder`.

    Parameters
    ----------
    mirror
        Of the store.
    array
        Which.
    """

    def __init__(self, mirror: Mirror, array: StoredArray) -> None:
        self.mirror = mirror
        self.array = array
        self.path = array.layout.path
        self.n_bytes = n_cells(array) * (array.layout.chunk_bytes + CHUNK_MARGIN)
        self._is_announced = False
        self._known: Known | None = None

    def read(
        self, array: Array, located: Located, select: Select, options: ReadOptions
    ) -> np.ndarray:
        """Read ranges of places, with the chunks that hold them in the mirror: a copy.

        Parameters
        ----------
        array
            The reader, whose shards are closed when the mirror was made again.
        located, select, options
            What it is asked for.
        """
        found = self._read_whole(lambda: array.read_here(located, select, options))
        if found is not None:
            return found

        def read(starts: np.ndarray, stops: np.ndarray, options: ReadOptions) -> np.ndarray:
            return array.read_places(starts, stops, select, options)

        # of an empty range no chunk is asked for, so its shard need not be there
        is_filled = located.stops > located.starts
        ranges = located.starts[is_filled], located.stops[is_filled]
        planes = array.planes(select).ravel()
        n_bytes = self.mirror.portion_bytes
        portions = list(plan_portions(self.array, *ranges, len(planes), n_bytes))
        if len(portions) == 1:
            return self._read_portion(array, read, ranges, planes, options)
        n_items = int((ranges[1] - ranges[0]).sum())
        out = options.empty((n_items, *array.selected_shape(select)), self.array.layout.dtype)
        at = 0
        for portion in portions:
            stop = at + int((portion[1] - portion[0]).sum())
            into = options._replace(empty=_only(out[at:stop]), required=True, next_use=None)
            self._read_portion(array, read, portion, planes, into)
            at = stop
        return out

    def _read_whole(self, read: Callable[[], np.ndarray]) -> np.ndarray | None:
        """What is read, if the mirror holds the whole array before and after; else None."""
        known = self._known  # which another thread may open again meanwhile
        if known is None or known.session != self.mirror.session:
            return None
        states = known.states
        before = states.whole
        if not before & 1:
            return None
        found = _confirmed(read, lambda: states.whole == before and states.is_current())
        self.mirror.hits += found is not None
        return found

    def _read_portion(
        self, array: Array, read: Read, ranges: Ranges, planes: np.ndarray, options: ReadOptions
    ) -> np.ndarray:
        some = cells_of_ranges(self.array, *ranges, planes)

        def attempt() -> np.ndarray | None:
            known = self._current(array)
            versions = known.states.versions
            before = versions[some]
            if not (before & 1).all():
                return None
            chosen = options
            if known.states.has_landed(some).any():
                if array.sums is not None:  # it looks for chunks in their shards
                    return None
                chosen = options._replace(landed=known.landed)
            return _confirmed(
                lambda: read(*ranges, chosen),
                lambda: np.array_equal(versions[some], before) and known.states.is_current(),
            )

        found = attempt()
        if found is not None:
            self.mirror.hits += 1
            return found
        asked = some
        if self.n_bytes <= min(SMALL_BYTES, self.mirror.portion_bytes):
            asked = np.arange(n_cells(self.array))
        how = {"is_announced": self._is_announced, "in_shards": array.sums is not None}
        for _ in range(ATTEMPTS):
            with self.mirror.held(self.path, asked, **how):
                found = attempt()
            if found is not None:
                return found
        raise UnreachableError(
            f"array {self.path!r}: expected its chunks to stay in the mirror while they are "
            f"copied, found them evicted {ATTEMPTS} times; give it more bytes"
        )

    def portions(
        self, array: Array, start: int, stop: int, planes: np.ndarray
    ) -> Iterator[tuple[int, int]]:
        """Cut the places `start:stop` into portions, each held while it is the current one.

        Their chunks are in the shards.
        """
        n_bytes = self.mirror.portion_bytes
        whole = np.array([start]), np.array([stop])
        for starts, stops in plan_portions(self.array, *whole, len(planes), n_bytes):
            self._current(array)
            some = cells_of_ranges(self.array, starts, stops, planes)
            first, last = int(starts[0]), int(stops[-1])
            with ExitStack() as held:
                try:
                    held.enter_context(self.mirror.held(self.path, some, in_shards=True))
                except CorruptError as error:
                    items = self.array.items_of_places(first, last)
                    raise DamagedItemsError(str(error), items) from error
                yield first, last

    def announce(
        self, reader: Array, ranges: Ranges, planes: np.ndarray, schedule: Schedule
    ) -> bool:
        """Say that ranges of places will be read; return whether all are in the shards."""
        states = self._current(reader).states
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

    def is_there(self, place: int) -> bool:
        """Whether the first plane of the chunk with this place is in its shard."""
        known = self._known
        if known is None:
            return False
        chunk = np.array([place // self.array.layout.chunk_items])
        cell = cells_of_chunks(self.array, chunk, np.array([0]))
        is_here = known.states.versions[cell] & 1 > 0
        return bool((is_here & ~known.states.has_landed(cell))[0])

    def is_whole(self) -> bool:
        """Whether all chunks are in the mirror."""
        known = self._known
        return known is not None and bool(known.states.whole & 1)

    def _current(self, array: Array) -> Known:
        """What is known, asked for again if another fetching process may have made the files."""
        known = self._known
        if known is not None and not known.states.is_current():
            self.mirror.drop_link()  # perhaps its fetching process writes into a removed directory
            known = None
        if known is None or known.session != self.mirror.session:
            known = self._open_states()
            array.close_shards()
            self._known = known
        return known

    def _open_states(self) -> Known:
        """What the fetching process makes known."""
        for _ in range(ATTEMPTS):
            file = self.mirror.open_array(self.path)
            session = self.mirror.session
            landed = self.mirror.landed
            with suppress(FileNotFoundError):  # another process has taken its place just now
                states = ChunkStates(file)
                if states.landing == landed.number:
                    chunks = LandedChunks(self.array, states, landed.memory)
                    return Known(session, states, chunks)
            self.mirror.drop_link()
        raise UnreachableError(
            f"{file}: expected a file of the fetching process, found none {ATTEMPTS} times; open "
            "the store again"
        )


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
