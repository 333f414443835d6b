"""The chunks of one column of a mirrored store: where they are, which are here, and their going.

A shard is a sparse file of its true size: its table is fetched when it is opened, its chunks when
they are needed. What came is in the landing memory, or in its shard.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from store.errors import CorruptError
from store.format.contents import StoredArray
from store.format.ranges import join_ranges
from store.format.shard_table import table_bytes
from store.read.chunk_states import WritableStates, n_cells, shard_cells
from store.read.directory import StoreDirectory
from store.read.open_array import open_array
from store.remote.chunk_checks import ChunkChecks
from store.remote.landing import Landing, aligned
from store.remote.mirrored_store import FETCHES, MirroredStore, states_path
from store.remote.requests import cut_requests, join_pieces, plan_requests
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
    on_disk
        bool: it is in its file since an earlier process, to be checked and not fetched.
    in_file
        bool: its file has bytes of it, or of what was taken for it.
    landing
        Where it comes into memory.
    n_in_shards, n_chunks
        Chunks that readers find in their shards, and all.
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
        self.on_disk = np.zeros(n, bool)
        self.in_file = np.zeros(n, bool)
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
        self.reader = open_array(directory, array, check=store.manifest)
        self.checks = ChunkChecks(directory, array, store.manifest)

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

    def landed(self) -> np.ndarray:
        """The cells that have their chunks in the landing memory, and can be seen."""
        return np.flatnonzero((self.states.places > 0) & (self.status == PRESENT))

    def arrive(self, some: np.ndarray) -> None:
        """Tell readers that chunks are there."""
        self.states.flip(some)
        self._count_in_shards(int((~self.states.has_landed(some)).sum()))

    def leave(self, some: np.ndarray) -> None:
        """Tell readers that chunks are about to go, of those cells that have one to be seen."""
        present = some[self.status[some] == PRESENT]
        self._count_in_shards(-int((~self.states.has_landed(present)).sum()))
        self.states.flip(present)

    def _count_in_shards(self, n: int) -> None:
        self.n_in_shards += n
        self.states.set_whole(self.n_in_shards == self.n_chunks)

    def write_landed(self, some: np.ndarray) -> None:
        """Write chunks of the landing memory into their shards; raises OSError."""
        self.in_file[some] = True
        for shard in self.shards_of(some):
            here = some[some // self.shard_cells == shard]
            starts, sizes = self.place(shard, here)
            positions = self.states.positions(here)
            order = np.argsort(starts, kind="stable")
            with opened(self.store.root / self.layout.shard_path(shard)) as fd:
                for start, stop, at in join_pieces(starts[order], sizes[order], positions[order]):
                    write_at(fd, self.landing.memory[at : at + stop - start].data, start)

    def settle(self, some: np.ndarray) -> None:
        """Have readers find chunks in their shards, where they are as well."""
        _, sizes = self._places_of(some)
        self.states.flip(some)
        self._leave_landing(some, sizes)
        self.states.flip(some)
        self._count_in_shards(len(some))

    def _leave_landing(self, some: np.ndarray, sizes: np.ndarray) -> None:
        """Have the landing memory of cells be free, which readers do not see as there."""
        starts = self.states.positions(some)
        self.states.places[some] = 0
        order = np.argsort(starts, kind="stable")
        spans = join_ranges(starts[order], (starts + aligned(sizes))[order])
        for start, stop in zip(*map(np.ndarray.tolist, spans), strict=True):
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

    def chunk_of(self, shard: int, cell: int) -> tuple[int, int]:
        """A cell's chunk in its shard, and its plane."""
        plane, chunk = divmod(cell - shard * self.shard_cells, self.layout.shard_chunks)
        return chunk, plane

    def empty(self, some: np.ndarray) -> None:
        """Give the space of cells back; they are ABSENT, and no other process fetches them."""
        landed = some[self.states.has_landed(some)]
        if len(landed):
            starts, sizes = self._places_of(landed)
            self._leave_landing(landed, sizes)
            # of a block that was shared, what is left of it may be this chunk's to give back
            shares_block = (starts % BLOCK > 0) | ((starts + sizes) % BLOCK > 0)
            is_empty = ~self.in_file[landed] & ~shares_block
            some = np.setdiff1d(some, landed[is_empty], assume_unique=True)
        self.in_file[some] = False
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
