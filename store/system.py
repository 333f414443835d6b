"""What depends on the machine: calls that not every operating system has, each beside the plain way
that takes its place, and how many threads there are.

Only speed depends on them: without any of the calls, and with one thread, the same bytes are read
and written.
"""

import ctypes
import mmap
import os
import signal
import sys

__all__ = [
    "CHECK_THREADS",
    "DIRECT",
    "FETCHER_THREADS",
    "FILE_THREADS",
    "SYNC_THREADS",
    "TRANSFER_THREADS",
    "available_cores",
    "copy_threads",
    "end_with_parent",
    "read_at_random",
    "read_in_order",
    "use_huge_pages",
]

DIRECT: int | None = getattr(os, "O_DIRECT", None)
"""The flag that opens a file past the page cache; None: it is always read through it."""

# Threads, by what they wait for; a loader has as many as its `num_workers` besides.
FILE_THREADS = 32  # reads past the page cache, which wait for the disk together
SYNC_THREADS = 16  # flushes, of which a disk takes several at once
CHECK_THREADS = 4  # two for each core of a small machine: one waits for the disk
TRANSFER_THREADS = 8  # files that are pushed or pulled at a time
FETCHER_THREADS = 16  # of the fetching process: tables of shards, and small files

PR_SET_PDEATHSIG = 1  # of Linux

_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_has_advice = hasattr(os, "posix_fadvise")


def available_cores() -> int:
    """The cores that this process may use; all, where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def copy_threads() -> int:
    """Threads to copy with: the cores of this process, at most 4, which saturate any memory."""
    return min(4, available_cores())


def use_huge_pages(memory: mmap.mmap) -> None:
    """Have memory be on huge pages, where there are some."""
    if _HUGE_PAGES is not None:
        memory.madvise(_HUGE_PAGES)


def read_at_random(fd: int) -> None:
    """Expect reads of an open file in no order: the kernel fetches nothing beside them."""
    if _has_advice:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def read_in_order(fd: int) -> None:
    """Expect reads as of any file."""
    if _has_advice:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)


def end_with_parent(parent: int, by: int = signal.SIGTERM) -> None:
    """Have a signal sent to this process when its parent ends, or end at once if it has ended.

    Where the system is not Linux, nothing is sent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)
