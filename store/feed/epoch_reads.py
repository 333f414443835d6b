"""The reads of one epoch: which batches are under way, in which threads, and with which options.

Where rows are small, batches are read in windows of several. Threads change when a batch is read,
never which rows it holds nor the order of delivery.
"""

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Protocol
from zlib import crc32

import numpy as np

from store.errors import CorruptError, StoreError
from store.feed.order import Batches
from store.feed.prefetch import Readahead
from store.feed.windows import cut_batches, plan_windows
from store.read.arrays.file_reads import FileReads
from store.read.arrays.item_location import NextUse
from store.read.arrays.mapped_file import MappedFile
from store.read.arrays.read_options import ReadOptions, Schedule, Threads
from store.read.batches.batch import Batch
from store.read.plan import ReadPlan
from store.read.row_location import LocatedRows
from store.read.store import TraceStore
from store.system import copy_threads

__all__ = ["BatchReader", "EpochReads", "VisitTimes", "is_kept", "kept_fraction"]

PREFETCH_FACTOR = 2  # batches read ahead for each thread
MAX_COLD = 8  # batches that are read ahead from files
WINDOW_ROWS = 4096
# of the memory that is available: the rest is for batches and for other programs
CACHE_SHARE = 0.5


def kept_fraction(n_bytes: float, available: int) -> float:
    """The fraction of so many bytes, read in each epoch, that is to stay in the page cache.

    What fits into memory is read from the disk once. Of more, a cache that drops what was used
    longest ago keeps hardly anything under a shuffle until it comes again; so a part of the files
    is read through the page cache, the same in each epoch, and the others past it.
    """
    return min(1.0, CACHE_SHARE * available / max(1.0, n_bytes))


def is_kept(file: MappedFile, fraction: float) -> bool:
    """Whether a file is in this fraction of all files: by its name, so all processes agree."""
    return crc32(str(file.path).encode()) < fraction * 2**32


