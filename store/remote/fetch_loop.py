"""The thread that fetches: it asks for the chunks of several jobs, and takes what comes.

One thread, because several would spend a third of their time on handing Python's lock to each
other. What is not plain, or did not come right, is left to the client, in threads of its own.
"""

import os
import selectors
import threading
import time
import traceback
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from store.errors import StoreError
from store.remote.cached_column import Job
from store.remote.faults import disk_fault
from store.remote.objects import Objects
from store.remote.range_reader import Answer, RangeReader
from store.remote.requests import Request
from store.remote.slab import Slab

__all__ = ["FetchLoop"]

JOBS_AT_ONCE = 24
N_THREADS = 16  # for the client
POLL_S = 0.25


class Jobs(Protocol):
    """What is to be fetched; see `DiskCache`."""

    def next_job(self, *, is_idle: bool) -> Job | None: ...

    def settle(self, job: Job, error: StoreError | None) -> None: ...


@dataclass(eq=False)
class _Begun:
    """A job whose answers are coming; `n_left` of them, and one while they are asked for."""

    job: Job
    n_left: int
    error: StoreError | None = None


@dataclass(eq=False)
class _Pending:
    """A request of a job: `some` are the indices of its chunks."""

    begun: _Begun
    request: Request
    some: np.ndarray
    answer: Answer
    fd: int
    events: int


class FetchLoop(threading.Thread):
    """Fetches jobs into a slab until it is closed; messages name the cache directory.

    `jobs` gives them, and takes them back when they are over; it is called without any lock.
    """

    def __init__(self, directory: Path, slab: Slab, jobs: Jobs) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._slab = slab
        self._jobs = jobs
        self._is_over = False
        self._n_begun = 0
        self._slow: set[Future[None]] = set()
        self._pool = ThreadPoolExecutor(N_THREADS, thread_name_prefix="ask-client")
        self._readers: weakref.WeakKeyDictionary[Objects, RangeReader] = weakref.WeakKeyDictionary()
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def wake(self) -> None:
        """There may be a job; from any thread."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Have it end; from any thread."""
        self._is_over = True
        self.wake()

    def run(self) -> None:
        is_idle = False
        looked_at = time.monotonic()
        while not self._is_over:
            self._begin_jobs(is_idle)
            events = self._selector.select(POLL_S)
            is_idle = not events
            for key, _ in events:
                if key.data is None:
                    os.eventfd_read(self._bell)
                else:
                    self._go_on(key.data)
            if time.monotonic() > looked_at + POLL_S:
                looked_at = time.monotonic()
                self._check_times()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._selector.close()

    def _begin_jobs(self, is_idle: bool) -> None:
        self._slow = {future for future in self._slow if not future.done()}
        while self._n_begun + len(self._slow) < JOBS_AT_ONCE:
            job = self._jobs.next_job(is_idle=is_idle)
            if job is None:
                return
            begun = _Begun(job, n_left=1)
            self._n_begun += 1
            with self._faults(begun):
                self._ask(begun)
            self._end_one(begun)

    def _ask(self, begun: _Begun) -> None:
        """Ask for the chunks of a job."""
        job = begun.job
        requests = job.column.plan(job, self._slab)
        starts = [one.start for one in requests]
        stops = [one.stop for one in requests]
        answers = self._reader(job.column.store.source).ask(job.column.key(job), starts, stops)
        if answers is not None:
            job.column.count(job, requests)
        missing = job.missing()
        pending = []
        for request, answer in zip(requests, answers or (), strict=answers is not None):
            some = missing[request.first : request.last]
            pending.append(_Pending(begun, request, some, answer, -1, 0))
        for one in pending:
            begun.n_left += 1
            if one.answer.is_over:
                self._take(one)
            else:
                self._watch(one)

    def _reader(self, source: Objects) -> RangeReader:
        if source not in self._readers:
            self._readers[source] = source.reader()
        return self._readers[source]

    def _watch(self, one: _Pending) -> None:
        """Be told when an answer can go on."""
        events = selectors.EVENT_WRITE if one.answer.wants_to_write else selectors.EVENT_READ
        if one.fd < 0:
            one.fd = one.answer.fileno()
            self._selector.register(one.fd, events, one)
        elif one.events != events:
            self._selector.modify(one.fd, events, one)
        one.events = events

    def _go_on(self, one: _Pending) -> None:
        is_over = True
        with self._faults(one.begun):
            is_over = one.answer.go_on()
        if is_over:
            self._selector.unregister(one.fd)
            self._take(one)
        else:
            self._watch(one)

    def _check_times(self) -> None:
        """End the answers that take too long."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None and key.data.answer.check_time():
                self._selector.unregister(key.data.fd)
                self._take(key.data)

    def _take(self, one: _Pending) -> None:
        """Keep what has come of an answer that is over."""
        begun = one.begun
        with self._faults(begun):
            data = one.answer.data
            if data is not None and begun.error is None:
                base = one.request.start
                begun.job.column.keep(begun.job, one.some, base, data, self._slab)
        one.answer.release()
        self._end_one(begun)

    def _end_one(self, begun: _Begun) -> None:
        """One answer of a job is over. After the last, the client is asked for what is missing."""
        begun.n_left -= 1
        if begun.n_left:
            return
        self._n_begun -= 1
        if begun.error is None and begun.job.is_missing.any():
            future = self._pool.submit(self._ask_client, begun.job)
            future.add_done_callback(lambda _: self.wake())
            self._slow.add(future)
        else:
            self._jobs.settle(begun.job, begun.error)

    def _ask_client(self, job: Job) -> None:
        begun = _Begun(job, n_left=0)
        with self._faults(begun):
            job.column.fetch(job, self._slab)
        self._jobs.settle(job, begun.error)

    def _faults(self, begun: _Begun) -> "_Faults":
        return _Faults(self._directory, begun)


class _Faults:
    """A context that notes an error as that of a job: waiting readers have an answer."""

    def __init__(self, directory: Path, begun: _Begun) -> None:
        self._directory = directory
        self._begun = begun

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if isinstance(error, StoreError):
            self._begun.error = error
        elif isinstance(error, OSError):
            self._begun.error = disk_fault(self._directory, error)
        elif isinstance(error, Exception):
            traceback.print_exception(error)  # into fetcher.log
            self._begun.error = StoreError(
                f"{self._directory}: expected chunks, found a defect, which fetcher.log there shows"
            )
        return isinstance(error, Exception)
