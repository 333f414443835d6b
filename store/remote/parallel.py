"""Work on many objects at a time: the first error stops the rest, Ctrl-C does so at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event, Lock
from typing import TypeVar

from store.check.verify import BytesProgress
from store.errors import IncompleteError
from store.remote.objects import Objects

__all__ = ["Tally", "run_all"]

T = TypeVar("T")
R = TypeVar("R")


class Tally:
    """Bytes that threads have moved, told as they come.

    Parameters
    ----------
    progress
        Called with the bytes that are there, and those of all; never by two threads at once.
    done, total
        Bytes at the beginning, and those of all.
    """

    def __init__(self, progress: BytesProgress, total: int, done: int = 0) -> None:
        self._progress = progress
        self._total = total
        self._done = done
        self._lock = Lock()

    def add(self, n_bytes: int) -> None:
        """Count bytes that are there now; from any thread."""
        with self._lock:
            self._done += n_bytes
            self._progress(self._done, self._total)


def run_all(
    objects: Objects, work: Callable[[Objects, T], R], items: Iterable[T], n_threads: int
) -> list[R]:
    """Do the work on each item; the results, in their order.

    Parameters
    ----------
    objects
        What the work is done with; it is given the same ones, which wait for nothing any more once
        the work has ended.
    work, items
        Called in a thread with each item.
    n_threads
        Items at a time.

    Raises
    ------
    BaseException
        The first that the work raised. What was begun then has ended, unless it is Ctrl-C.
    """
    is_over = Event()

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise IncompleteError("it was stopped by another error")

    waiting = replace(objects.patience, sleep=pause)
    stoppable = Objects(objects.client, waiting, objects.n_parallel)
    pool = ThreadPoolExecutor(n_threads)
    futures = [pool.submit(work, stoppable, item) for item in items]
    try:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        is_over.set()
        pool.shutdown(cancel_futures=True)
    finally:
        is_over.set()
        pool.shutdown(wait=False, cancel_futures=True)
    for future in done:
        future.result()  # before those that it stopped
    return [future.result() for future in futures]
