"""Memory: files mapped to be read, and recycled blocks to read into.

`MappedFile` keeps no descriptor, as Python's own mmap does (one for each map: a thousand shards
would use up a process's), and gives advice to the kernel without holding the interpreter's lock.

`BufferPool` exists because a fresh buffer costs more than the copy into it: its pages are faulted
in one by one (fresh 1.4-8 GB/s, recycled 21 GB/s). A block returns to the pool when the last array
or tensor that looks at it is gone, never before, so keeping every batch of an epoch is safe.
"""

import ctypes
import errno
import math
import mmap
import os
import stat
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

import numpy as np

__all__ = ["BufferPool", "MappedFile"]

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 * 1024 * 1024
SMALL_BYTES = 64 * 1024  # below it, malloc recycles memory itself

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """A whole file, mapped for reading; unmapped when the last array over it is gone.

    Parameters
    ----------
    path
        The file.
    tail_bytes
        How many of its last bytes to read at once.

    Attributes
    ----------
    n_bytes
        Size of the file when it was mapped.
    tail
        Its last bytes; fewer if it is shorter. Read, not mapped: the kernel would fetch megabytes
        around them.

    Raises
    ------
    OSError
        The file cannot be opened or mapped.
    """

    def __init__(self, path: Path, tail_bytes: int = 0) -> None:
        self._address = None
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            self.n_bytes = status.st_size
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            self.tail = os.pread(
                fd, min(tail_bytes, self.n_bytes), max(0, self.n_bytes - tail_bytes)
            )
            # the map goes on with this descriptor's settings
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)
            self._may_ask = os.access(path, os.W_OK)
            if self.n_bytes:
                self._address = self._map(fd, path)
        finally:
            os.close(fd)

    def _map(self, fd: int, path: Path) -> int:
        address = _libc.mmap(None, self.n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address in (None, _FAILED):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return address

    @property
    def __array_interface__(self) -> dict:
        """How NumPy sees it: read-only bytes. An array over it holds this object."""
        return {
            "shape": (self.n_bytes,),
            "typestr": "|u1",
            "data": (self._address, True),
            "version": 3,
        }

    @property
    def bytes(self) -> np.ndarray:
        """Read-only view of the file: uint8 `(n_bytes,)`."""
        return np.asarray(self) if self._address else np.empty(0, np.uint8)

    def advise(self, start: int, stop: int, advice: int) -> None:
        """Tell the kernel about the bytes `start:stop`, e.g. `mmap.MADV_WILLNEED`; it may ignore
        it."""
        first = start // PAGE * PAGE
        _libc.madvise(self._address + first, stop - first, advice)

    def is_cached(self, position: int) -> bool:
        """Whether the page with this byte is in the page cache.

        The kernel tells only those who may write the file, and says yes to others; they get no.
        """
        flag = ctypes.create_string_buffer(1)
        _libc.mincore(self._address + position // PAGE * PAGE, 1, flag)
        return self._may_ask and bool(flag.raw[0] & 1)

    def __del__(self, munmap: object = _libc.munmap) -> None:
        if self._address:
            munmap(self._address, self.n_bytes)


class BufferPool:
    """Blocks of memory for batches, recycled, on huge pages where the kernel has them.

    Parameters
    ----------
    max_idle_bytes
        Blocks kept for reuse; what is handed out is bounded by those who hold it.
    """

    def __init__(self, max_idle_bytes: int = 128 * 1024 * 1024) -> None:
        self.max_idle_bytes = max_idle_bytes
        # appended to by finalizers, in any thread: no lock to wait for
        self._idle: deque[mmap.mmap] = deque()
        self._leases: dict[int, weakref.ref] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised, writable array; its memory returns when nothing refers to it any
        more."""
        n_bytes = math.prod(shape) * dtype.itemsize
        if n_bytes < SMALL_BYTES:
            return np.empty(shape, dtype)
        block = self._take(block_bytes(n_bytes))
        # Arrays made of this one, and tensors, refer to it and not to the block: its end is the end
        # of them all.
        array = np.ndarray(shape, dtype, block)
        key = id(block)
        self._leases[key] = weakref.ref(array, lambda _: self._give_back(key, block))
        return array

    def _take(self, n_bytes: int) -> mmap.mmap:
        """An idle block of fitting size, or a new one."""
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
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _give_back(self, key: int, block: mmap.mmap) -> None:
        self._leases.pop(key, None)
        self._idle.append(block)
        idle = list(self._idle)  # a copy: other threads go on
        while idle and sum(map(len, idle)) > self.max_idle_bytes:
            idle.pop(0)
            with suppress(IndexError):  # another thread took it
                self._idle.popleft()  # the one that waited longest; unmapped here


def block_bytes(n_bytes: int) -> int:
    """Size of the block for `n_bytes`: few sizes, at most an eighth too large, so that blocks fit
    again."""
    step = max(PAGE, 1 << max(0, n_bytes.bit_length() - 4))
    return -(-n_bytes // step) * step
