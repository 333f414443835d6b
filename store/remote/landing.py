"""Memory in which chunks arrive: the readers of the node map it, and copy from it.

What is read once and then has to go never takes the way through a file: pages to be made, written,
mapped and given back for each chunk cost as much as to fetch it. Memory that is used again and
again costs one copy. What stays is moved into the files of its mirror.
"""

import mmap
import os
import threading
from bisect import bisect_left

import numpy as np

__all__ = ["Landing", "aligned"]

ALIGNMENT = 64


def aligned(n_bytes: np.ndarray) -> np.ndarray:
    """What so many bytes take in a landing memory: int64 `(n,)`."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


class Landing:
    """Memory without a name, which ends with the last process that has it mapped.

    Parameters
    ----------
    n_bytes
        How much there is; what is never used takes no memory. A multiple of `ALIGNMENT`.

    Attributes
    ----------
    fd
        Its descriptor, to be sent to readers.
    number
        Tells it from that of another process.
    memory
        uint8 `(n_bytes,)`.
    used
        Bytes that are taken.
    """

    def __init__(self, n_bytes: int) -> None:
        self.number = int.from_bytes(os.urandom(6), "little")
        self.fd = os.memfd_create("trace-store-chunks", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, max(n_bytes, mmap.PAGESIZE))
        self.memory = np.frombuffer(mmap.mmap(self.fd, max(n_bytes, mmap.PAGESIZE)), np.uint8)
        self.n_bytes = n_bytes
        self.used = 0
        self._lock = threading.Lock()
        # the free spans, rising; the first that fits is taken, since it was used last
        self._starts = [0]
        self._stops = [n_bytes]

    def take(self, n_bytes: int) -> int | None:
        """Where so many bytes are free, a multiple of `ALIGNMENT`; None: nowhere."""
        with self._lock:
            for i, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
                if stop - start < n_bytes:
                    continue
                self.used += n_bytes
                if stop - start == n_bytes:
                    del self._starts[i], self._stops[i]
                else:
                    self._starts[i] = start + n_bytes
                return start
        return None

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

    def close(self) -> None:
        """Let go of the descriptor; memory that is mapped stays."""
        os.close(self.fd)
