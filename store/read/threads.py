"""Threads that share the work of one read."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise

from store.system import available_cores

__all__ = ["SHARED_BYTES", "Threads", "Work", "n_cores"]

SHARED_BYTES = 4 * 1024 * 1024  # reads larger than this are worth sharing
RUNS_PER_THREAD = 4

Work = Callable[[list], None]


def n_cores() -> int:
    """Cores to read with: those of this process, at most 4, which saturate any memory."""
    return min(4, available_cores())


class Threads:
    """The calling thread, and `n - 1` threads of a pool.

    The items of some work are cut into runs of neighbours, and each thread takes the next run when
    it is free, so a thread that gets no core delays no other.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None, n: int = 1) -> None:
        self._pool = pool
        self._n = n

    def run(self, work: Work, items: list, n_bytes: int) -> None:
        """Do the work that fills so many bytes: shared if it is large, else in this thread.

        After an error no further run begins, and the error is raised here.
        """
        if self._pool is None or n_bytes < SHARED_BYTES:
            work(items)
            return
        runs = iter(_cut(items, RUNS_PER_THREAD * self._n))
        others = [self._pool.submit(_work_on, work, runs) for _ in range(self._n - 1)]
        try:
            for run in runs:
                work(run)
        finally:
            begun = _end(runs, others)
        for other in begun:
            other.result()


def _cut(items: list, n: int) -> list[list]:
    """Up to `n` runs of neighbours, which may share a chunk."""
    n_runs = min(len(items), n)
    cuts = [len(items) * i // n_runs for i in range(n_runs + 1)] if n_runs else []
    return [items[a:b] for a, b in pairwise(cuts)]


def _work_on(work: Work, runs: Iterator[list]) -> None:
    """Take runs as long as there are some: the iterator of a list gives each of them once."""
    try:
        for run in runs:
            work(run)
    finally:
        _drop(runs)


def _drop(runs: Iterator[list]) -> None:
    """Take the runs that are left after an error: no thread begins one."""
    for _ in runs:
        pass


def _end(runs: Iterator[list], others: list[Future[None]]) -> list[Future[None]]:
    """Wait for the threads that have begun, and return them."""
    _drop(runs)
    begun = [other for other in others if not other.cancel()]
    wait(begun)
    return begun
