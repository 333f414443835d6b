"""`TraceLoader`: packed batches of a store in a known order, read ahead by threads.

The order is that of `order.py`; threads change when a batch is read, never which rows it holds nor
the order of delivery. The position counts rows delivered, so a loader resumes exactly, with any
batch size, number of threads or ranks.
"""

import hashlib
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from store.errors import CorruptError
from store.feed.cache_room import kept_fraction
from store.feed.cold_batches import ColdBatches
from store.feed.located_batches import LocatedBatches
from store.feed.order import Batches, EpochOrder, n_batches, rank_positions
from store.feed.prefetch import Readahead, row_bytes
from store.feed.visit_times import VisitTimes
from store.feed.windows import batches_together, cut_batches, is_held, plan_windows
from store.format.values import is_integer
from store.memory_limits import read_memory
from store.read.array import ReadOptions, Schedule
from store.read.batch import Batch
from store.read.plan import Select
from store.read.store import LocatedRows, TraceStore

__all__ = ["TraceLoader"]

PREFETCH_FACTOR = 2  # batches read ahead for each thread
# with more rows the cache evicts the least recently used: 16 bytes a row would be too much
MAX_TIMED_ROWS = 10_000_000
MAX_EPOCH = 2**29  # visits are counted over all epochs, exactly in float64


