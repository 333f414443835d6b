"""The accounts of a cache directory: what is there, who waits for what, and what is evicted.

All of it is in one process, under one lock. A chunk's slot is taken before the chunk is fetched,
and the slots together are never more than the limit allows. A request is admitted when there is
room for everything that it lacks, so no two readers wait for each other. What is announced is
fetched ahead, what is needed first before the rest; only chunks that are needed later are evicted
for it.
"""

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from store.errors import StoreError, UnreachableError
from store.remote.cached_column import CachedColumn, Job
from store.remote.cached_store import INDEX_DIR, CachedStore, is_state_of
from store.remote.chunk_index import WritableIndex, are_here, positions_of
from store.remote.faults import disk_fault
from store.remote.mirror import SLAB_FILE, STORES_DIR
from store.remote.slab import BLOCK, Slab, slots
from store.remote.wants import UNKNOWN, Want, Wants, choose_victims, next_uses, unknown_use

__all__ = ["BASE_BYTES", "Counts", "DiskCache", "Ticket"]

WAIT_S = 170.0  # of one request
LEASE_S = 2.0  # after which a reader has copied what it asked for; if not, it asks again
N_THREADS = 16
N_OPENERS = 16
BASE_BYTES = 64 * 1024  # of the directory's own files
PAST_SHARE = 1 / 32  # of the limit: so far readers may lie behind each other
EVICT_SHARE = 32  # at least so much of the limit is evicted in one go
CLOSED_SHARE = 8  # files of stores that nobody reads take no more of the limit


@dataclass
class Counts:
    """Since the process started.

    Attributes
    ----------
    hits, misses
        Chunks asked for that were there, and that were not.
    fetched_bytes, fetched_twice_bytes, evicted_bytes
        From the object store; those of them that had been here before; and what had to go.
    waits
        Requests that waited for room.
    used_bytes
        That the cache takes now.
    """

    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    fetched_twice_bytes: int = 0
    evicted_bytes: int = 0
    waits: int = 0
    used_bytes: int = 0


@dataclass(eq=False)
class Ticket:
    """A request: cells of a column that a reader will copy.

    Attributes
    ----------
    held_until
        When others may have their slots; 0: it is waiting.
    """

    column: CachedColumn
    cells: np.ndarray
    error: StoreError | None = None
    held_until: float = 0.0