class VisitTimes:
    """When each row is visited in the rest of an epoch, `rows`, and in the whole one after it, so
    that the chunk cache evicts what is needed last (Belady).

    Both are int64 `(n_visits,)`, in the order of the visits. Time counts visits and never goes
    back, because the cache lives longer than an epoch.
    """

    def __init__(self, epoch: int, rows: np.ndarray, next_rows: np.ndarray, n_rows: int) -> None:
        end = (epoch + 1) * len(next_rows)
        self._start = end - len(rows)
        self._times = np.full((n_rows, 2), -1)
        self._times[rows, 0] = np.arange(self._start, end)
        self._times[next_rows, 1] = np.arange(end, end + len(next_rows))

    def after(self, n_visits: int, step: int = 1) -> NextUse:
        """Return the `NextUse` of a batch that comes after `n_visits` of this epoch.

        Its rows are `step` visits apart: other ranks make those between.
        """
        start = self._start + n_visits

        def next_use(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            n_rows = last - first + 1
            starts = np.cumsum(n_rows) - n_rows
            rows = np.arange(n_rows.sum()) + np.repeat(first - starts, n_rows)
            now = start + step * np.repeat(i, n_rows)
            times = self._times[rows].astype(float)
            times[times <= now[:, None]] = math.inf
            return np.minimum.reduceat(times.min(axis=1), starts)

        return next_use


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


BatchReader = Callable[[LocatedRows, ReadOptions], Batch]


class LoaderLike(Protocol):
    """What the reads of an epoch ask of a loader of rows or tokens."""

    store: TraceStore
    prefetch_bytes: int
    num_workers: int
    pin_memory: bool

    def unread(self, rows: np.ndarray) -> np.ndarray: ...

    def batch_reader(self) -> BatchReader: ...

    def count_seconds(self, seconds: float) -> None: ...


class EpochReads:
    """The reads of one epoch, in windows of up to `n_together` batches.

    A window of several is read by all threads at once, and then cut; one whose rows happen to have
    more than `most_bytes` is read batch by batch. `times` and `schedule` say when rows are needed
    again, to the cache of decoded chunks and to a mirror; None: not known. `kept_fraction` is that
    of the files which stay in the page cache.
    """

    def __init__(
        self,
        loader: LoaderLike,
        plan: ReadPlan,
        batches: Batches,
        times: VisitTimes | None,
        schedule: Callable[[int, int], Schedule] | None,
        kept_fraction: float,
        n_together: int,
        most_bytes: float,
    ) -> None:
        store = loader.store
        self.loader = loader
        self.plan = plan
        self.batches = batches
        self.times = times
        self.most_bytes = most_bytes
        self.rows = store.reader
        self.read_batch = loader.batch_reader()
        self.located = LocatedBatches(store, plan, batches)
        self.readahead = Readahead(
            store, plan, batches, loader.prefetch_bytes, loader.unread, schedule
        )
        # a read of one batch ends with its slowest row, and the disk would wait for the next one
        self.n_cold = min(max(1, self.readahead.n_in_budget), MAX_COLD)
        self.cold = ThreadPoolExecutor(self.n_cold, thread_name_prefix="store-cold")
        self.files = FileReads(partial(is_kept, fraction=kept_fraction))
        self.windows = plan_windows(len(batches), n_together)
        n_workers = loader.num_workers
        n_threads = n_workers or copy_threads()
        self.pool = ThreadPoolExecutor(n_threads, thread_name_prefix="store-loader")
        shared = Threads(self.pool, n_threads)  # without workers, the cores share one batch
        if n_together > 1:
            self.reader = ThreadPoolExecutor(1, thread_name_prefix="store-window")
            self.n_ahead = 2 if n_workers else 0  # one is delivered, one is read
            threads = shared
        else:
            self.reader = self.pool
            # two for each thread, or fewer large ones, but one for each
            n_in_budget = min(PREFETCH_FACTOR * n_workers, self.readahead.n_in_budget)
            self.n_ahead = max(n_workers, n_in_budget)
            threads = Threads() if n_workers else shared
        self.options = self.together = self.rows.recycled()._replace(threads=threads)
        if loader.pin_memory:
            self.options = ReadOptions(_pinned, required=True, threads=threads)

    def in_order(self) -> Iterator[Batch]:
        """Yield the batches, a bounded number read ahead; stop cleanly when abandoned."""
        n_planned = max(self.n_ahead, self.n_cold)
        planned: deque[range] = deque()
        ahead: deque[Future[Iterator[Batch]]] = deque()  # the first of these
        closes = [*map(_shutdown, (self.pool, self.reader, self.cold))]
        closes += [self.readahead.close, self.files.close]
        # also at the end of the interpreter: a generator that lives until then is closed too late
        # to stop threads
        close = weakref.finalize(self, _call_all, os.getpid(), closes)
        try:
            while True:
                planned.extend(islice(self.windows, n_planned - len(planned)))
                if not planned:
                    return
                current = planned[0]
                for later in islice(planned, len(ahead), None):
                    self.readahead.advance(later, current.start)
                    if self._is_cold(later):
                        ahead.append(self.cold.submit(self.read, later))
                    elif len(ahead) < self.n_ahead:
                        ahead.append(self.reader.submit(self.read, later))
                    else:
                        break
                self.readahead.advance(current, current.start)
                planned.popleft()
                yield from ahead.popleft().result() if ahead else self.read(current)
        finally:
            close()

    def read(self, window: range) -> Iterator[Batch]:
        """The batches of a window, read, but perhaps not cut."""
        for i in window:
            self.readahead.wait(i)
        if len(window) > 1:
            return self._read_together(window)
        files = self.files if self._is_cold(window) else None
        located = self.located[window.start]
        options = self._timed(self.options, window.start, files)
        began = time.perf_counter()
        batch = self.read_batch(located, options)
        self.loader.count_seconds(time.perf_counter() - began)
        return iter([self._pin(batch)])

    def _read_together(self, window: range) -> Iterator[Batch]:
        batches = self.batches
        # an error is raised again in its turn, after the batches before that which has it
        with suppress(StoreError):
            rows = batches.rows_of(window.start, window.stop)
            located = self.rows.locate_batch(self.plan, rows)
            if self.rows.n_bytes(self.plan, located) <= self.most_bytes:
                options = self._timed(self.together, window.start)
                began = time.perf_counter()
                whole = self.read_batch(located, options)
                self.loader.count_seconds(time.perf_counter() - began)
                visits = [batches.first_visit(i) for i in (*window, window.stop)]
                cuts = [visit - visits[0] for visit in visits]
                return map(self._pin, cut_batches(whole, cuts, self.options))
        return chain.from_iterable(self.read(range(i, i + 1)) for i in window)

    def _is_cold(self, window: range) -> bool:
        return len(window) == 1 and self.readahead.is_from_files(window.start)

    def _pin(self, batch: Batch) -> Batch:
        # copies offsets alone: the values are in page-locked memory already
        return batch.pin_memory() if self.loader.pin_memory else batch

    def _timed(
        self, options: ReadOptions, batch: int, files: FileReads | None = None
    ) -> ReadOptions:
        """The options of a read that begins with a batch, from files if it is cold."""
        if self.times is None and files is None:  # copying them costs as much as a small row
            return options
        after = None if self.times is None else self.times.after(self.batches.first_visit(batch))
        return options._replace(next_use=after, files=files)


def _call_all(pid: int, functions: Sequence[Callable[[], None]]) -> None:
    """Call functions, but not in a forked child, which has none of the threads to stop."""
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
