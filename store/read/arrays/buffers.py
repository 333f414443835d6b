"""Recycled blocks of memory to read into.

`BufferPool` exists because a fresh buffer costs more than the copy into it: its pages are faulted
in one by one (fresh 1.4-8 GB/s, recycled 21 GB/s). A block returns to the pool when the last array
or tensor over it is gone, never before, so keeping every batch of an epoch is safe.
"""

import math
import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy as np

from store.system import use_huge_pages

__all__ = ["HUGE_PAGE", "SMALL_BYTES", "BufferPool", "block_bytes"]

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 * 1024 * 1024
SMALL_BYTES = 64 * 1024  # below it, malloc recycles memory itself
# at the end of an epoch all of a loader's blocks are idle, and the next one needs them again
IDLE_BYTES = 512 * 1024 * 1024


class BufferPool:
    """Blocks of memory, recycled, on huge pages where the kernel has them.

    Idle blocks are kept up to `max_idle_bytes`.
    """

    def __init__(self, max_idle_bytes: int = IDLE_BYTES) -> None:
        self.max_idle_bytes = max_idle_bytes
        # appended to by finalizers, in any thread: no lock to wait for
        self._idle: deque[mmap.mmap] = deque()
        self._leases: dict[int, weakref.ref] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised, writable array; its memory returns with the last reference to it."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < SMALL_BYTES:
            return np.empty(shape, dtype)
        block = self._take(block_bytes(n_bytes))
        # Arrays made of this one, and tensors, refer to it and not to the block: it is given back
        # after the last of them.
        array = np.ndarray(shape, dtype, block)
        key = id(block)
        # not `weakref.finalize`, which takes as long again as all of this
        self._leases[key] = weakref.ref(array, lambda _: self._give_back(key, block))
        return array

    def _take(self, n_bytes: int) -> mmap.mmap:
        for _ in range(len(self._idle)):
            try:
                block = self._idle.pop()  # the latest: it may still be in the processor's cache
            except IndexError:  # another thread took the last
                break
            if n_bytes <= len(block) <= 2 * n_bytes:
                return block
            self._idle.appendleft(block)
        block = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE)
        if n_bytes >= HUGE_PAGE:
            use_huge_pages(block)
        return block

    def _give_back(self, key: int, block: mmap.mmap) -> None:
        self._leases.pop(key, None)
        self._idle.append(block)
        surplus = sum(map(len, list(self._idle))) - self.max_idle_bytes  # a copy: threads go on
        with suppress(IndexError):  # another thread took the last
            while surplus > 0:
                surplus -= len(self._idle.popleft())  # the one that waited longest; unmapped here


def block_bytes(n_bytes: int) -> int:
    """Size of the block for `n_bytes`: few sizes, at most an eighth too large, so that blocks fit
    again."""
    step = max(PAGE, 1 << max(0, n_bytes.bit_length() - 4))
    return -(-n_bytes // step) * step
