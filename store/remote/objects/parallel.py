"""Work on many objects at a time: the first error stops the rest, Ctrl-C does so at once."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import TypeVar

from store.check.verify import BytesProgress
from store.errors import IncompleteError
from store.remote.objects.objects import Objects

__all__ = ["Moved", "Tally", "run_all"]

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Moved:
    """What a push or a pull did, or would do.

    Attributes
    ----------
    n_rows, n_new_rows
        Traces in the store, and how many of them are new in the bucket.
    n_files, n_bytes
        Files that had to be there, and their bytes.
    n_present
        Those that were there, of an earlier command that was stopped.
    replaced
        Columns in the bucket in whose place later values come.
    is_done
        False: there was nothing to do.
    """

    n_rows: int
    n_new_rows: int = 0
    n_files: int = 0
    n_bytes: int = 0
    n_present: int = 0
    replaced: Sequence[str] = ()
    is_done: bool = True


class Tally:
    """Bytes that threads have moved, told as they come, by one thread at a time.

    `done` of the `total` are there at the beginning.
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
    """Do the work on each item, `n_threads` at a time; the results, in their order.

    It is given objects that wait for nothing any more once it has ended. Raises the first error of
    the work; what was begun then has ended, unless that is Ctrl-C.
    """
    is_over = Event()

    def pause(seconds: float) -> None:
        if is_over.wait(seconds):
            raise IncompleteError("it was stopped by another error")

    stoppable = Objects(objects.client, replace(objects.policy, sleep=pause))
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