class DiskCache:
    """Brings chunks into a cache directory, and evicts others.

    Parameters
    ----------
    directory
        The cache directory.
    limit
        Bytes that it may take.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self.counts = Counts()
        self.clock = 1.0  # of the announcements; 0 as a time: none
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # for who waits for chunks or room
        self._has_work = threading.Condition(lock)
        self._ticks = count(1)
        self._waiting: deque[Ticket] = deque()  # for room
        self._admitted: list[Ticket] = []  # waiting for their cells
        self._held: list[Ticket] = []  # being copied
        self._jobs: deque[Job] = deque()
        self._wants = Wants()
        self._may_have_room = True  # for what is announced; to look takes a while
        self._openers = ThreadPoolExecutor(N_OPENERS, thread_name_prefix="open-shards")
        self._is_over = False
        self.columns: list[CachedColumn] = []
        self.indexes: dict[Path, WritableIndex] = {}
        self.folders: dict[Path, int] = {}  # of stores -> bytes of their files, oldest first
        self._open_folders: set[Path] = set()
        self.slab = Slab(directory / SLAB_FILE)
        self._adopt()
        for _ in range(N_THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    def _adopt(self) -> None:
        """Count what earlier processes have left, before anything is written."""
        stores = self.directory / STORES_DIR
        stores.mkdir(exist_ok=True)
        for folder in sorted(stores.iterdir(), key=lambda path: path.stat().st_mtime):
            for file in sorted((folder / INDEX_DIR).glob("*")):
                if file.suffix == ".new":
                    file.unlink()
                else:
                    self.indexes[file] = WritableIndex(file)
            files = (path for path in folder.rglob("*") if path.is_file())
            self.folders[folder] = sum(path.stat().st_blocks * 512 for path in files)
        self._drop_overlaps()
        self._resize()

    def _drop_overlaps(self) -> None:
        """Forget chunks whose slots are another's as well, or beyond the file: a node went down."""
        owners, cells, starts, stops = self._slots()
        order = np.argsort(starts, kind="stable")
        ends = np.maximum.accumulate(stops[order])
        is_wrong = stops[order] > self.slab.file_bytes + BLOCK
        overlaps = starts[order][1:] < ends[:-1]
        is_wrong[1:] |= overlaps
        is_wrong[:-1] |= overlaps
        wrong = order[is_wrong]
        for number, index in enumerate(self.indexes.values()):
            index.clear(cells[wrong[owners[wrong] == number]])

    def _slots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All slots that are taken: the number of its index, cell, start and stop of each."""
        parts = [(np.empty(0, np.int64),) * 4]
        for number, index in enumerate(self.indexes.values()):
            some = np.flatnonzero((index.words > 0) | index.is_coming)
            starts = np.where(
                index.is_coming[some] & (index.words[some] == 0),
                index.coming_to[some],
                positions_of(index.words[some]),
            )
            sizes = slots(index.sizes[some].astype(np.int64))
            parts.append((np.full(len(some), number), some, starts, starts + sizes))
        owners, cells, starts, stops = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return owners, cells, starts, stops

    def close(self) -> None:
        """Have the threads end."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            self._has_work.notify_all()
        self._openers.shutdown(wait=False)

    def set_limit(self, limit: int) -> None:
        """Take another limit; what is too much goes at once."""
        with self._changed:
            self.limit = limit
            self._resize()
            self._tell_of_room()

    def _resize(self) -> None:
        """Have the slab take what the limit leaves beside files."""
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
        owners, cells, _, stops = self._slots()
        is_beyond = stops > n_bytes
        for number, index in enumerate(self.indexes.values()):
            beyond = cells[is_beyond & (owners == number)]
            beyond = beyond[~index.is_coming[beyond]]
            self._count_evicted(index, beyond)
            index.clear(beyond)
        _, _, starts, stops = self._slots()
        self.slab.resize(n_bytes, starts, stops)

    def _remove(self, folder: Path) -> None:
        """Remove a store that nobody reads."""
        for file in [file for file in self.indexes if folder in file.parents]:
            index = self.indexes[file]
            self._evict_cells(index, index.movable())
            self.indexes.pop(file).forget()
        shutil.rmtree(folder, ignore_errors=True)
        del self.folders[folder]

    def open_store(self, store: CachedStore) -> None:
        """Keep the files of a store; take over what nobody reads of its other states.

        A state that has grown has all shards of the state before, and more. Chunks that are taken
        over are compared with their checksums before they are read, like all that an earlier
        process has left here.
        """
        with self._changed:
            self._open_folders.add(store.folder)
            self.folders.pop(store.folder, None)
            self.folders[store.folder] = store.fixed_bytes()
            self._resize()
            self._tell_of_room()

    def close_store(self, store: CachedStore) -> None:
        """Have the chunks of a store that nobody reads go before others."""
        with self._changed:
            self._open_folders.discard(store.folder)
            self.columns = [column for column in self.columns if column.store is not store]
            for index in self._indexes_of(store.folder):
                index.is_open = False

    def _indexes_of(self, folder: Path) -> list[WritableIndex]:
        return [index for file, index in self.indexes.items() if folder in file.parents]

    def open_column(self, store: CachedStore, path: str, n: int) -> WritableIndex:
        """The index of a column, with what is here of it."""
        file = store.folder / INDEX_DIR / path
        with self._changed:
            index = self.indexes.get(file)
            if index is None or len(index.words) != max(1, n) or not file.exists():
                if index is not None:
                    self._evict_cells(index, index.movable())
                index = self.indexes[file] = WritableIndex(file, n)
                self._take_over(store, path, index)
            index.is_open = True
            return index

    def _take_over(self, store: CachedStore, path: str, index: WritableIndex) -> None:
        for folder in [one for one in self.folders if one not in self._open_folders]:
            other = self.indexes.get(folder / INDEX_DIR / path)
            if other is not None and is_state_of(folder, store.folder, store.manifest.uuid):
                some = other.movable()
                some = some[some < len(index.words)]
                index.adopt(other, some[index.words[some] == 0])

    def add_column(self, column: CachedColumn) -> None:
        """Count the chunks of a column."""
        with self._changed:
            self.columns.append(column)

    def need(self, column: CachedColumn, some: np.ndarray, *, is_announced: bool = False) -> Ticket:
        """Wait until some cells, int64 rising, are there; they stay for `LEASE_S` or to `release`.

        Parameters
        ----------
        is_announced
            What is read was announced, and counted in the times of that.

        Raises
        ------
        StoreError
            They cannot be fetched, or there is no room for them in time.
        """
        closed = [shard for shard in column.shards_of(some) if not column.is_open(shard)]
        list(self._openers.map(column.open_shard, closed))
        sizes = column.sizes(some)
        some = some[sizes > 0]
        n_bytes = int(sizes.sum())
        ticket = Ticket(column, some)
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            self.clock += 0 if is_announced else n_bytes
            n_here = int(are_here(column.index.words[some]).sum())
            self.counts.hits += n_here
            self.counts.misses += len(some) - n_here
            while True:
                self._wait_for_room(ticket, deadline, n_bytes)
                try:
                    self._wait_for_cells(ticket, deadline, n_bytes)
                except StoreError:
                    self._unpin(ticket)
                    raise
                if are_here(column.index.words[some]).all():
                    ticket.held_until = time.monotonic() + LEASE_S
                    self._held.append(ticket)
                    return ticket
                self._unpin(ticket)

    def _wait_for_cells(self, ticket: Ticket, deadline: float, n_bytes: int) -> None:
        """Return when none of the cells is being fetched; raises the error of one that was."""
        index = ticket.column.index
        self._admitted.append(ticket)
        try:
            while ticket.error is None and index.is_coming[ticket.cells].any():
                self._wait(deadline, n_bytes)
        finally:
            self._admitted.remove(ticket)
        if ticket.error is not None:
            raise ticket.error

    def _wait_for_room(self, ticket: Ticket, deadline: float, n_bytes: int) -> None:
        self._waiting.append(ticket)
        has_waited = False
        try:
            while self._waiting[0] is not ticket or not self._admit(ticket):
                self.counts.waits += not has_waited
                has_waited = True
                self._wait(deadline, n_bytes)
        finally:
            self._waiting.remove(ticket)
            self._tell_of_room()

    def _admit(self, ticket: Ticket) -> bool:
        """Pin the cells of a ticket and have those fetched that are not here, if there is room."""
        self._end_leases()
        column = ticket.column
        column.index.pins[ticket.cells] += 1
        jobs = self._take_slots(column, column.index.missing(ticket.cells))
        if jobs is None:
            column.index.pins[ticket.cells] -= 1
            return False
        self._jobs.extend(jobs)
        self._has_work.notify(len(jobs))
        return True

    def _take_slots(
        self, column: CachedColumn, missing: np.ndarray, needed_after: float = -1.0
    ) -> list[Job] | None:
        """Jobs that bring cells, which are coming from now on; None: there is no room for all."""
        index = column.index
        cut = column.cut(missing)
        if not cut:
            return []
        cells = np.concatenate([cells for _, cells, _ in cut])
        sizes = np.concatenate([sizes for _, _, sizes in cut])
        is_old = index.words[cells] > 0
        if (is_old & (index.sizes[cells] != sizes)).any():  # of another state of the store
            wrong = cells[is_old & (index.sizes[cells] != sizes)]
            self._evict_cells(index, wrong)
            is_old = index.words[cells] > 0
        index.is_coming[cells] = True
        new = cells[~is_old]
        found = self._room(slots(sizes[~is_old]), needed_after)
        if found is None:
            index.is_coming[cells] = False
            return None
        index.sizes[new] = sizes[~is_old]
        index.coming_to[new] = found
        positions = np.where(is_old, positions_of(index.words[cells]), 0)
        positions[~is_old] = found
        ends = np.cumsum([len(part) for _, part, _ in cut])
        return [
            Job(column, shard, part, positions[end - len(part) : end])
            for (shard, part, _), end in zip(cut, ends.tolist(), strict=True)
        ]

    def _room(self, sizes: np.ndarray, needed_after: float) -> list[int] | None:
        """Slots of these sizes; others are evicted for them, but only if they are needed later."""
        wanted = sizes.tolist()
        total = sum(wanted)
        while True:
            found = self.slab.take(wanted)
            if found is not None:
                return found
            missing = max(total - self.slab.free_bytes, self.limit // EVICT_SHARE)
            if not self._evict(missing, total - self.slab.free_bytes, needed_after):
                return None

    def _evict(self, wanted: int, least: int, needed_after: float) -> bool:
        """Evict so many bytes, of those that are needed last; whether that was any, and enough."""
        past = self.clock - PAST_SHARE * self.limit
        indexes = list(self.indexes.values())
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for index in indexes:
            some = index.movable()
            uses = np.full(len(some), 2 * UNKNOWN)
            if index.is_open:
                uses = next_uses(index.next_use[some], index.after[some], past)
            chosen = uses > needed_after
            found.append((some[chosen], uses[chosen]))
        if not found:
            return False
        cells, uses = (np.concatenate(parts) for parts in zip(*found, strict=True))
        owners = np.repeat(np.arange(len(found)), [len(some) for some, _ in found])
        taken = np.concatenate(
            [
                slots(i.sizes[some].astype(np.int64))
                for i, (some, _) in zip(indexes, found, strict=True)
            ]
        )
        if not len(cells) or taken.sum() < least:
            return False
        victims = choose_victims(uses, taken, wanted)
        for number in np.unique(owners[victims]).tolist():
            self._evict_cells(indexes[number], cells[victims[owners[victims] == number]])
        return True

    def _evict_cells(self, index: WritableIndex, some: np.ndarray) -> None:
        """Evict chunks: readers see it before their slots are taken by others."""
        self._count_evicted(index, some)
        positions, sizes = index.clear(some)
        self.slab.give_back(positions, slots(sizes))
        self._want_again(index, some)

    def _count_evicted(self, index: WritableIndex, some: np.ndarray) -> None:
        self.counts.evicted_bytes += int(index.sizes[some].sum())

    def _want_again(self, index: WritableIndex, some: np.ndarray) -> None:
        """Have chunks that were evicted fetched again before they are read.

        Not those that are needed after as many bytes as there is room for: they would be evicted
        again.
        """
        column = next((one for one in self.columns if one.index is index), None)
        if column is not None:
            use = index.next_use[some]
            is_soon = (use > self.clock) & (use < self.clock + self.limit)
            self._wants.push_shards(column, some[is_soon], use[is_soon], column.is_wanted)

    def _end_leases(self) -> None:
        """Let go of what readers have copied by now."""
        now = time.monotonic()
        for ticket in [one for one in self._held if one.held_until < now]:
            self._release(ticket)

    def release(self, ticket: Ticket) -> None:
        """A reader has copied its cells."""
        with self._changed:
            self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        if ticket not in self._held:
            return
        self._held.remove(ticket)
        index = ticket.column.index
        later = index.after[ticket.cells]
        last_used = unknown_use(next(self._ticks))
        index.next_use[ticket.cells] = np.where(later > 0, later, last_used)
        index.after[ticket.cells] = 0
        self._unpin(ticket)

    def _unpin(self, ticket: Ticket) -> None:
        ticket.column.index.pins[ticket.cells] -= 1
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        self._may_have_room = True
        self._changed.notify_all()
        if self._wants:
            self._has_work.notify()

    def start_clock(self, position: float) -> float:
        """What a reader adds to its own times, whose now is `position`, to have those of here."""
        with self._changed:
            return self.clock - position

    def want(
        self, column: CachedColumn, uses: np.ndarray, now: float, is_wanted: Callable[[], bool]
    ) -> None:
        """Announce cells; see `Wants.announce`. `now` is the time of the reader."""
        with self._changed:
            self.clock = max(self.clock, now)
            column.is_wanted = is_wanted
            self._wants.announce(column, uses, self.clock, is_wanted)
            self._may_have_room = True
            self._has_work.notify()

    def stats(self) -> Counts:
        """The counts now."""
        with self._changed:
            files = BASE_BYTES + sum(self.folders.values())
            self.counts.used_bytes = files + self.slab.n_bytes - self.slab.free_bytes
            return self.counts

    def _wait(self, deadline: float, n_bytes: int) -> None:
        """Wait for a change; raises StoreError in the end, which says for what."""
        if self._is_over:
            raise UnreachableError(
                f"{self.directory}: expected a fetching process, found that it is ending; "
                "open the store again"
            )
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"{self.directory}: expected room for {n_bytes:,} bytes within {WAIT_S:g} s, found "
                f"{self.slab.n_bytes - self.slab.free_bytes:,} of {self.slab.n_bytes:,} in use; "
                "give the cache more bytes"
            )
        self._changed.wait(0.5)

    def _work(self) -> None:
        """A thread's work: what readers wait for, then what is announced, the earliest first."""
        while True:
            with self._changed:
                work = self._next_work()
            if work is None:
                return
            work()

    def _next_work(self) -> Callable[[], None] | None:
        """What to do next, once there is something; None: the end."""
        while not self._is_over:
            if not self._jobs and self._may_have_room:
                opening = self._start_wants()
                if opening is not None:
                    return lambda: self._open_ahead(opening)
            if self._jobs:
                job = self._jobs.popleft()
                if self._jobs or (self._wants and self._may_have_room):
                    self._has_work.notify()
                return lambda: self._run(job)
            if not self._has_work.wait(1.0):  # chunks that are read without a request make room too
                self._may_have_room = True
        return None

    def _start_wants(self) -> Want | None:
        """Make jobs of what is announced and needed first; or return it, if its shard is closed."""
        while self._wants:
            want = self._wants.pop()
            if not want.is_wanted():
                continue
            if not want.column.is_open(want.shard):
                self._has_work.notify()
                return want
            missing = want.missing()
            if not len(missing):
                continue
            # what is evicted for them is needed later than all of them
            jobs = None
            if not self._waiting:
                jobs = self._take_slots(want.column, missing, float(want.uses.max()))
            if jobs is None:
                self._wants.push(want)
                self._may_have_room = False
            else:
                self._jobs.extend(jobs)
            return None
        return None

    def _open_ahead(self, want: Want) -> None:
        """Open the shard of what is announced."""
        with suppress(StoreError, OSError):  # the reader that needs it gets the error
            want.column.open_shard(want.shard)
            with self._changed:
                self._wants.push(want)
                self._has_work.notify()

    def _run(self, job: Job) -> None:
        """Fetch the cells of a job, which are coming, and have slots."""
        # whatever happens, the readers that wait are told
        error: StoreError | None = StoreError(
            f"{self.directory}: expected chunks, found a defect, which fetcher.log there shows"
        )
        fetched = again = 0
        try:
            fetched, again = job.column.fetch(job, self.slab)
            error = None
        except StoreError as found:
            error = found
        except OSError as found:
            error = disk_fault(self.directory, found)
        finally:
            self._settle(job, error, fetched, again)

    def _settle(self, job: Job, error: StoreError | None, fetched: int, again: int) -> None:
        """The cells of a job are there, or there was an error."""
        index = job.column.index
        with self._changed:
            self.counts.fetched_bytes += fetched
            self.counts.fetched_twice_bytes += again
            ends = job.positions + slots(index.sizes[job.cells].astype(np.int64))
            fits = ends <= self.slab.n_bytes  # it may have become smaller meanwhile
            if error is not None:
                fits[:] = False
                for ticket in self._admitted:
                    if ticket.column is job.column and np.isin(ticket.cells, job.cells).any():
                        ticket.error = error
            index.publish(job.cells[fits], job.positions[fits], next(self._ticks))
            gone = job.cells[~fits]
            index.clear(gone)
            index.is_coming[gone] = False
            self.slab.give_back(job.positions[~fits], (ends - job.positions)[~fits])
            if len(gone):
                self._tell_of_room()
            self._changed.notify_all()
