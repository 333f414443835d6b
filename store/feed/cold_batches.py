"""Batches that are not in memory, read ahead from their files by threads.

A read of one batch ends with its slowest row, and the disk would wait for the next batch; so
several are under way at once, as many as the budget of bytes allows.

Data that fits into memory is read from the disk once. Of more, a cache that drops what was used
longest ago keeps hardly anything under a shuffle until it comes again; so a part of the files is
read through the page cache, the same in each epoch, and the others past it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from zlib import crc32

from store.read.batch import Batch
from store.read.file_reads import FileReads
from store.read.mapped_file import MappedFile

__all__ = ["ColdBatches", "is_kept", "kept_fraction"]

MAX_AHEAD = 8
# of the memory that is available: the rest is for batches and for other programs
CACHE_SHARE = 0.5


def kept_fraction(n_bytes: float, available: int) -> float:
    """The fraction of so many bytes, read in each epoch, that is to stay in the page cache."""
    return min(1.0, CACHE_SHARE * available / max(1.0, n_bytes))


def is_kept(file: MappedFile, fraction: float) -> bool:
    """Whether a file is in this fraction of all files: by its name, so all processes agree."""
    return crc32(str(file.path).encode()) < fraction * 2**32


class ColdBatches:
    """Threads that read cold batches ahead, `n_ahead` of them: being read, or waiting to be
    delivered.

    At least one is, however few are in the budget. The fraction of the files that `kept_fraction`
    gives is read through the page cache; `files` is for `ReadOptions.files`.
    """

    def __init__(self, n_in_budget: int, fraction: float) -> None:
        self.n_ahead = min(max(1, n_in_budget), MAX_AHEAD)
        self.files = FileReads(partial(is_kept, fraction=fraction))
        self._pool = ThreadPoolExecutor(self.n_ahead, thread_name_prefix="store-cold")

    def submit(self, read: Callable[[int], Batch], batch: int) -> Future[Batch]:
        """Read a batch when a thread is free, in the order of calls."""
        return self._pool.submit(read, batch)

    def close(self) -> None:
        """Stop reading; batches that have not begun are cancelled."""
        self._pool.shutdown(cancel_futures=True)
        self.files.close()