class TraceLoader:
    """Iterate over packed batches, one epoch an iteration.

    A completed iteration moves on to the next epoch, so that a plain loop never repeats an order;
    `set_epoch` chooses the epoch.

    Parameters
    ----------
    store
        Path or address of a store, or an open one; `loader.store.mirror.stats()` counts what came
        from an address.
    columns
        Names to read; all if None.
    batch_size
        Rows a batch; the last one may be smaller unless `drop_last`.
    shuffle
        Visit the rows in a global random order, different in each epoch; else in the order of
        `rows`.
    seed
        Same seed, same orders.
    rows
        Row numbers to visit, for example of a split; all rows if None.
    num_workers
        Threads that read ahead; 0 reads each batch on demand, with all cores if it is large.
    drop_last
        Leave out a last batch that is not full.
    select
        Slices of item axes, see `TraceStore.read`.
    cache_bytes
        Decoded chunks of compressed columns to keep, see `TraceStore.open`;
        `loader.store.cache.stats` counts hits and misses. Shuffled batches of small compressed rows
        are read many at once, in no more than as much memory again.
    prefetch_bytes
        How far ahead of the batches data that is not in memory is asked for, and how much the
        threads read ahead; 0 asks for nothing. Long rows of raw columns are read ahead from their
        files, past the page cache if it cannot hold what an epoch reads.
    pin_memory
        Read into page-locked memory, for asynchronous copies to a GPU; no effect without CUDA.
    rank, world_size
        This process and how many there are; each delivers its share of the one global order.
    """

    def __init__(
        self,
        store: str | Path | TraceStore,
        columns: Sequence[str] | None = None,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        *,
        rows: Sequence[int] | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        select: Select | None = None,
        cache_bytes: int | None = None,
        prefetch_bytes: int = 128 * 1024 * 1024,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch_bytes", prefetch_bytes, 0),
            ("seed", seed, 0),
        ):
            if not is_integer(value) or value < least:
                raise ValueError(f"{name}: expected an integer of {least} or more, found {value!r}")
        self.store = TraceStore.open(store, cache_bytes)
        self.prefetch_bytes = prefetch_bytes
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.rank = rank
        self.world_size = world_size
        self._rows = None if rows is None else self.store.check_rows(rows)
        self._n = len(self.store if self._rows is None else self._rows)
        self._move_to(0, 0)
        rank_positions(self._n, 0, rank, world_size)  # refuses a rank that is out of range
        self._plan = self.store.plan(columns, select)  # a wrong name fails here, not in a thread

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._n_batches(0, self.rank)

    def _n_batches(self, start: int, rank: int) -> int:
        n_rows = len(rank_positions(self._n, start, rank, self.world_size))
        return n_batches(n_rows, self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; that of a loaded state keeps its position."""
        if not is_integer(epoch) or not 0 <= epoch <= MAX_EPOCH:
            raise ValueError(f"epoch: expected an integer from 0 to {MAX_EPOCH}, found {epoch!r}")
        if epoch != self.epoch:
            self._move_to(epoch, 0)

    def _move_to(self, epoch: int, position: int) -> None:
        # where the next iteration begins
        self.epoch = epoch
        self._start = position
        # what a state records: the epoch, and the rows of it that all ranks together have delivered
        self._delivered = (epoch, position)

    def state_dict(self) -> dict[str, int | str]:
        """Return the position for `load_state_dict`: JSON, equal on all ranks after a step."""
        epoch, position = self._delivered
        return {"epoch": epoch, "position": position} | self._identity()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another loader was: after the rows that it delivered.

        Batch size, threads and ranks may differ; store, rows, seed and shuffle may not.
        """
        for key, expected in self._identity().items():
            found = state.get(key)
            if found != expected:
                raise ValueError(f"state_dict: expected {key} {expected!r}, found {found!r}")
        for key, most in (("position", self._n), ("epoch", MAX_EPOCH)):
            value: Any = state.get(key)
            if not is_integer(value) or not 0 <= value <= most:
                raise ValueError(f"state_dict: expected {key} from 0 to {most}, found {value!r}")
        self._move_to(state["epoch"], state["position"])

    def _identity(self) -> dict[str, int | str]:
        """What must be equal for two loaders to visit the same global order."""
        rows = "all"
        if self._rows is not None:
            rows = hashlib.blake2b(self._rows.tobytes(), digest_size=8).hexdigest()
        return {
            "store": self.store.uuid,
            "n_rows": self._n,
            "rows": rows,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def _batches(self, epoch: int, start: int) -> Batches:
        """The batches of this rank in the rest of an epoch."""
        order = EpochOrder(self._n, self.seed, epoch, self.shuffle)
        positions = rank_positions(self._n, start, self.rank, self.world_size)
        return Batches(order, positions, self.batch_size, self.drop_last, self._rows)

    def _visit_times(self, batches: Batches) -> VisitTimes | None:
        """The schedule of the cache; None if it has no use or would cost too much memory."""
        cache_bytes = self.store.cache_bytes
        has_use = cache_bytes and not is_held(self.store, self._plan, cache_bytes)
        if not has_use or len(self.store) > MAX_TIMED_ROWS:
            return None
        rows = batches.visits()
        next_rows = self._batches(self.epoch + 1, 0).visits()
        end = (self.epoch + 1) * len(next_rows)
        return VisitTimes([(end - len(rows), rows), (end, next_rows)], len(self.store))

    def _schedule(self, epoch: int, start: int) -> Callable[[int, int], Schedule] | None:
        """When rows are read, counted over all ranks, for the mirror of a remote store."""
        if self.store.mirror is None:
            return None
        times = None
        if len(self.store) <= MAX_TIMED_ROWS:
            rows = self._all_visits(epoch, start)
            next_rows = self._all_visits(epoch + 1, 0)
            end = (epoch + 1) * self._n
            times = VisitTimes([(end - len(rows), rows), (end, next_rows)], len(self.store))
        first = epoch * self._n + start + self.rank
        n_bytes = row_bytes(self.store, self._plan)

        def schedule(n_done: int, visit: int) -> Schedule:
            before = self.rank + visit * self.world_size
            next_use = times.after(before, self.world_size) if times is not None else None
            now = first + n_done * self.world_size
            at = first + visit * self.world_size
            return Schedule(now, at, self.world_size, n_bytes, next_use)

        return schedule

    def _all_visits(self, epoch: int, start: int) -> np.ndarray:
        """The rows that all ranks together visit in the rest of an epoch, in order."""
        order = EpochOrder(self._n, self.seed, epoch, self.shuffle)
        return Batches(order, range(start, self._n), 1, False, self._rows).visits()

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        start = self._start
        self._start = 0
        self._delivered = (epoch, start)
        batches = self._batches(epoch, start)
        n_steps = self._n_batches(start, rank=0)  # no rank has more
        rows_per_step = self.batch_size * self.world_size
        times = self._visit_times(batches)
        schedule = self._schedule(epoch, start)
        n_together = self._batches_together()
        read = self._read_ahead(batches, times, schedule)
        if n_together > 1:
            read = self._read_windows(batches, times, schedule, n_together)
        for done, batch in enumerate(read, start=1):
            if done < n_steps:
                self._delivered = (epoch, start + done * rows_per_step)
            else:
                self._delivered = (epoch + 1, 0)
            if done == len(batches):  # before the last batch is out: more may never be asked for
                self.epoch += 1
            yield batch
        if not len(batches):
            self.epoch += 1
        self._delivered = (self.epoch, 0)

    def unread(self, rows: np.ndarray) -> np.ndarray:
        """Those of some rows, int64 `(n,)`, that are read from files: all of them.

        A subclass that keeps rows in memory leaves those out here and adds them in `read_located`.
        """
        return rows

    def read_located(self, located: LocatedRows, options: ReadOptions) -> Batch:
        """Read a batch of the epoch, in any of the threads; a subclass may change it."""
        return self.store.read_located(self._plan, located, options)

    def _read_ahead(
        self,
        batches: Batches,
        times: VisitTimes | None,
        schedule: Callable[[int, int], Schedule] | None,
    ) -> Iterator[Batch]:
        """Yield the batches in order, a bounded number read ahead; stop cleanly when abandoned."""
        readahead = Readahead(
            self.store, self._plan, batches, self.prefetch_bytes, self.unread, schedule
        )
        located = LocatedBatches(self.store, self._plan, batches)
        pool = ThreadPoolExecutor(self.num_workers or n_cores(), thread_name_prefix="store-loader")
        # two for each thread, or fewer large ones, but one for each
        n_ahead = min(PREFETCH_FACTOR * self.num_workers, readahead.n_in_budget)
        n_ahead = max(self.num_workers, n_ahead)
        cold = ColdBatches(readahead.n_in_budget, self._kept_fraction)
        options = self._read_options(pool)
        cold_options = options._replace(files=cold.files)

        def read(i: int) -> Batch:
            readahead.wait(i)
            timed = cold_options if readahead.is_from_files(i) else options
            if times is not None:
                timed = timed._replace(next_use=times.after(i * self.batch_size))
            batch = self.read_located(located[i], timed)
            # copies offsets alone: the values are in page-locked memory already
            return batch.pin_memory() if self.pin_memory else batch

        ahead: deque[Future[Batch]] = deque()
        # Not in `finally` alone: a generator that lives until the interpreter ends is closed too
        # late to stop threads.
        stop_pool = weakref.finalize(ahead, pool.shutdown, cancel_futures=True)
        stop_readahead = weakref.finalize(ahead, readahead.close)
        stop_cold = weakref.finalize(ahead, cold.close)
        try:
            for i in range(len(batches)):
                stop = min(i + max(n_ahead, cold.n_ahead), len(batches))
                for later in range(i + len(ahead), stop):
                    readahead.advance(later, i)
                    if readahead.is_from_files(later):
                        ahead.append(cold.submit(read, later))
                    elif later < i + n_ahead:
                        ahead.append(pool.submit(read, later))
                    else:
                        break
                readahead.advance(i)
                yield ahead.popleft().result() if ahead else read(i)
        finally:
            stop_pool()
            stop_readahead()
            stop_cold()

    @cached_property
    def _kept_fraction(self) -> float:
        """Of what the epochs read, what stays in the page cache: the same part in each."""
        return kept_fraction(row_bytes(self.store, self._plan) * self._n, read_memory().cacheable)

    def _locate(self, rows: np.ndarray) -> LocatedRows:
        """Where some rows, at least one, are."""
        (located,) = self.store.locate(self._plan, rows, len(rows))
        return located

    def _batches_together(self) -> int:
        """Batches a window; the windows in memory hold no more than the cache may."""
        if not self.shuffle:  # neighbours follow each other: the cache has their chunks
            return 1
        cache_bytes = self.store.cache_bytes
        max_bytes = min(cache_bytes, self.prefetch_bytes)
        if self.num_workers:  # one is delivered, one is read
            max_bytes //= 2
        return batches_together(self.store, self._plan, self.batch_size, max_bytes, cache_bytes)

    def _read_windows(
        self,
        batches: Batches,
        times: VisitTimes | None,
        schedule: Callable[[int, int], Schedule] | None,
        n_together: int,
    ) -> Iterator[Batch]:
        """Yield the batches in order, each cut from a window that all threads read at once.

        With workers, the next window is read while one is delivered.
        """
        readahead = Readahead(
            self.store, self._plan, batches, self.prefetch_bytes, self.unread, schedule
        )
        n_threads = self.num_workers or n_cores()
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="store-loader")
        reader = ThreadPoolExecutor(1, thread_name_prefix="store-window")
        apart = self._read_options(pool)
        together = self.store.recycled()._replace(share=partial(_share, pool, n_threads))

        def read(window: range) -> Iterator[Batch]:
            for i in window:
                readahead.wait(i)
            first = window.start * self.batch_size
            options = together
            if times is not None:
                options = options._replace(next_use=times.after(first))
            rows = batches.rows_of(window.start, window.stop)
            cut: Iterator[Batch]
            try:
                whole = self.read_located(self._locate(rows), options)
            except CorruptError:  # raised again in its turn, after the batches before the damage
                cut = (self.read_located(self._locate(batches[i]), apart) for i in window)
            else:
                cut = cut_batches(whole, self.batch_size, apart.empty)
            return (batch.pin_memory() for batch in cut) if self.pin_memory else cut

        ahead: deque[Future[Iterator[Batch]]] = deque()
        stop_pool = weakref.finalize(ahead, pool.shutdown, cancel_futures=True)
        stop_reader = weakref.finalize(ahead, reader.shutdown, cancel_futures=True)
        stop_readahead = weakref.finalize(ahead, readahead.close)
        try:
            for window in plan_windows(len(batches), n_together):
                for i in window:
                    readahead.advance(i, window.start)
                if not self.num_workers:
                    yield from read(window)
                    continue
                ahead.append(reader.submit(read, window))
                if len(ahead) == 2:
                    yield from ahead.popleft().result()
            for last in ahead:
                yield from last.result()
        finally:
            stop_pool()
            stop_reader()
            stop_readahead()

    def _read_options(self, pool: ThreadPoolExecutor) -> ReadOptions:
        """Where to read: into recycled or page-locked memory.

        Without workers, the cores share the work of one batch.
        """
        pinned = ReadOptions(_pinned, required=True)
        options = pinned if self.pin_memory else self.store.recycled()
        if self.num_workers:
            return options
        return options._replace(share=partial(_share, pool, n_cores()))


def n_cores() -> int:
    """Cores to read with: those of this process, at most 4, which saturate any memory."""
    return min(4, len(os.sched_getaffinity(0)))


def _share(pool: ThreadPoolExecutor, n: int, work: Callable[[list], None], items: list) -> None:
    """Do the work in `n` threads of a pool, and wait for them."""
    # neighbours stay together: they may share a chunk
    cuts = [len(items) * i // n for i in range(n + 1)]
    list(pool.map(work, [items[a:b] for a, b in pairwise(cuts)]))


def _pinned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Page-locked memory; torch's allocator recycles it, and waits for pending copies."""
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return memory.numpy().view(dtype).reshape(shape)
