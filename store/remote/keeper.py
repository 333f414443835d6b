"""The accounts of a cache directory: what is there, who waits for what, and what has to go.

All of it is in one process, under one lock, and space is reserved before bytes are written: so the
directory never takes more than its limit. A request is admitted when there is room for everything
that it lacks, so no two readers wait for each other. What is announced is fetched ahead, what is
needed first before the rest; only chunks that are needed later go for it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from store.errors import StoreError, UnreachableError
from store.memory_limits import read_memory
from store.read.chunk_states import forget_all
from store.remote.chunk_fetch import fetch_chunks
from store.remote.eviction import UNKNOWN, unknown_use
from store.remote.faults import disk_fault
from store.remote.landing import Landing
from store.remote.mirrored_array import ABSENT, FETCHING, PRESENT, UNCHECKED, MirroredArray
from store.remote.mirrored_store import MirroredStore, is_state_of
from store.remote.moving import Mover
from store.remote.space import Space
from store.remote.tickets import Counts, Job, Ticket
from store.remote.wants import Want, Wants

__all__ = ["Keeper"]

WAIT_S = 170.0  # of one request
LEASE_S = 60.0  # after which what a reader holds may go: it looks at versions, and asks again
N_NEED_THREADS = 24
N_WANT_THREADS = 96
N_OPENERS = 16
LANDING_BYTES = 256 * 1024 * 1024
MEMORY_PART = 16  # of the free memory, less if that is less


class Keeper:
    """Brings chunks into a cache directory, and has others go.

    Parameters
    ----------
    mirrors
        Directory of the mirrors.
    limit
        Bytes that they may take.
    base_bytes
        What the cache directory takes beside them.
    """

    def __init__(self, mirrors: Path, limit: int, base_bytes: int = 0) -> None:
        self.mirrors = mirrors
        self.space = Space(mirrors, limit, base_bytes, self._want_again)
        self.counts = Counts()
        # one lock, and who waits for what: threads that nothing has come for are not woken
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._has_job = threading.Condition(lock)
        self._has_room = threading.Condition(lock)  # perhaps: for what is announced
        self._ticks = count(1)
        self._waiting: deque[Ticket] = deque()
        self._admitted: list[Ticket] = []  # waiting for their cells
        self._tickets: dict[int, Ticket] = {}  # being copied
        self._jobs: deque[Job] = deque()
        self._wants = Wants()
        self._gate = threading.Lock()  # one thread at a time looks for room for what is announced
        self.landing = Landing(min(LANDING_BYTES, read_memory().available // MEMORY_PART))
        self._mover = Mover(self.landing, self.space, self._changed, self._tell_of_room)
        self._openers = ThreadPoolExecutor(N_OPENERS, thread_name_prefix="open-shards")
        self._is_over = False
        for folder in mirrors.glob("*/states"):  # before anything is removed
            forget_all(folder)
        self.space.adopt()
        for target, n in ((self._fetch_needs, N_NEED_THREADS), (self._fetch_wants, N_WANT_THREADS)):
            for _ in range(n):
                threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        """Have the threads end."""
        with self._changed:
            self._is_over = True
            for condition in (self._changed, self._has_job, self._has_room):
                condition.notify_all()
        self._openers.shutdown(wait=False)
        self._mover.close()

    def set_limit(self, limit: int) -> None:
        """Take another limit; what is too much goes at once."""
        with self._changed:
            self.space.set_limit(limit)
            self._tell_of_room()

    def keep_file(self, path: Path) -> None:
        """Do not remove a file that is about to be read, and then counted by `open_files`."""
        with self._changed:
            self.space.free(self.space.open_file(path))

    def open_files(self, store: MirroredStore, paths: list[Path], n_bytes: int) -> None:
        """Reserve so many bytes for files of an open store; raises StoreError."""
        with self._changed:
            for path in paths:
                self.space.free(self.space.open_file(path))
            self._reserve(n_bytes)
            store.reserved_bytes += n_bytes

    def _reserve(self, n_bytes: int) -> None:
        """Make room for what stays; raises StoreError."""
        deadline = time.monotonic() + WAIT_S
        while not self.space.take(n_bytes):
            self._wait(deadline, n_bytes)

    def take_over(self, store: MirroredStore) -> None:
        """Move shards that nobody reads from the mirrors of a store's other states into its own.

        A state that has grown has all shards of the state before, and more. Chunks that were moved
        are compared with their checksums before they are read, like all that an earlier process
        has left here.
        """
        uuid = store.manifest.uuid
        shards = [Path("store") / path / "c" for path in store.column_paths()]
        for folder in self.mirrors.iterdir():
            if folder != store.folder and is_state_of(folder, store.folder, uuid):
                with self._changed:
                    self.space.move_closed(folder, store.folder, shards)

    def add_array(self, array: MirroredArray) -> None:
        """Keep the account of an array's chunks."""
        with self._changed:
            self.space.arrays.append(array)

    def open_shards(self, array: MirroredArray, some: np.ndarray) -> np.ndarray:
        """Open the shards of some cells; return those of the cells that have a chunk."""
        closed = [shard for shard in array.shards_of(some) if not array.is_open(shard)]
        list(self._openers.map(partial(self._open_shard, array), closed))
        return array.existing(some)

    def _open_shard(self, array: MirroredArray, shard: int) -> None:
        if array.is_open(shard):
            return
        path = array.store.root / array.layout.shard_path(shard)
        with self._changed:
            old_bytes = self.space.open_file(path)  # counted until it is known what is left
            array.n_opening += 1
        is_new = False
        is_reserved = False
        try:
            with self._changed:
                self._reserve(array.table_bytes)
            is_reserved = True
            is_new = array.open_shard(shard)
        finally:
            with self._changed:
                array.n_opening -= 1
                self.space.free(old_bytes)
                if not is_reserved:
                    self.space.close_files([path])
                if is_new:
                    self._count_left(array, shard)
                elif is_reserved:
                    self.space.free(array.table_bytes)
                self._tell_of_room()

    def _count_left(self, array: MirroredArray, shard: int) -> None:
        """Count the chunks that an earlier process has left in a shard."""
        first = shard * array.shard_cells
        here = np.arange(first, first + array.shard_cells)
        left = here[array.on_disk[here] & (array.status[here] == ABSENT)]
        array.status[left] = UNCHECKED
        array.in_file[left] = True
        array.next_use[left] = UNKNOWN
        self.space.used += int(array.n_bytes[left].sum())
        self.space.make_room(0, is_partial=True)

    def need(
        self,
        array: MirroredArray,
        some: np.ndarray,
        *,
        is_announced: bool = False,
        in_shards: bool = False,
    ) -> Ticket:
        """Wait until some cells, int64 rising, are there; they stay until `release`.

        Parameters
        ----------
        is_announced
            What is read was announced, and counted in the times of that.
        in_shards
            Whether all of them must be in their shards.

        Raises
        ------
        StoreError
            They cannot be fetched, or there is no room for them in time.
        OSError
            They cannot be written into their shards.
        """
        ticket = self._bring(array, some, is_announced)
        if in_shards:
            try:
                self._mover.move_ticket(ticket)
            except OSError:
                self.release(ticket)
                raise
        return ticket

    def _bring(self, array: MirroredArray, some: np.ndarray, is_announced: bool) -> Ticket:
        """As `need`, of cells that may be anywhere."""
        some = self.open_shards(array, some)
        ticket = Ticket(array, some, since=time.monotonic())
        deadline = ticket.since + WAIT_S
        n_bytes = int(array.n_bytes[some].sum())
        with self._changed:
            self.space.clock += 0 if is_announced else n_bytes
            there = array.status[some] == PRESENT
            self.counts.hits += int(there.sum())
            self.counts.misses += len(some) - int(there.sum())
            while True:
                self._wait_for_room(ticket, deadline, n_bytes)
                try:
                    self._wait_for_cells(ticket, deadline, n_bytes)
                except StoreError:
                    self._unpin(ticket)
                    raise
                if (array.status[some] == PRESENT).all():
                    ticket.since = time.monotonic()
                    self._tickets[id(ticket)] = ticket
                    return ticket
                self._unpin(ticket)

    def _wait_for_cells(self, ticket: Ticket, deadline: float, n_bytes: int) -> None:
        """Return when none of the cells is being fetched; raises the error of one that was."""
        self._admitted.append(ticket)
        try:
            while ticket.error is None and (ticket.array.status[ticket.cells] == FETCHING).any():
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
        array = ticket.array
        some = ticket.cells
        array.pins[some] += 1
        absent = some[array.status[some] == ABSENT]
        n_bytes = int(array.n_bytes[absent].sum())
        if not self.space.take(n_bytes):
            array.pins[some] -= 1
            self._end_leases()
            return False
        unchecked = some[array.status[some] == UNCHECKED]
        missing = np.concatenate([absent, unchecked])
        array.status[missing] = FETCHING
        for shard, cells in array.cut(missing):
            self._jobs.append(Job(array, shard, cells))
            self._has_job.notify()
        ticket.since = time.monotonic()
        self._changed.notify_all()
        return True

    def _end_leases(self) -> None:
        """Let go of what readers hold that seem to have stopped."""
        too_old = time.monotonic() - LEASE_S
        for ticket in [one for one in self._tickets.values() if one.since < too_old]:
            self._release(ticket)

    def release(self, ticket: Ticket) -> None:
        """A reader has copied its cells."""
        with self._changed:
            self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        if self._tickets.pop(id(ticket), None) is None:
            return
        array = ticket.array
        some = ticket.cells
        later = array.after[some]
        last_used = unknown_use(next(self._ticks))
        array.next_use[some] = np.where(later > 0, later, last_used)
        array.after[some] = 0
        self._unpin(ticket)

    def _unpin(self, ticket: Ticket) -> None:
        ticket.array.pins[ticket.cells] -= 1
        self._tell_of_room()

    def start_clock(self, position: float) -> float:
        """What a reader adds to its own times, whose now is `position`, to have those of here."""
        with self._changed:
            return self.space.clock - position

    def want(
        self, array: MirroredArray, uses: np.ndarray, now: float, is_wanted: Callable[[], bool]
    ) -> None:
        """Announce cells; see `Wants.announce`. `now` is the time of the reader."""
        with self._changed:
            self.space.clock = max(self.space.clock, now)
            self._wants.announce(array, uses, self.space.clock, is_wanted)
            self._has_room.notify_all()

    def _want_again(self, array: MirroredArray, some: np.ndarray) -> None:
        """What had to go is fetched again before it is read."""
        clock = self.space.clock
        self._wants.announce_again(array, some, clock, clock + self.space.limit)

    def _tell_of_room(self) -> None:
        self._changed.notify_all()
        self._has_room.notify_all()

    def stats(self) -> Counts:
        """The counts now."""
        with self._changed:
            self.counts.used_bytes = self.space.used
            self.counts.evicted_bytes = self.space.evicted
            return self.counts

    def _wait(self, deadline: float, n_bytes: int) -> None:
        """Wait for a change; raises StoreError in the end, which says for what."""
        if self._is_over:
            raise UnreachableError(
                f"{self.mirrors.parent}: expected a fetching process, found that it is ending; "
                "open the store again"
            )
        if time.monotonic() > deadline:
            held = sum(int(t.array.n_bytes[t.cells].sum()) for t in self._tickets.values())
            raise UnreachableError(
                f"{self.mirrors.parent}: expected room for {n_bytes:,} bytes within {WAIT_S:g} s, "
                f"found {self.space.used:,} of {self.space.limit:,} in use, {held:,} of them being "
                "copied; give the cache more bytes"
            )
        self._changed.wait(1.0)

    def _fetch_needs(self) -> None:
        """A thread's work: what readers wait for."""
        while True:
            with self._changed:
                while not self._jobs:
                    if self._is_over:
                        return
                    self._has_job.wait()
                job = self._jobs.popleft()
            self._run(job)

    def _fetch_wants(self) -> None:
        """A thread's work: what is announced, the earliest first."""
        while True:
            with self._gate, self._changed:
                work = self._next_work()
            if work is None:
                return
            for do in work:
                do()

    def _next_work(self) -> list[Callable[[], None]] | None:
        """What to do for what is announced and needed first, once there is room; None: the end.

        While there is none, something may be announced that is needed sooner.
        """
        while not self._is_over:
            if not self._wants:
                self._has_room.wait()
                continue
            want = self._wants.pop()
            if not want.is_wanted():
                continue
            if not want.array.is_open(want.shard):
                return [partial(self._open_ahead, want)]
            jobs = self._start_want(want)
            if jobs:
                return [partial(self._run, job) for job in jobs]
            if jobs is None:
                self._wants.push(want)
                # not for each chunk that comes: to look for room takes as long as to fetch one
                self._has_room.wait(1.0)
        return None

    def _open_ahead(self, want: Want) -> None:
        """Open the shard of what is announced."""
        with suppress(StoreError, OSError):  # the reader that needs it gets the error
            self._open_shard(want.array, want.shard)
            with self._changed:
                self._wants.push(want)
                self._has_room.notify_all()

    def _start_want(self, want: Want) -> list[Job] | None:
        """The jobs of what is announced: [] if it is not needed, None if there is no room."""
        array = want.array
        missing = want.missing()
        if not len(missing):
            return []
        absent = missing[array.status[missing] == ABSENT]
        n_bytes = int(array.n_bytes[absent].sum())
        # what goes for them is needed later than all of them
        if self._waiting or not self.space.take(n_bytes, float(want.uses.max())):
            return None
        array.status[missing] = FETCHING
        return [Job(array, shard, cells) for shard, cells in array.cut(missing)]

    def _run(self, job: Job) -> None:
        """Fetch the cells of a job, which are FETCHING, and have room."""
        array = job.array
        # whatever happens, the readers that wait are told
        error: StoreError | None = StoreError(
            f"{self.mirrors.parent}: expected chunks, found a defect, which fetcher.log there shows"
        )
        fetched = again = 0
        try:
            fetched, again = fetch_chunks(array, job.shard, job.cells)
            error = None
        except StoreError as found:
            error = found
        except OSError as found:
            error = disk_fault(self.mirrors.parent, found)
        finally:
            self._settle(job, error, fetched, again)

    def _settle(self, job: Job, error: StoreError | None, fetched: int, again: int) -> None:
        """The cells of a job are there, or there was an error."""
        array = job.array
        with self._changed:
            self.counts.fetched_bytes += fetched
            self.counts.fetched_twice_bytes += again
            if error is None:
                array.status[job.cells] = PRESENT
                array.arrive(job.cells)
                self._mover.last_arrival = time.monotonic()
            else:
                self._fail(job, error)
                self._has_room.notify_all()
            self._changed.notify_all()

    def _fail(self, job: Job, error: StoreError) -> None:
        array = job.array
        array.status[job.cells] = ABSENT
        array.on_disk[job.cells] = False
        array.empty(np.sort(job.cells))
        self.space.free(int(array.n_bytes[job.cells].sum()))
        for ticket in self._admitted:
            if ticket.array is array and np.isin(ticket.cells, job.cells).any():
                ticket.error = error

    def close_store(self, store: MirroredStore) -> bool:
        """Keep no account of a store's chunks; False if some are being fetched, copied or moved."""
        with self._changed:
            arrays = [array for array in self.space.arrays if array.store is store]
            busy = [
                array.n_opening
                or array.pins.any()
                or (array.status == FETCHING).any()
                or not self._mover.move_all_of(array)
                for array in arrays
            ]
            if any(busy):
                return False
            for array in arrays:
                array.states.forget()
                held = array.n_bytes[array.status != ABSENT].sum()
                self.space.free(int(held) + array.opened_bytes())
                self.space.arrays.remove(array)
            self.space.free(store.reserved_bytes)
            self.space.close_files([path for path in store.folder.rglob("*") if path.is_file()])
            return True
