"""The work of one batch, shared among threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

__all__ = ["n_cores", "share"]

RUNS_PER_THREAD = 4


def n_cores() -> int:
    """Cores to read with: those of this process, at most 4, which saturate any memory."""
    return min(4, len(os.sched_getaffinity(0)))


def share(pool: ThreadPoolExecutor, n: int, work: Callable[[list], None], items: list) -> None:
    """Do work in this thread and in `n - 1` threads of a pool, and wait for them.

    The items are cut into runs of neighbours, and each thread takes the next run when it is free,
    so a thread that gets no core delays no other. After an error no further run begins, and the
    error is raised here.
    """
    # neighbours stay together: they may share a chunk
    n_runs = min(len(items), RUNS_PER_THREAD * n)
    cuts = [len(items) * i // n_runs for i in range(n_runs + 1)] if n_runs else []
    runs = iter([items[a:b] for a, b in pairwise(cuts)])

    def work_on() -> None:
        try:
            for run in runs:  # the iterator of a list gives each run once, to whichever thread
                work(run)
        except BaseException:
            list(runs)  # takes what is left: no thread begins another run
            raise

    others = [pool.submit(work_on) for _ in range(n - 1)]
    try:
        work_on()
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
