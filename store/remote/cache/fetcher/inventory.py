"""What is in a cache directory, and where: stores, their indexes, and the slots of their chunks.

Nothing here waits or has a lock. A slot is taken before its chunk is fetched, and all slots and
files together are never more than the limit allows.
"""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from store.read.directory import files_below
from store.remote.cache.chunk_index import BLOCK
from store.remote.cache.fetcher.fetched_column import FetchedColumn, Job
from store.remote.cache.fetcher.fetched_store import INDEX_FILE, FetchedStore
from store.remote.cache.fetcher.slab import Slab
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.cache.location import SLAB_FILE, STORES_DIR
from store.remote.objects.faults import FULL

__all__ = ["BASE_BYTES", "Inventory", "choose_victims"]

BASE_BYTES = 64 * 1024  # of the directory's own files
EVICT_SHARE = 32  # at least so much of the limit is evicted in one go
CLOSED_SHARE = 8  # files of stores that no reader has open take no more of the limit


class Inventory:
    """The stores of a cache directory, which may take `limit` bytes, and their chunks.

    `indexes` are those of the stores, by their folders, the oldest first; `jobs` have slots, and
    are not settled.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self.evicted_bytes = 0
        self.indexes: dict[Path, WritableIndex] = {}
        self.jobs: set[Job] = set()
        self.slab = Slab(directory / SLAB_FILE)
        try:
            self._adopt()
        except OSError as error:
            if error.errno not in FULL:
                raise
            # what is left fills the disk, or others do; readers see by the names that it goes
            shutil.rmtree(self.directory / STORES_DIR)
            self.slab.punch(0, self.slab.file_bytes)
            self.indexes = {}
            self._adopt()

    @property
    def file_bytes(self) -> int:
        """Of files but the slab."""
        return BASE_BYTES + sum(index.file_bytes for index in self.indexes.values())

    @property
    def used_bytes(self) -> int:
        """Of files, and of slots that are taken."""
        return self.file_bytes + self.slab.n_bytes - self.slab.free_bytes

    @property
    def open_indexes(self) -> list[WritableIndex]:
        """Those of stores that are being read."""
        return [index for index in self.indexes.values() if index.is_open]

    def _adopt(self) -> None:
        """Count what earlier processes have left, before anything is written."""
        stores = self.directory / STORES_DIR
        stores.mkdir(exist_ok=True)
        folders = filter(Path.is_dir, stores.iterdir())  # others may put files beside them
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime):
            index = self.indexes[folder] = WritableIndex(folder / INDEX_FILE)
            index.file_bytes = sum(file.st_blocks * 512 for file in files_below(folder))
        self._drop_overlaps()
        self.resize(self.limit)

    def _drop_overlaps(self) -> None:
        """Forget chunks whose slots are another's as well, or beyond the file: a node went down."""
        owners, cells, starts, stops = self.slots_taken()
        order = np.argsort(starts, kind="stable")
        ends = np.maximum.accumulate(stops[order])
        is_wrong = stops[order] > self.slab.file_bytes + BLOCK
        overlaps = starts[order][1:] < ends[:-1]
        is_wrong[1:] |= overlaps
        is_wrong[:-1] |= overlaps
        wrong = order[is_wrong]
        for index, lost in self._by_index(owners[wrong], cells[wrong]):
            index.clear(lost)

    def slots_taken(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All slots that are taken: the number of its index, cell, start and stop of each."""
        parts = [(np.empty(0, np.int64),) * 4]
        for number, index in enumerate(self.indexes.values()):
            cells = np.flatnonzero(index.words)
            parts.append((np.full(len(cells), number), cells, *index.slots(cells)))
        owners, cells, starts, stops = map(np.concatenate, zip(*parts, strict=True))
        return owners, cells, starts, stops

    def _by_index(
        self, owners: np.ndarray, cells: np.ndarray
    ) -> Iterator[tuple[WritableIndex, np.ndarray]]:
        """Cells of several indexes, whose numbers are `owners`: those of each index."""
        for number, index in enumerate(self.indexes.values()):
            of_index = cells[owners == number]
            if len(of_index):
                yield index, of_index

    def resize(self, limit: int) -> None:
        """Have the slab take what the limit leaves beside files; what is too much is evicted."""
        self.limit = limit
        self._remove_closed(limit // CLOSED_SHARE)
        room = max(0, limit - self.file_bytes)
        n_bytes = room - room // 256  # what the file system takes to note where blocks are
        n_bytes -= n_bytes % BLOCK
        for job in self.jobs:
            _, stops = job.index.slots(job.cells)
            job.is_void |= bool((stops > n_bytes).any())
        owners, cells, _, stops = self.slots_taken()
        is_beyond = stops > n_bytes
        for index, beyond in self._by_index(owners[is_beyond], cells[is_beyond]):
            self._evict(index, beyond[~index.is_coming[beyond]])
        _, _, starts, stops = self.slots_taken()
        self.slab.resize(n_bytes, starts, stops)

    def _remove_closed(self, most: int) -> None:
        """Remove the oldest stores that nobody reads, until the files of those take no more."""
        closed = [item for item in self.indexes.items() if not item[1].is_open]
        total = sum(index.file_bytes for _, index in closed)
        for folder, index in closed:
            if total > most and not index.is_coming.any():
                total -= index.file_bytes
                self._evict(self.indexes.pop(folder), np.flatnonzero(index.words))
                shutil.rmtree(folder, ignore_errors=True)

    def open_store(self, store: FetchedStore) -> None:
        """Give a store its index, with what is here of it, and have room for its files.

        It takes over what other states of the store have, once they have no reader.
        """
        n_cells = sum(map(len, store.cells.values()))
        index = self.indexes.pop(store.folder, None)
        is_lost = index is not None and (len(index.words) != n_cells or not index.path.exists())
        if index is not None and is_lost and not index.is_coming.any():
            self._evict(index, np.flatnonzero(index.words))
            index = None
        store.index = index or WritableIndex(store.folder / INDEX_FILE, n_cells)
        if index is None:
            for folder, other in list(self.indexes.items()):
                if not other.is_open:
                    _take_over(store, folder, other)
        self.indexes[store.folder] = store.index
        store.index.is_open = True
        store.index.file_bytes = store.fixed_bytes
        self.resize(self.limit)

    def close_store(self, store: FetchedStore, others: Collection[FetchedStore]) -> None:
        """Nobody reads a store any more: its chunks go to others that are states of it, or else
        are evicted before those of others."""
        store.index.is_open = False
        for other in others:
            _take_over(other, store.folder, store.index)

    def take(
        self, column: FetchedColumn, cells: np.ndarray, past: float, needed_after: float = -1.0
    ) -> list[Job] | None:
        """Jobs that bring cells of open shards, which are coming, and have slots, from now on.

        What was announced for before `past` has been read. Chunks are evicted for them only if they
        are needed after `needed_after`. None: there is no room for all.
        """
        index = column.store.index
        sizes = column.sizes(cells)
        self._evict(index, index.replaced(cells, sizes))
        new = cells[index.words[cells] == 0]
        index.sizes[cells] = sizes
        jobs = [*column.jobs(new, is_left=False)]
        if jobs:
            new = np.concatenate([job.cells for job in jobs])
        index.is_coming[cells] = True
        found = self._room(index.slot_bytes(new), past, needed_after)
        if found is None:
            index.is_coming[cells] = False
            return None
        jobs += column.jobs(cells[index.words[cells] != 0], is_left=True)
        index.take(new, np.array(found, np.int64))
        self.jobs |= {*jobs}
        return jobs

    def settle(self, job: Job, tick: int) -> None:
        """The chunks of a job that came are there; the others are not any more."""
        self.jobs.remove(job)
        is_right = job.is_right & (not job.is_void)
        job.index.settle(job.cells, is_right, tick)
        self._give_back(job.index, job.cells[~is_right])

    def _room(self, sizes: np.ndarray, past: float, needed_after: float) -> list[int] | None:
        """Slots of these sizes; others are evicted for them, but only if they are needed later."""
        while (found := self.slab.take(sizes.tolist())) is None:
            least = int(sizes.sum()) - self.slab.free_bytes
            if not self._make_room(least, past, needed_after):
                return None
        return found

    def _make_room(self, least: int, past: float, needed_after: float) -> bool:
        """Evict what is needed last, so many bytes or more; whether there was any, and enough."""
        found = [index.evictable(past, needed_after) for index in self.indexes.values()]
        if not found:
            return False
        cells, uses, taken = map(np.concatenate, zip(*found, strict=True))
        if not len(cells) or taken.sum() < least:
            return False
        owners = np.repeat(np.arange(len(found)), [len(part) for part, *_ in found])
        victims = choose_victims(uses, taken, max(least, self.limit // EVICT_SHARE))
        for index, gone in self._by_index(owners[victims], cells[victims]):
            self._evict(index, gone)
        return True

    def _evict(self, index: WritableIndex, cells: np.ndarray) -> None:
        self.evicted_bytes += int(index.sizes[cells].sum())
        self._give_back(index, cells)

    def _give_back(self, index: WritableIndex, cells: np.ndarray) -> None:
        """Give back the slots of chunks: readers see it before others take them."""
        starts, stops = index.slots(cells)
        index.clear(cells)
        self.slab.give_back(starts, stops)


def choose_victims(next_use: np.ndarray, n_bytes: np.ndarray, wanted: int) -> np.ndarray:
    """The chunks to evict, so that `wanted` bytes are free: indices, int64.

    `next_use` is when each is needed next, float64 `(n,)`, `n_bytes` what it takes, int64 `(n,)`.
    They are the fewest of those needed last; all, if it is not enough.
    """
    order = np.argsort(-next_use, kind="stable")
    total = np.cumsum(n_bytes[order])
    return order[: int(np.searchsorted(total, wanted)) + 1]


def _take_over(store: FetchedStore, folder: Path, other: WritableIndex) -> None:
    """Give a store the chunks of a closed one in a folder, if that is a state of it."""
    # a state that has grown has all shards of the state before, and more
    for path, theirs in store.cells_of_state(folder).items():
        cells = store.cells.get(path, range(0))
        store.index.adopt(other, cells.start, theirs[: len(cells)])
