"""Batches that are not in memory, read ahead from their files by threads.

A read of one batch ends with its slowest row, and the disk would wait for the next batch; so
several are under way at once, as many as the budget of bytes allows.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from store.feed.cache_room import is_kept
from store.read.batch import Batch
from store.read.file_reads import FileReads

__all__ = ["ColdBatches"]

MAX_AHEAD = 8


class ColdBatches:
    """Threads that read cold batches ahead.

    Parameters
    ----------
    n_in_budget
        Batches that may be read ahead; at least one is.
    kept_fraction
        The fraction of the files that is read through the page cache, see `cache_room`.

    Attributes
    ----------
    n_ahead
        Batches, being read or waiting to be delivered.
    files
        For `ReadOptions.files`.
    """

    def __init__(self, n_in_budget: int, kept_fraction: float) -> None:
        self.n_ahead = min(max(1, n_in_budget), MAX_AHEAD)
        self.files = FileReads(partial(is_kept, fraction=kept_fraction))
        self._pool = ThreadPoolExecutor(self.n_ahead, thread_name_prefix="store-cold")

    def submit(self, read: Callable[[int], Batch], batch: int) -> Future[Batch]:
        """Read a batch when a thread is free, in the order of calls."""
        return self._pool.submit(read, batch)

    def close(self) -> None:
        """Stop reading; batches that have not begun are cancelled."""
        self._pool.shutdown(cancel_futures=True)
        self.files.close()
