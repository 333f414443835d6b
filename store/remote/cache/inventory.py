"""What is in a cache directory, and where: stores, their indexes, and the slots of their chunks.

Nothing here waits or has a lock. A slot is taken before its chunk is fetched, and all slots and
files together are never more than the limit allows.
"""

import shutil
from pathlib import Path

import numpy as np

from store.remote.cache.cached_column import CachedColumn, Cut, Job
from store.remote.cache.cached_store import INDEX_DIR, CachedStore, is_state_of
from store.remote.cache.chunk_index import WritableIndex, positions_of
from store.remote.cache.eviction import NO_READER, choose_victims
from store.remote.cache.fetcher_client import SLAB_FILE, STORES_DIR
from store.remote.cache.slab import BLOCK, Slab, slots

__all__ = ["BASE_BYTES", "Inventory"]

BASE_BYTES = 64 * 1024  # of the directory's own files
EVICT_SHARE = 32  # at least so much of the limit is evicted in one go
CLOSED_SHARE = 8  # files of stores that no reader has open take no more of the limit


class Inventory:
    """The stores of a cache directory, which may take `limit` bytes, and their chunks.

    `indexes` are those of columns, by their files; `folders` has the bytes of the files of each
    store, the oldest first.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self.evicted_bytes = 0
        self.indexes: dict[Path, WritableIndex] = {}
        self.folders: dict[Path, int] = {}
        self._open_folders: set[Path] = set()
        self._jobs: set[Job] = set()  # that have slots
        self.slab = Slab(directory / SLAB_FILE)
        self._adopt()

    @property
    def used_bytes(self) -> int:
        """Of files, and of slots that are taken."""
        files = BASE_BYTES + sum(self.folders.values())
        return files + self.slab.n_bytes - self.slab.free_bytes

    def _adopt(self) -> None:
        """Count what earlier processes have left, before anything is written."""
        stores = self.directory / STORES_DIR
        stores.mkdir(exist_ok=True)
        for folder in sorted(stores.iterdir(), key=lambda path: path.stat().st_mtime):
            for file in sorted((folder / INDEX_DIR).glob("*")):
                if file.suffix == ".new":
                    file.unlink(missing_ok=True)  # it may have got the name of the one before
                else:
                    self.indexes[file] = WritableIndex(file)
            files = (path for path in folder.rglob("*") if path.is_file())
            self.folders[folder] = sum(path.stat().st_blocks * 512 for path in files)
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
        for number, index in enumerate(self.indexes.values()):
            index.clear(cells[wrong[owners[wrong] == number]])

    def slots_taken(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All slots that are taken: the number of its index, cell, start and stop of each.

        Those of jobs have the number -1.
        """
        parts = [(np.empty(0, np.int64),) * 4]
        for number, index in enumerate(self.indexes.values()):
            cells = np.flatnonzero((index.words != 0) & ~index.is_coming)
            starts = positions_of(index.words[cells])
            parts.append((np.full(len(cells), number), cells, starts, starts + index.slots(cells)))
        parts += [(np.full(len(job.cells), -1), job.cells, *_slots_of(job)) for job in self._jobs]
        owners, cells, starts, stops = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return owners, cells, starts, stops

    def resize(self, limit: int) -> None:
        """Have the slab take what the limit leaves beside files; what is too much is evicted."""
        self.limit = limit
        closed = [folder for folder in self.folders if folder not in self._open_folders]
        for folder in closed:
            if sum(map(self.folders.__getitem__, closed)) * CLOSED_SHARE <= self.limit:
                break
            self._remove(folder)
            closed = closed[1:]
        files = BASE_BYTES + sum(self.folders.values())
        room = max(0, self.limit - files)
        n_bytes = room - room // 256  # what the file system takes to note where blocks are
        n_bytes -= n_bytes % BLOCK
        owners, cells, _, stops = self.slots_taken()
        is_beyond = stops > n_bytes
        for number, index in enumerate(self.indexes.values()):
            beyond = cells[is_beyond & (owners == number)]
            self._count_evicted(index, beyond)
            index.clear(beyond)
        for job in self._jobs:
            job.is_void |= bool((_slots_of(job)[1] > n_bytes).any())
        _, _, starts, stops = self.slots_taken()
        self.slab.resize(n_bytes, starts, stops)

    def _remove(self, folder: Path) -> None:
        """Remove a store that nobody reads."""
        for file in [file for file in self.indexes if folder in file.parents]:
            self._forget(self.indexes.pop(file))
        shutil.rmtree(folder, ignore_errors=True)
        del self.folders[folder]

    def _forget(self, index: WritableIndex) -> None:
        """Evict what an index has, and what is coming."""
        self.evict(index, index.movable())
        index.forget()
        for job in self._jobs:
            job.is_void |= job.column.index is index

    def open_store(self, store: CachedStore) -> None:
        """Keep the files of a store, and have room for them."""
        self._open_folders.add(store.folder)
        self.folders.pop(store.folder, None)
        self.folders[store.folder] = store.fixed_bytes
        self.resize(self.limit)

    def close_store(self, folder: Path) -> None:
        """Have the chunks of a store without readers be evicted before others."""
        self._open_folders.discard(folder)
        for file, index in self.indexes.items():
            if folder in file.parents:
                index.is_open = False

    def open_column(self, store: CachedStore, path: str, n: int) -> WritableIndex:
        """The index of a column, with what is here of it."""
        file = store.folder / INDEX_DIR / path
        index = self.indexes.get(file)
        if index is None or len(index.words) != max(1, n) or not file.exists():
            if index is not None:
                self._forget(index)
            index = self.indexes[file] = WritableIndex(file, n)
            self._take_over(store, path, index)
        index.is_open = True
        return index

    def _take_over(self, store: CachedStore, path: str, index: WritableIndex) -> None:
        """Take over what other states of the store have of a column, if they have no reader.

        A state that has grown has all shards of the state before, and more. Chunks that are taken
        over are compared with their checksums before they are read, like all that an earlier
        process has left here.
        """
        for folder in [one for one in self.folders if one not in self._open_folders]:
            other = self.indexes.get(folder / INDEX_DIR / path)
            if other is not None and is_state_of(folder, store.folder, store.manifest.uuid):
                cells = other.movable()
                cells = cells[cells < len(index.words)]
                index.adopt(other, cells[index.words[cells] == 0])

    def take(
        self, column: CachedColumn, cuts: list[Cut], past: float, needed_after: float
    ) -> list[Job] | None:
        """Jobs that bring chunks (see `CachedColumn.cut`), whose slots are theirs from now on.

        What was announced for before `past` has been read. Chunks are evicted for them only if they
        are needed after `needed_after`. None: there is no room for all.
        """
        index = column.index
        cells = np.concatenate([part.cells for part in cuts])
        sizes = np.concatenate([part.sizes for part in cuts])
        is_of_another_state = (index.words[cells] != 0) & (index.sizes[cells] != sizes)
        self.evict(index, cells[is_of_another_state])
        is_new = index.words[cells] == 0
        index.is_coming[cells] = True
        found = self._room(slots(sizes[is_new]), past, needed_after)
        if found is None:
            index.is_coming[cells] = False
            return None
        index.sizes[cells] = sizes
        positions = positions_of(index.words[cells])
        positions[is_new] = found
        ends = np.cumsum([len(part.cells) for part in cuts])
        slots_of_cuts = np.split(positions, ends[:-1])
        jobs = [Job(column, *both) for both in zip(cuts, slots_of_cuts, strict=True)]
        self._jobs |= {*jobs}
        return jobs

    def settle(self, job: Job, tick: int) -> None:
        """The chunks of a job that came are there; the others are not any more."""
        self._jobs.remove(job)
        index = job.column.index
        index.is_coming[job.cells] = False
        is_gone = job.is_missing | job.is_void
        index.publish(job.cells[~is_gone], job.positions[~is_gone], tick)
        if is_gone.any():
            gone = job.cells[is_gone]
            index.clear(gone)
            self.slab.give_back(job.positions[is_gone], index.slots(gone))

    def _room(self, sizes: np.ndarray, past: float, needed_after: float) -> list[int] | None:
        """Slots of these sizes; others are evicted for them, but only if they are needed later."""
        wanted = sizes.tolist()
        total = sum(wanted)
        while True:
            found = self.slab.take(wanted)
            if found is not None:
                return found
            missing = max(total - self.slab.free_bytes, self.limit // EVICT_SHARE)
            if not self._evict(missing, total - self.slab.free_bytes, past, needed_after):
                return None

    def _evict(self, wanted: int, least: int, past: float, needed_after: float) -> bool:
        """Evict so many bytes, of those that are needed last; whether that was any, and enough."""
        indexes = list(self.indexes.values())
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for index in indexes:
            cells = index.movable()
            uses = np.full(len(cells), NO_READER)
            if index.is_open:
                uses = index.times.order(cells, past)
            chosen = uses > needed_after
            found.append((cells[chosen], uses[chosen]))
        if not found:
            return False
        cells, uses = (np.concatenate(parts) for parts in zip(*found, strict=True))
        owners = np.repeat(np.arange(len(found)), [len(cells) for cells, _ in found])
        taken = np.concatenate(
            [i.slots(cells) for i, (cells, _) in zip(indexes, found, strict=True)]
        )
        if not len(cells) or taken.sum() < least:
            return False
        victims = choose_victims(uses, taken, wanted)
        for number in np.unique(owners[victims]).tolist():
            self.evict(indexes[number], cells[victims[owners[victims] == number]])
        return True

    def evict(self, index: WritableIndex, cells: np.ndarray) -> None:
        """Evict chunks: readers see it before their slots are taken by others."""
        self._count_evicted(index, cells)
        self.slab.give_back(index.clear(cells), index.slots(cells))

    def _count_evicted(self, index: WritableIndex, cells: np.ndarray) -> None:
        self.evicted_bytes += int(index.sizes[cells].sum())


def _slots_of(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Where the slots of a job begin and end, int64 `(n,)`."""
    return job.positions, job.positions + job.column.index.slots(job.cells)
