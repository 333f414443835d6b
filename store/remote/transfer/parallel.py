"""What pushes and pulls have in common: work on many objects at a time, and what was done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Moved", "run_all"]

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


def run_all(work: Callable[[T], R], items: Iterable[T], n_threads: int) -> Iterator[tuple[T, R]]:
    """Do the work on each item, `n_threads` at a time; yield items with results, as they are done.

    Raises the first error of the work: what was begun then has ended, and nothing else begins.
    """
    pool = ThreadPoolExecutor(n_threads)
    futures = {pool.submit(work, item): item for item in items}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
