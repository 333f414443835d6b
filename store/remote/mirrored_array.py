"""The chunks of one column of a mirrored store: where they are, which are here, and their coming.

A shard is a sparse file of its true size: its table is fetched when it is opened, its chunks when
they are needed. A chunk is compared with its checksum before it is put into the landing memory, or,
where that is full, into its shard.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError
from store.format.codecs import parse_codec, split_compressed
from store.format.contents import StoredArray
from store.format.shard_table import table_bytes
from store.read.array import Array
from store.read.chunk_states import WritableStates, n_cells, shard_cells
from store.read.chunk_sums import ChunkSums
from store.read.directory import StoreDirectory
from store.read.open_array import open_array
from store.remote.landing import Landing, aligned
from store.remote.mirrored_store import FETCHES, MirroredStore, states_path
from store.remote.requests import cut_requests, plan_requests
from store.remote.sparse_file import (
    BLOCK,
    cell_bytes,
    data_extents,
    hole_spans,
    make_folder,
    opened,
    punch,
    write_at,
)

__all__ = ["ABSENT", "FETCHING", "PRESENT", "UNCHECKED", "MirroredArray"]

ABSENT, FETCHING, PRESENT, UNCHECKED = range(4)
LOCKED_BYTES = 512 * 1024


class MirroredArray:
    """One column's array: which of its chunks are here, and what is known of their use.

    Attributes
    ----------
    status
        uint8 `(n_cells,)`: ABSENT, FETCHING, PRESENT, or UNCHECKED: in the file since an earlier
        process.
    n_bytes
        int64: what a chunk takes on the disk; 0 until its shard is open, and where none is.
    next_use, after
        float64: when a chunk is needed, and when again after that; 0: not announced.
    pins
        int32: readers that are copying it.
    was_here
        bool: it had been fetched before.
    states
        What readers see.
    n_opening
        Shards that are being opened.
    is_wanted
        Whether who announced chunks last still reads.
    """

    def __init__(self, store: MirroredStore, array: StoredArray, landing: Landing) -> None:
        self.store = store
        self.array = array
        self.landing = landing
        self.layout = array.layout
        self.shard_cells = shard_cells(array)
        n = n_cells(array)
        self.status = np.zeros(n, np.uint8)
        self.n_bytes = np.zeros(n, np.int64)
        self.next_use = np.zeros(n)
        self.after = np.zeros(n)
        self.pins = np.zeros(n, np.int32)
        self.was_here = np.zeros(n, bool)
        self.on_disk = np.zeros(n, bool)  # by an earlier process: to be checked, not fetched
        self.states_file = states_path(store.folder, array)
        self.states_file.parent.mkdir(exist_ok=True)
        self.states = WritableStates(self.states_file, n, landing.number)
        self.is_wanted: Callable[[], bool] = lambda: False
        self.n_opening = 0
        self.n_in_shards = 0
        self.n_chunks = self._count_chunks()
        self._opened: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._locks = [threading.Lock() for _ in range(min(64, max(1, array.n_shards)))]
        directory = StoreDirectory.at(store.root)
        self.reader: Array = open_array(directory, array, check=store.manifest)
        self._sums = self._read_sums()

    def _read_sums(self) -> np.ndarray:
        """The checksums of all chunks, uint32 `(n_chunks, n_planes)`."""
        checksums = self.array.checksums
        directory = StoreDirectory.at(self.store.root)
        has_tail = self.array.n_places % self.layout.chunk_items > 0
        sums = ChunkSums(open_array(directory, checksums), self.array, self.store.manifest)
        return sums.read(0, checksums.n_items + has_tail)

    def _count_chunks(self) -> int:
        """Chunks of the committed items, in all planes."""
        layout = self.layout
        shards = map(self.array.items_of_shard, range(self.array.n_shards))
        return layout.n_planes * sum(layout.n_chunks(stop - first) for first, stop in shards)

    def shards_of(self, some: np.ndarray) -> list[int]:
        """The shards that hold some cells."""
        return np.unique(some // self.shard_cells).tolist()

    def existing(self, some: np.ndarray) -> np.ndarray:
        """Those of some cells that have a chunk; their shards are open."""
        return some[self.n_bytes[some] > 0]

    def has_landed(self, some: np.ndarray) -> np.ndarray:
        """Which cells have their chunks in the landing memory: bool `(n,)`."""
        return self.states.places[some] > 0

    def landed(self) -> np.ndarray:
        """The cells that have their chunks in the landing memory, and can be seen."""
        return np.flatnonzero((self.states.places > 0) & (self.status == PRESENT))

    def arrive(self, some: np.ndarray) -> None:
        """Tell readers that chunks are there."""
        self.states.flip(some)
        self._count_in_shards(int((~self.has_landed(some)).sum()))

    def leave(self, some: np.ndarray) -> None:
        """Tell readers that chunks are about to go, of those cells that have one to be seen."""
        present = some[self.status[some] == PRESENT]
        self._count_in_shards(-int((~self.has_landed(present)).sum()))
        self.states.flip(present)

    def _count_in_shards(self, n: int) -> None:
        self.n_in_shards += n
        self.states.set_whole(self.n_in_shards == self.n_chunks)

    def write_landed(self, some: np.ndarray) -> None:
        """Write chunks of the landing memory into their shards; raises OSError."""
        for shard in self.shards_of(some):
            here = some[some // self.shard_cells == shard]
            starts, sizes = self.place(shard, here)
            positions = self.states.places[here].astype(np.int64) - 1
            with opened(self.store.root / self.layout.shard_path(shard)) as fd:
                for start, size, at in zip(
                    starts.tolist(), sizes.tolist(), positions.tolist(), strict=True
                ):
                    write_at(fd, self.landing.memory[at : at + size].data, start)

    def settle(self, some: np.ndarray) -> None:
        """Have readers find chunks in their shards, where they are as well."""
        self.states.flip(some)
        self._leave_landing(some)
        self.states.flip(some)
        self._count_in_shards(len(some))

    def _leave_landing(self, some: np.ndarray) -> None:
        """Have the landing memory of cells be free, which readers do not see as there."""
        positions = self.states.places[some].astype(np.int64) - 1
        self.states.places[some] = 0
        _, sizes = self._places_of(some)
        stops = positions + aligned(sizes)
        order = np.argsort(positions, kind="stable")
        for start, stop in _join(positions[order], stops[order]):
            self.landing.give_back(start, stop)

    def _places_of(self, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `place`, of cells of any shards."""
        starts = np.empty(len(some), np.int64)
        sizes = np.empty(len(some), np.int64)
        shards = some // self.shard_cells
        for shard in np.unique(shards).tolist():
            here = shards == shard
            starts[here], sizes[here] = self.place(shard, some[here])
        return starts, sizes

    def _shares_blocks(self, some: np.ndarray) -> np.ndarray:
        """Which cells share blocks of their shard with others: bool `(n,)`."""
        starts, sizes = self._places_of(some)
        return (starts % BLOCK > 0) | ((starts + sizes) % BLOCK > 0)

    def is_open(self, shard: int) -> bool:
        return shard in self._opened

    def opened_bytes(self) -> int:
        """What the files of the array take on the disk without chunks."""
        return len(self._opened) * self.table_bytes

    @property
    def table_bytes(self) -> int:
        """What the file of a shard takes on the disk without chunks."""
        return table_bytes(self.layout) + 3 * BLOCK

    def open_shard(self, shard: int) -> bool:
        """Make a shard's file, with its table; return whether it was not open.

        Raises
        ------
        StoreError
            The object is not there, or is not a shard of this array.
        """
        with self._locks[shard % len(self._locks)]:
            if shard in self._opened:
                return False
            key = self.layout.shard_path(shard)
            n_bytes = self.store.size_of(key)
            path = self.store.root / key
            make_folder(path.parent, self.store.root)
            is_there = path.exists() and path.stat().st_size == n_bytes
            if not (is_there and self._has_table(shard)):
                self._make_file(path, key, n_bytes)
            entries = self.reader.shard(shard).entries
            places = self._places(entries)
            if is_there:
                self._find_data(path, shard, places)
            self._note_cells(shard, places)
            return True

    def _has_table(self, shard: int) -> bool:
        try:
            self.reader.shard(shard)
        except CorruptError:
            return False
        return True

    def _make_file(self, path: Path, key: str, n_bytes: int) -> None:
        n_table = min(n_bytes, table_bytes(self.layout))
        for attempt in range(FETCHES):
            table = self.store.source.get_range(key, n_bytes - n_table, n_bytes)
            path.unlink(missing_ok=True)  # not shortened: a reader may have it mapped
            with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
                os.ftruncate(fd, n_bytes)
                write_at(fd, table, n_bytes - n_table)
            self.reader.close_shards()
            try:
                self.reader.shard(self._number_of(key))
                return
            except CorruptError:
                if attempt == FETCHES - 1:
                    raise

    def _number_of(self, key: str) -> int:
        return int(key.removeprefix(f"{self.layout.path}/c/").split("/")[0])

    def _places(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the chunk of each cell is, of (offset, size), `(n_chunks, n_planes, 2)`."""
        layout = self.layout
        places = np.zeros((layout.n_planes, layout.shard_chunks, 2), np.int64)
        places[:, : len(entries)] = np.moveaxis(entries, 1, 0)
        starts, sizes = places.reshape(-1, 2).T
        return np.ascontiguousarray(starts), np.ascontiguousarray(sizes)

    def _note_cells(self, shard: int, places: tuple[np.ndarray, np.ndarray]) -> None:
        starts, sizes = places
        first = shard * self.shard_cells
        taken = np.where(sizes > 0, cell_bytes(starts, sizes), 0)
        self.n_bytes[first : first + self.shard_cells] = taken
        self._opened[shard] = places

    def _find_data(self, path: Path, shard: int, places: tuple[np.ndarray, np.ndarray]) -> None:
        """Note the chunks that an earlier process has left whole, and give back other bytes."""
        starts, sizes = places
        stops = starts + sizes
        first = shard * self.shard_cells
        n_bytes = path.stat().st_size
        n_data = n_bytes - table_bytes(self.layout)
        with opened(path) as fd:
            extents = np.array([(0, 0), *data_extents(fd, n_bytes)])
            at = np.searchsorted(extents[:, 0], starts, "right") - 1
            is_whole = (sizes > 0) & (stops <= extents[at, 1])
            self.on_disk[first : first + self.shard_cells] = is_whole
            kept = np.flatnonzero(is_whole)
            kept = kept[np.argsort(starts[kept], kind="stable")]
            holes = zip([0, *stops[kept].tolist()], [*starts[kept].tolist(), n_data], strict=True)
            for start, stop in holes:
                punch(fd, -(-start // BLOCK) * BLOCK, stop // BLOCK * BLOCK)

    def place(self, shard: int, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where cells of one shard are in its file: starts and sizes, int64 `(n,)`."""
        starts, sizes = self._opened[shard]
        inside = some - shard * self.shard_cells
        return starts[inside], sizes[inside]

    def cut(self, some: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Cells as (shard, cells of some requests), in the order of their places."""
        jobs = []
        shards = some // self.shard_cells
        for shard in np.unique(shards).tolist():
            here = some[shards == shard]
            starts, sizes = self.place(shard, here)
            order = np.argsort(starts, kind="stable")
            here = here[order]
            requests = plan_requests(starts[order], sizes[order])
            jobs += [(shard, here[first:last]) for first, last in cut_requests(requests)]
        return jobs

    def fetch(self, shard: int, some: np.ndarray) -> tuple[int, int]:
        """Bring the chunks of some cells of a shard into its file, in the order of their places.

        Returns
        -------
        fetched, again
            Bytes that were asked for, and those of them that had been here before.

        Raises
        ------
        CorruptError
            They come with wrong bytes again and again.
        """
        n_fetched = 0
        n_again = 0
        old = some[self.on_disk[some]]
        if len(old):
            self.on_disk[old] = False
            some = np.setdiff1d(some, old, assume_unique=True)
            bad = self._bad_cells(shard, old)
            some = np.concatenate([some, bad])
        key = self.layout.shard_path(shard)
        for attempt in range(FETCHES if len(some) else 0):
            starts, sizes = self.place(shard, some)
            order = np.argsort(starts, kind="stable")
            some, starts, sizes = some[order], starts[order], sizes[order]
            n_again += int(sizes[self.was_here[some]].sum())
            n_bytes, wrong = self._fetch_ranges(shard, some, starts, sizes)
            n_fetched += n_bytes
            self.was_here[some] = True
            some = np.array(wrong, np.int64)
            if not wrong:
                break
            if attempt == 1:  # the sums may be what is wrong
                with self.store.lock:  # other threads may find the same
                    self.store.fetch_whole(self.array.checksums.layout.path)
                    self._sums = self._read_sums()
        if not len(some):
            return n_fetched, n_again
        chunk = self._chunk_of(shard, int(some[0]))
        raise CorruptError(
            f"{self.store.url}/{key}, chunk {chunk[0]}: expected the bytes of its checksum, found "
            f"others {FETCHES} times; push the store again, or see python -m store verify"
        )

    def _fetch_ranges(
        self, shard: int, some: np.ndarray, starts: np.ndarray, sizes: np.ndarray
    ) -> tuple[int, list[int]]:
        """Fetch cells and keep those that are right; return the bytes, and the other cells.

        They are put into the landing memory if it has room, else into their shard.
        """
        key = self.layout.shard_path(shard)
        requests = plan_requests(starts, sizes)
        firsts = [request.start for request in requests]
        lasts = [request.stop for request in requests]
        answers = self.store.source.get_ranges(key, firsts, lasts)
        is_right = self._judge(shard, some)
        taken = aligned(sizes)
        landed = self.landing.take(int(taken.sum()))
        targets = starts if landed is None else landed + np.cumsum(taken) - taken
        places = list(
            zip(starts.tolist(), (starts + sizes).tolist(), targets.tolist(), strict=True)
        )
        wrong: list[int] = []
        for request, data in zip(requests, answers, strict=True):
            pieces: list[tuple[int, int, int]] = []  # touching ones joined
            for i in range(request.first, request.last):
                start, stop, target = places[i]
                if not is_right(i, data[start - request.start : stop - request.start]):
                    wrong.append(i)
                    continue
                if pieces:
                    begin, end, to = pieces[-1]
                    if start == end and target - to == start - begin:
                        pieces[-1] = (begin, stop, to)
                        continue
                pieces.append((start, stop, target))
            self._keep(key, data, request.start, pieces, is_landed=landed is not None)
        if landed is not None:
            self.states.land(some, targets)
            if wrong:
                self._leave_landing(some[wrong])
        return sum(map(len, answers)), some[wrong].tolist()

    def _keep(
        self,
        key: str,
        data: memoryview,
        first: int,
        pieces: list[tuple[int, int, int]],
        *,
        is_landed: bool,
    ) -> None:
        """Write pieces of an answer, which begins at `first` of its object.

        Each is (start, stop, target): the bytes `start:stop` of the object go to `target` of the
        landing memory, or of the file.
        """
        if is_landed:
            found = np.frombuffer(data, np.uint8)
            for start, stop, target in pieces:
                here = found[start - first : stop - first]
                self.landing.memory[target : target + stop - start] = here
            return
        with opened(self.store.root / key) as fd:
            for start, stop, target in pieces:
                write_at(fd, data[start - first : stop - first], target)

    def _judge(self, shard: int, some: np.ndarray) -> Callable[[int, memoryview], bool]:
        """(i, bytes) -> whether the chunk of the i-th cell has its checksum; as `Array.faults`."""
        layout = self.layout
        planes, chunks = np.divmod(some - shard * self.shard_cells, layout.shard_chunks)
        first_chunk = shard * layout.shard_chunks
        # of one shard they follow each other
        sums = self._sums[self.array.sum_of_chunk(first_chunk) + chunks, planes].tolist()
        first, stop = self.array.items_of_shard(shard)
        is_whole = ((chunks + 1) * layout.chunk_items <= stop - first).tolist()

        def is_right(i: int, data: memoryview) -> bool:
            if layout.codec is None and is_whole[i]:
                return _checksum(data) == sums[i]
            return self._is_right(first_chunk + int(chunks[i]), int(planes[i]), data, sums[i])

        return is_right

    def _is_right(self, chunk: int, plane: int, data: memoryview, expected: int) -> bool:
        """Whether a chunk that is compressed, or not whole, has its checksum."""
        n_padding = self._n_padding(chunk)
        if self.layout.codec is None:
            return crc32c(bytes(n_padding), crc32c(data[: len(data) - n_padding])) == expected
        packed, stated = split_compressed(data)
        if not n_padding:
            return crc32c(packed) == stated == expected
        return crc32c(packed) == stated and self._is_right_tail(chunk, plane, data, expected)

    def _n_padding(self, chunk: int) -> int:
        """Bytes after the committed items of a chunk, in each plane."""
        first, stop = self.array.items_of_chunk(chunk)
        return self.layout.chunk_bytes - (stop - first) * self.layout.plane_item_bytes

    def _is_right_tail(self, chunk: int, plane: int, data: memoryview, expected: int) -> bool:
        """A last chunk may have been compressed again with more items: what they decode to."""
        items = np.empty(self.layout.chunk_bytes, np.uint8)
        try:
            codec = parse_codec(self.layout.codec)
            codec.decode(data, items, lambda: f"chunk {chunk}, plane {plane}")
        except CorruptError:
            return False
        items[self.layout.chunk_bytes - self._n_padding(chunk) :] = 0
        return crc32c(items.data) == expected

    def _chunk_of(self, shard: int, cell: int) -> tuple[int, int]:
        """A cell's chunk in its shard, and its plane."""
        plane, chunk = divmod(cell - shard * self.shard_cells, self.layout.shard_chunks)
        return chunk, plane

    def _bad_cells(self, shard: int, some: np.ndarray) -> np.ndarray:
        """Those of some cells whose bytes in the file have not their checksum."""
        bad = []
        first_chunk = shard * self.layout.shard_chunks
        for first, stop in _runs(np.sort(some), self.layout.shard_chunks):
            chunk, plane = self._chunk_of(shard, first)
            start = first_chunk + chunk
            faults = self.reader.faults(start, start + stop - first, [plane])
            if next(faults, None) is not None:
                bad += [cell for cell in range(first, stop) if self._is_bad(shard, cell)]
        return np.array(bad, np.int64)

    def _is_bad(self, shard: int, cell: int) -> bool:
        chunk, plane = self._chunk_of(shard, cell)
        start = shard * self.layout.shard_chunks + chunk
        return next(self.reader.faults(start, start + 1, [plane]), None) is not None

    def empty(self, some: np.ndarray) -> None:
        """Give the space of cells back; they are ABSENT, and no other process fetches them."""
        has_landed = self.has_landed(some)
        if has_landed.any():
            self._leave_landing(some[has_landed])
            # of a block that was shared, what is left of it may be this chunk's to give back
            some = some[~has_landed | self._shares_blocks(some)]
        shards = some // self.shard_cells
        for shard in np.unique(shards).tolist():
            path = self.store.root / self.layout.shard_path(shard)
            starts, sizes = self._opened[shard]
            first = shard * self.shard_cells
            stops = starts + sizes
            is_held = self.status[first : first + self.shard_cells] != ABSENT
            held = np.flatnonzero(is_held & (sizes > 0))
            order = held[np.argsort(starts[held], kind="stable")]
            begins = np.append(starts[order], path.stat().st_size - table_bytes(self.layout))
            ends = np.append(0, stops[order])
            gone = some[shards == shard] - first
            # the hole that each chunk is in: from the held one before it to that after it
            at = np.searchsorted(begins, starts[gone], "right")
            with opened(path) as fd:
                for low, high in hole_spans(starts[gone], stops[gone], ends[at], begins[at]):
                    punch(fd, low, high)


def _checksum(data: memoryview) -> int:
    """That of a chunk, holding the interpreter's lock: to give it away for a chunk of 64 KB takes
    longer than to sum it up."""
    return int(crc32c(data, 0, len(data) > LOCKED_BYTES))


def _join(starts: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
    """Rising ranges that do not overlap, those joined that touch."""
    if not len(starts):
        return []
    heads = np.flatnonzero(np.append(True, starts[1:] != stops[:-1]))
    lasts = np.append(heads[1:], len(starts)) - 1
    return list(zip(starts[heads].tolist(), stops[lasts].tolist(), strict=True))


def _runs(numbers: np.ndarray, step: int) -> list[tuple[int, int]]:
    """Rising numbers as ranges of consecutive ones, none beyond a multiple of `step`."""
    if not len(numbers):
        return []
    gaps = np.flatnonzero((np.diff(numbers) != 1) | (numbers[1:] % step == 0))
    firsts = numbers[np.r_[0, gaps + 1]].tolist()
    lasts = numbers[np.r_[gaps, len(numbers) - 1]].tolist()
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
