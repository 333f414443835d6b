"""The reads of one epoch: which batches are under way, in which threads, and with which options.

Batches come one by one, or, where rows are small, in windows. Threads change when a batch is read,
never which rows it holds nor the order of delivery.
"""

import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from store.errors import StoreError
from store.feed.cold_batches import ColdBatches
from store.feed.located_batches import LocatedBatches
from store.feed.order import Batches
from store.feed.prefetch import Readahead
from store.feed.shared_work import n_cores, share
from store.feed.visit_times import VisitTimes
from store.feed.windows import cut_batches, plan_windows
from store.read.batch import Batch
from store.read.batch_reads import LocatedRows
from store.read.plan import ReadPlan
from store.read.read_options import ReadOptions, Schedule
from store.read.store import TraceStore

__all__ = ["EpochReads"]

PREFETCH_FACTOR = 2  # batches read ahead for each thread


@dataclass(frozen=True)
class EpochReads:
    """What the reads of an epoch need.

    Attributes
    ----------
    store, plan, batches
        What is read, in order.
    read_located
        Reads the rows of a batch, in any of the threads.
    unread
        Rows -> those of them that are read from files.
    times, schedule
        When rows are needed again, for the cache of decoded chunks and for a mirror; None: not
        known.
    prefetch_bytes, num_workers, pin_memory
        See `TraceLoader`.
    kept_fraction
        See `ColdBatches`.
    """

    store: TraceStore
    plan: ReadPlan
    batches: Batches
    read_located: Callable[[LocatedRows, ReadOptions], Batch]
    unread: Callable[[np.ndarray], np.ndarray]
    times: VisitTimes | None
    schedule: Callable[[int, int], Schedule] | None
    prefetch_bytes: int
    num_workers: int
    pin_memory: bool
    kept_fraction: float

    def one_by_one(self) -> Iterator[Batch]:
        """Yield the batches in order, a bounded number read ahead; stop cleanly when abandoned."""
        batches = self.batches
        readahead = self._readahead()
        located = LocatedBatches(self.store, self.plan, batches)
        pool = self._pool()
        cold = ColdBatches(readahead.n_in_budget, self.kept_fraction)
        options = self._options(pool)
        cold_options = options._replace(files=cold.files)

        def read(i: int) -> Batch:
            readahead.wait(i)
            chosen = cold_options if readahead.is_from_files(i) else options
            batch = self.read_located(located[i], self._timed(chosen, i))
            # copies offsets alone: the values are in page-locked memory already
            return batch.pin_memory() if self.pin_memory else batch

        # two for each thread, or fewer large ones, but one for each
        n_ahead = min(PREFETCH_FACTOR * self.num_workers, readahead.n_in_budget)
        n_ahead = max(self.num_workers, n_ahead)
        ahead: deque[Future[Batch]] = deque()
        with _Closing(_shutdown(pool), readahead.close, cold.close):
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

    def in_windows(self, n_together: int, most_bytes: float) -> Iterator[Batch]:
        """Yield the batches in order, each cut from a window that all threads read at once.

        With workers, the next window is read while one is delivered. A window whose rows happen to
        have more than `most_bytes` is read batch by batch.
        """
        batches = self.batches
        readahead = self._readahead()
        pool = self._pool()
        reader = ThreadPoolExecutor(1, thread_name_prefix="store-window")
        shared = self._shared_by(pool)
        apart = self._options(pool)._replace(share=shared)
        together = self.store.reads.recycled()._replace(share=shared)

        def read(window: range) -> Iterator[Batch]:
            for i in window:
                readahead.wait(i)
            whole = None
            # an error is raised again in its turn, after the batches before that which has it
            with suppress(StoreError):
                located = self._locate(batches.rows_of(window.start, window.stop))
                if self.store.reads.n_bytes(self.plan, located) <= most_bytes:
                    whole = self.read_located(located, self._timed(together, window.start))
            cut: Iterator[Batch]
            if whole is None:
                cut = (
                    self.read_located(self._locate(batches[i]), self._timed(apart, i))
                    for i in window
                )
            else:
                cuts = [batches.first_visit(i) for i in (*window, window.stop)]
                cut = cut_batches(whole, [visit - cuts[0] for visit in cuts], apart)
            return (batch.pin_memory() for batch in cut) if self.pin_memory else cut

        ahead: deque[Future[Iterator[Batch]]] = deque()
        with _Closing(_shutdown(pool), _shutdown(reader), readahead.close):
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

    def _locate(self, rows: np.ndarray) -> LocatedRows:
        return self.store.reads.locate_batch(self.plan, rows)

    def _readahead(self) -> Readahead:
        return Readahead(
            self.store, self.plan, self.batches, self.prefetch_bytes, self.unread, self.schedule
        )

    @property
    def _n_threads(self) -> int:
        return self.num_workers or n_cores()

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._n_threads, thread_name_prefix="store-loader")

    def _shared_by(
        self, pool: ThreadPoolExecutor
    ) -> Callable[[Callable[[list], None], list], None]:
        return partial(share, pool, self._n_threads)

    def _options(self, pool: ThreadPoolExecutor) -> ReadOptions:
        """Where to read: into recycled or page-locked memory.

        Without workers, the cores share the work of one batch.
        """
        pinned = ReadOptions(_pinned, required=True)
        options = pinned if self.pin_memory else self.store.reads.recycled()
        return options if self.num_workers else options._replace(share=self._shared_by(pool))

    def _timed(self, options: ReadOptions, batch: int) -> ReadOptions:
        """The options of a read that begins with a batch."""
        if self.times is None:  # copying options costs as much as reading a small row
            return options
        return options._replace(next_use=self.times.after(self.batches.first_visit(batch)))


class _Closing:
    """Calls functions at the end of a block, or of the interpreter if that comes first.

    Not `finally` alone: a generator that lives until the interpreter ends is closed too late to
    stop threads. Not in a forked child, which has none of the threads to stop.
    """

    def __init__(self, *closes: Callable[[], None]) -> None:
        self._close = weakref.finalize(self, _call_all, os.getpid(), closes)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._close()


def _call_all(pid: int, functions: tuple[Callable[[], None], ...]) -> None:
    for function in functions if pid == os.getpid() else ():
        function()


def _shutdown(pool: ThreadPoolExecutor) -> Callable[[], None]:
    return partial(pool.shutdown, cancel_futures=True)


def _pinned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Page-locked memory; torch's allocator recycles it, and waits for pending copies."""
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return memory.numpy().view(dtype).reshape(shape)
