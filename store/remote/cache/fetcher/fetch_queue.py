"""The requests of readers to a cache directory: who waits for what, and what is fetched next.

All of it is in one event loop. A request is admitted when there is room for everything that it
lacks, so no two readers wait for each other. What is announced is fetched ahead, what is needed
first before the rest; only chunks that are needed later are evicted for it. What waits to be read
takes a bounded part of the cache: each chunk that comes too early has another evicted too early,
which then is fetched again.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from store.errors import StoreError, UnreachableError
from store.remote.cache.fetcher.fetched_column import FetchedColumn, Job
from store.remote.cache.fetcher.inventory import Inventory
from store.remote.cache.fetcher.use_times import Reader, Uses
from store.remote.objects.faults import disk_fault

__all__ = ["FetchQueue", "Ticket"]

WAIT_S = 170.0  # for room
LEASE_S = 2.0  # after which a reader has copied what it asked for; if not, it asks again
JOBS_AT_ONCE = 64
BYTES_AT_ONCE = 256 * 1024 * 1024
WANT_BYTES = 16 * 1024 * 1024  # that are fetched ahead together
# of the limit: a use is over so far behind the reader that announced it, and so far behind the one
# that is first: who stands still does not keep its chunks for ever
PAST_SHARE = 1 / 64
APART_SHARE = 1 / 2
# of the limit, for chunks that were fetched ahead and are not read yet: where none of those that
# are announced are here already, and where most are, which would go for them
AHEAD_SHARES = 0.75, 0.1
# chunks asked for that were there, and that were not; bytes of the object store, and those of them
# that had been here before
COUNTS = ("hits", "misses", "fetched_bytes", "fetched_twice_bytes")
MEMORY = 0.9  # of earlier announcements, in the share of what is here


@dataclass(eq=False)
class Ticket:
    """A request: cells of a column that a reader will copy; `came` once they are fetched."""

    column: FetchedColumn
    cells: np.ndarray
    is_announced: bool
    came: asyncio.Future[None] = field(init=False)


@dataclass(order=True)
class Want:
    """Uses that a reader announced, ordered by when the `first` is."""

    first: float
    column: FetchedColumn = field(compare=False)
    uses: Uses = field(compare=False)
    reader: Reader = field(compare=False)
    tie: int = field(default_factory=count().__next__)

    def missing(self) -> np.ndarray:
        """The cells that are not here, and needed when it was announced; their shards are open."""
        index = self.column.store.index
        cells = self.uses.cells
        # what was read meanwhile is needed later
        missing = index.missing(cells[index.times.next_use[cells] <= self.uses.when])
        return missing[self.column.sizes(missing) > 0]


class FetchQueue:
    """Brings chunks into a cache directory, for which its inventory evicts others."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.directory = inventory.directory
        self.counts = dict.fromkeys(COUNTS, 0)  # since the process started
        self.clock = 1.0  # of the announcements; 0 as a time: none
        self._offset = 0.0  # of the reader that joined last
        self._found_share = 0.0  # of the chunks that are announced, what is here already
        self._ticks = count(1)
        self._waiting: deque[Ticket] = deque()  # for room
        self._admitted: set[Ticket] = set()  # waiting for their cells
        self._held: set[Ticket] = set()  # being copied
        self._tasks: set[asyncio.Task[None]] = set()
        self._wants: list[Want] = []  # announced, and nothing was done about it yet: a heap
        self._may_have_room = True  # for what is announced; to look takes a while

    def look_again(self) -> None:
        """Fetch what is asked for, as far as there is room: there may be more than before."""
        self._may_have_room = True
        self._fetch_more()

    def _fetch_more(self) -> None:
        """Fetch what readers wait for, then what is announced, the earliest first."""
        while self._waiting and self._admit(self._waiting[0]):
            ticket = self._waiting.popleft()
            self._admitted.add(ticket)
            self._look_at(ticket)
        while self._wants and not self._waiting and self._may_have_room and self._has_time:
            self._start_want(heappop(self._wants))

    @property
    def _has_time(self) -> bool:
        """Whether more may be fetched at a time."""
        jobs = self.inventory.jobs
        return len(jobs) < JOBS_AT_ONCE and sum(job.n_bytes for job in jobs) < BYTES_AT_ONCE

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop alone would forget it
        task.add_done_callback(self._tasks.discard)

    def _begin(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._start(self._fetch(job))

    async def _fetch(self, job: Job) -> None:
        """Bring the chunks of a job; an error is that of the readers who wait for them."""
        error: StoreError | None = None
        try:
            await job.column.bring(job, self.inventory.slab)
        except StoreError as found:
            error = found
        except OSError as found:
            error = disk_fault(self.directory, found)
        except Exception as found:  # noqa: BLE001 - a defect
            traceback.print_exception(found)  # into fetcher.log
            error = StoreError(
                f"{self.directory}: expected chunks, found a defect, which fetcher.log there shows"
            )
        self.counts["fetched_bytes"] += job.n_fetched
        self.counts["fetched_twice_bytes"] += job.n_again
        self.inventory.settle(job, next(self._ticks))
        # also those of a store that was closed and opened again meanwhile
        of_store = [one for one in self._admitted if one.column.store.index is job.index]
        for ticket in of_store:
            if error is not None and np.isin(ticket.cells, job.missing).any():
                self._admitted.remove(ticket)
                ticket.came.set_exception(error)
            else:
                self._look_at(ticket)
        self._may_have_room |= job.is_void or not job.is_right.all()
        self._fetch_more()

    def _look_at(self, ticket: Ticket) -> None:
        """Tell who waits for cells if they are settled."""
        if not ticket.column.store.index.is_coming[ticket.cells].any():
            self._admitted.remove(ticket)
            ticket.came.set_result(None)

    async def need(
        self, column: FetchedColumn, cells: np.ndarray, *, is_announced: bool = False
    ) -> Ticket:
        """Wait until some cells, int64 rising, are there; they stay for `LEASE_S` or to `release`.

        What is read `is_announced` if its times count it. Raises StoreError if they cannot be
        fetched, or there is no room for them in time.
        """
        await asyncio.gather(*map(column.open_shard, column.closed_shards(cells)))
        sizes = column.sizes(cells)
        cells = cells[sizes > 0]
        ticket = Ticket(column, cells, is_announced)
        if not is_announced:
            self._move_clock(self.clock + int(sizes.sum()))
        index = column.store.index
        n_here = int(index.are_here(cells).sum())
        self.counts["hits"] += n_here
        self.counts["misses"] += len(cells) - n_here
        loop = asyncio.get_running_loop()
        while True:
            ticket.came = loop.create_future()
            self._waiting.append(ticket)
            self._fetch_more()
            await self._wait_for(ticket)
            if index.are_here(cells).all():
                break
            self._unpin(ticket)
        self._held.add(ticket)
        loop.call_later(LEASE_S, self.release, ticket)
        return ticket

    async def _wait_for(self, ticket: Ticket) -> None:
        """Wait until the cells of a ticket are settled; raises what kept one from coming."""
        while not (await asyncio.wait([ticket.came], timeout=WAIT_S))[0]:
            # what others wait for comes, or is given up
            if ticket in self._waiting and not self._admitted:
                self._waiting.remove(ticket)
                self.look_again()
                slab = self.inventory.slab
                raise UnreachableError(
                    f"{self.directory}: expected room for {len(ticket.cells)} chunks within "
                    f"{WAIT_S:g} s, found {slab.n_bytes - slab.free_bytes:,} of {slab.n_bytes:,} "
                    "bytes in use; give the cache more bytes"
                )
        try:
            ticket.came.result()
        except StoreError:
            self._unpin(ticket)
            raise

    def _admit(self, ticket: Ticket) -> bool:
        """Pin the cells of a ticket and have those fetched that are not here, if there is room."""
        index = ticket.column.store.index
        missing = index.missing(ticket.cells)
        if len(missing) and not self._has_time:
            return False
        index.pins[ticket.cells] += 1
        jobs = self.inventory.take(ticket.column, missing, self._past)
        if jobs is None:
            index.pins[ticket.cells] -= 1
            return False
        self._begin(jobs)
        return True

    def release(self, ticket: Ticket) -> None:
        """A reader has copied its cells, or had the time for it."""
        if ticket not in self._held:
            return
        self._held.remove(ticket)
        times = ticket.column.store.index.times
        tick = next(self._ticks)
        times.note_read(ticket.cells, self.clock, tick, is_announced=ticket.is_announced)
        self._unpin(ticket)

    def _unpin(self, ticket: Ticket) -> None:
        ticket.column.store.index.pins[ticket.cells] -= 1
        self.look_again()

    def join(self, position: float) -> Reader:
        """A reader whose own time is `position`, in step with those that are here.

        Its times are those of the reader before it where it seems to go on: what that said of later
        epochs holds.
        """
        if not self._past <= position + self._offset <= self.clock + self.inventory.limit:
            self._offset = self.clock - position
        return Reader(self._offset, position + self._offset)

    def want(self, column: FetchedColumn, uses: Uses, now: float, reader: Reader) -> None:
        """Have cells fetched that will be needed, by a reader whose own time is `now`.

        A reader that others have left far behind keeps step with them from now on.
        """
        if not len(uses.cells):
            return
        if self.clock - now - reader.offset > APART_SHARE / 2 * self.inventory.limit:
            reader.offset = self.clock - now
        reader.now = now + reader.offset
        uses = Uses(uses.cells, uses.when + reader.offset, uses.again + reader.offset)
        self._move_clock(reader.now)
        found = float(column.store.index.are_here(uses.cells).mean())
        self._found_share += (1 - MEMORY) * (found - self._found_share)
        column.store.index.times.announce(reader, uses, self.clock)
        uses = uses.in_order()
        most_bytes = min(WANT_BYTES, int(self._ahead_bytes / 8))
        n = max(1, most_bytes // column.layout.chunk_bytes)
        for first in range(0, len(uses.cells), n):
            part = uses.part(slice(first, first + n))
            heappush(self._wants, Want(float(part.when[0]), column, part, reader))
        self.look_again()

    @property
    def _past(self) -> float:
        """What any reader announced for before this is over."""
        return self.clock - APART_SHARE * self.inventory.limit

    def _past_of(self, reader: Reader) -> float:
        """What a reader announced for before this is over."""
        own = reader.now - PAST_SHARE * self.inventory.limit
        return max(own, self._past) if reader.is_alive else np.inf

    @property
    def _ahead_bytes(self) -> float:
        """What may be fetched ahead of readers."""
        most, least = AHEAD_SHARES
        return max(least, most * (1 - self._found_share) ** 3) * self.inventory.limit

    def _move_clock(self, now: float) -> None:
        """Note how far readers are, and which uses are over."""
        self.clock = max(self.clock, now)
        for index in self.inventory.open_indexes:
            index.times.end_before(self._past_of)

    def stats(self) -> dict[str, int]:
        """The counts, the bytes that had to go, and those that the cache takes now."""
        inventory = self.inventory
        used = {"evicted_bytes": inventory.evicted_bytes, "used_bytes": inventory.used_bytes}
        return self.counts | used

    def _start_want(self, want: Want) -> None:
        """Fetch what is announced, once its shards are open."""
        if not want.reader.is_alive:
            return
        closed = want.column.closed_shards(want.uses.cells)
        if closed:
            self._start(self._open_ahead(want, closed))
            return
        missing = want.missing()
        jobs = None
        n_ahead = sum(index.times.ahead_bytes for index in self.inventory.open_indexes)
        if n_ahead < self._ahead_bytes:
            # what is evicted for them is needed later than all of them
            last = float(want.uses.when.max())
            jobs = self.inventory.take(want.column, missing, self._past, last)
        if jobs is None:
            heappush(self._wants, want)
            self._may_have_room = False
        else:
            want.column.store.index.times.begin_ahead(missing)
            self._begin(jobs)

    async def _open_ahead(self, want: Want, shards: list[int]) -> None:
        """Open the shards of what is announced."""
        with suppress(StoreError, OSError):  # the reader that needs it gets the error
            await asyncio.gather(*map(want.column.open_shard, shards))
            heappush(self._wants, want)
            self._fetch_more()
