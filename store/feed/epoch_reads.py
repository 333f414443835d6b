"""The reads of one epoch: which batches are under way, in which threads, and with which options.

Batches come one by one, or, where rows are small, in windows. Threads change when a batch is read,
never which rows it holds nor the order of delivery.
"""

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from store.errors import CorruptError, StoreError
from store.feed.cold_batches import ColdBatches
from store.feed.order import Batches
from store.feed.prefetch import Readahead
from store.feed.visit_times import VisitTimes
from store.feed.windows import cut_batches, plan_windows
from store.read.batch import Batch
from store.read.location import LocatedRows
from store.read.plan import ReadPlan
from store.read.read_options import ReadOptions, Schedule, Threads
from store.read.row_reader import RowReader
from store.read.store import TraceStore
from store.system import copy_threads

__all__ = ["EpochReads"]

PREFETCH_FACTOR = 2  # batches read ahead for each thread


WINDOW_ROWS = 4096


class LocatedBatches:
    """`located[i]` is where the rows of batch i are; in any order, from any thread."""

    def __init__(self, store: TraceStore, plan: ReadPlan, batches: Batches) -> None:
        self.store = store
        self.plan = plan
        self.batches = batches
        self._n = max(1, WINDOW_ROWS // batches.batch_size)  # batches found at once
        self._found: dict[int, LocatedRows] = {}
        self._lock = threading.Lock()

    def __getitem__(self, i: int) -> LocatedRows:
        """Where the rows of a batch are; asked for once. Raises CorruptError if its offsets are
        damaged."""
        found = self._found.pop(i, None)
        if found is None:
            with self._lock:
                found = self._found.pop(i, None) or self._find(i)
        return found

    def _find(self, i: int) -> LocatedRows:
        last = len(self.batches) - 1  # found alone, as the one before it may be shorter
        first = last if i == last else i // self._n * self._n
        stop = i + 1 if i == last else min(first + self._n, last)
        with suppress(CorruptError):  # perhaps of another batch, whose own read will raise it
            window = self._locate(first, stop)
            self._found.update(zip(range(first, stop), window, strict=True))
            return self._found.pop(i)
        return self._locate(i, i + 1)[0]

    def _locate(self, first: int, stop: int) -> list[LocatedRows]:
        size = self.batches.batch_size
        return self.store.reader.locate(self.plan, self.batches.rows_of(first, stop), size)


class Loader(Protocol):
    """What the reads of an epoch ask of a loader of rows or tokens."""

    store: TraceStore
    prefetch_bytes: int
    num_workers: int
    pin_memory: bool

    def unread(self, rows: np.ndarray) -> np.ndarray: ...

    def read_located(self, located: LocatedRows, options: ReadOptions) -> Batch: ...


@dataclass(frozen=True)
class EpochReads:
    """What the reads of an epoch need.

    `times` and `schedule` say when rows are needed again, to the cache of decoded chunks and to a
    mirror; None: not known.
    """

    loader: Loader
    plan: ReadPlan
    batches: Batches
    times: VisitTimes | None
    schedule: Callable[[int, int], Schedule] | None
    kept_fraction: float

    def one_by_one(self) -> Iterator[Batch]:
        """Yield the batches in order, a bounded number read ahead; stop cleanly when abandoned."""
        loader = self.loader
        batches = self.batches
        readahead = self._readahead()
        located = LocatedBatches(loader.store, self.plan, batches)
        pool = self._pool()
        cold = ColdBatches(readahead.n_in_budget, self.kept_fraction)
        options = self._options(pool)
        cold_options = options._replace(files=cold.files)

        def read(i: int) -> Batch:
            readahead.wait(i)
            chosen = cold_options if readahead.is_from_files(i) else options
            batch = loader.read_located(located[i], self._timed(chosen, i))
            # copies offsets alone: the values are in page-locked memory already
            return batch.pin_memory() if loader.pin_memory else batch

        # two for each thread, or fewer large ones, but one for each
        n_ahead = min(PREFETCH_FACTOR * loader.num_workers, readahead.n_in_budget)
        n_ahead = max(loader.num_workers, n_ahead)
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
        loader = self.loader
        batches = self.batches
        readahead = self._readahead()
        pool = self._pool()
        reader = ThreadPoolExecutor(1, thread_name_prefix="store-window")
        threads = Threads(pool, self._n_threads)
        apart = self._options(pool)._replace(threads=threads)
        together = self._reader.recycled()._replace(threads=threads)

        def read(window: range) -> Iterator[Batch]:
            for i in window:
                readahead.wait(i)
            whole = None
            # an error is raised again in its turn, after the batches before that which has it
            with suppress(StoreError):
                located = self._locate(batches.rows_of(window.start, window.stop))
                if self._reader.n_bytes(self.plan, located) <= most_bytes:
                    whole = loader.read_located(located, self._timed(together, window.start))
            cut: Iterator[Batch]
            if whole is None:
                cut = (
                    loader.read_located(self._locate(batches[i]), self._timed(apart, i))
                    for i in window
                )
            else:
                cuts = [batches.first_visit(i) for i in (*window, window.stop)]
                cut = cut_batches(whole, [visit - cuts[0] for visit in cuts], apart)
            return (batch.pin_memory() for batch in cut) if loader.pin_memory else cut

        ahead: deque[Future[Iterator[Batch]]] = deque()
        with _Closing(_shutdown(pool), _shutdown(reader), readahead.close):
            for window in plan_windows(len(batches), n_together):
                for i in window:
                    readahead.advance(i, window.start)
                if not loader.num_workers:
                    yield from read(window)
                    continue
                ahead.append(reader.submit(read, window))
                if len(ahead) == 2:
                    yield from ahead.popleft().result()
            for last in ahead:
                yield from last.result()

    def _locate(self, rows: np.ndarray) -> LocatedRows:
        return self._reader.locate_batch(self.plan, rows)

    def _readahead(self) -> Readahead:
        loader = self.loader
        return Readahead(
            loader.store,
            self.plan,
            self.batches,
            loader.prefetch_bytes,
            loader.unread,
            self.schedule,
        )

    @property
    def _reader(self) -> RowReader:
        return self.loader.store.reader

    @property
    def _n_threads(self) -> int:
        return self.loader.num_workers or copy_threads()

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._n_threads, thread_name_prefix="store-loader")

    def _options(self, pool: ThreadPoolExecutor) -> ReadOptions:
        """Where to read: into recycled or page-locked memory.

        Without workers, the cores share the work of one batch.
        """
        pinned = ReadOptions(_pinned, required=True)
        options = pinned if self.loader.pin_memory else self._reader.recycled()
        if self.loader.num_workers:
            return options
        return options._replace(threads=Threads(pool, self._n_threads))

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
    import torch

    n_bytes = math.prod(shape) * dtype.itemsize
    memory = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return memory.numpy().view(dtype).reshape(shape)
