"""Memory in which chunks arrive: the readers of the node map it, and copy from it.

What is read once and then has to go never takes the way through a file: pages to be made, written,
mapped and given back for each chunk cost as much as to fetch it. Memory that is used again and
again costs one copy. What stays is moved into the files of its mirror.
"""

import fcntl
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from store.remote.sparse_file import punch

__all__ = ["Landing", "aligned"]

ALIGNMENT = 64
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def aligned(n_bytes: np.ndarray) -> np.ndarray:
    """What so many bytes take in a landing memory: int64 `(n,)`."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


class Landing:
    """Memory without a name, which ends with the last process that has it mapped.

    Parameters
    ----------
    n_bytes
        How much there is; what is never used takes no memory.

    Attributes
    ----------
    fd
        Its descriptor, to be sent to readers.
    number
        Tells it from that of another process.
    n_bytes
        How much of it is used at most.
    memory
        uint8, of `n_bytes` or of a page.
    used
        Bytes that are taken.
    """

    def __init__(self, n_bytes: int) -> None:
        self.number = int.from_bytes(os.urandom(6), "little")
        size = max(n_bytes, mmap.PAGESIZE)
        self.fd = os.memfd_create("trace-store-chunks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)  # who sends it has this object
        os.ftruncate(self.fd, size)
        # a process that has it mapped would be ended if it became shorter
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        self.memory = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)
        self.n_bytes = n_bytes // ALIGNMENT * ALIGNMENT
        self.used = 0
        self._is_touched = False
        self._lock = threading.Lock()
        # the free spans, rising; the first that fits is taken, since it was used last
        self._starts = [0]
        self._stops = [self.n_bytes]

    def take(self, sizes: Sequence[int]) -> list[int] | None:
        """Where chunks of these sizes find room, each aligned, neighbours together if they can be.

        None: there is no room for all of them.
        """
        with self._lock:
            positions = []
            rests = []  # what is left of the spans that were looked at
            spans = zip(self._starts, self._stops, strict=True)
            start = stop = 0
            for size in sizes:
                while stop - start < size:
                    if start < stop:
                        rests.append((start, stop))
                    start, stop = next(spans, (0, -1))
                    if stop < 0:
                        return None
                positions.append(start)
                start += size
            if start < stop:
                rests.append((start, stop))
            n_seen = len(self._starts) - len(list(spans))
            self._starts[:n_seen] = [start for start, _ in rests]
            self._stops[:n_seen] = [stop for _, stop in rests]
            self.used += sum(sizes)
            self._is_touched = True
        return positions

    def give_back(self, start: int, stop: int) -> None:
        """Have a span that was taken, or a part of it, be free."""
        with self._lock:
            self.used -= stop - start
            i = bisect_left(self._starts, start)
            if i < len(self._starts) and self._starts[i] == stop:
                stop = self._stops[i]
                del self._starts[i], self._stops[i]
            if i and self._stops[i - 1] == start:
                self._stops[i - 1] = stop
            else:
                self._starts.insert(i, start)
                self._stops.insert(i, stop)

    def empty(self) -> None:
        """Give pages that hold nothing any more back to the kernel."""
        with self._lock:
            if self._is_touched and not self.used:
                punch(self.fd, 0, len(self.memory))
                self._is_touched = False
