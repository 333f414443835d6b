"""Files mapped to be read.

`MappedFile` keeps no descriptor, as Python's own mmap does (one for each map: a thousand shards
would use up a process's), and gives advice to the kernel without holding the interpreter's lock.
"""

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from store.system import read_at_random, read_in_order

__all__ = ["MappedFile", "bytes_at"]

PAGE = mmap.PAGESIZE

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


def bytes_at(address: int, n_bytes: int, owner: object = None) -> np.ndarray:
    """The bytes of this process from an address on, read-only: uint8 `(n_bytes,)`.

    An array over them holds their owner.
    """
    if not n_bytes:
        return np.empty(0, np.uint8)
    shown = {"shape": (n_bytes,), "typestr": "|u1", "data": (address, True), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=shown, owner=owner))


class MappedFile:
    """A whole file, mapped for reading; unmapped when the last array over it is gone.

    `address` is where its first byte is in this process; 0 if the file is empty. Its last
    `tail_bytes`, or fewer if it is shorter, are read at once, as `tail`: for a mapped byte the
    kernel would fetch megabytes around it. `tells_cached` says whether `is_cached` can tell: the
    kernel answers only users who may write the file.

    Raises OSError if the file cannot be opened or mapped.
    """

    def __init__(self, path: Path, tail_bytes: int = 0) -> None:
        self.address = 0  # nothing is mapped
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            self.n_bytes = status.st_size
            self._identity = (status.st_dev, status.st_ino)
            read_at_random(fd)
            tail_start = max(0, self.n_bytes - tail_bytes)
            self.tail = os.pread(fd, self.n_bytes - tail_start, tail_start)
            # the map keeps this descriptor's settings
            read_in_order(fd)
            self.tells_cached = os.access(path, os.W_OK)
            if self.n_bytes:
                self.address = self._map(fd, path)
        finally:
            os.close(fd)

    def _map(self, fd: int, path: Path) -> int:
        address = _libc.mmap(None, self.n_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address in (None, _FAILED):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return address

    @property
    def bytes(self) -> np.ndarray:
        """Read-only view of the file, which holds this object: uint8 `(n_bytes,)`."""
        return bytes_at(self.address, self.n_bytes, self)

    def advise(self, start: int, stop: int, advice: int) -> None:
        """Advise the kernel on the bytes `start:stop`, e.g. `mmap.MADV_WILLNEED`."""
        first = start // PAGE * PAGE
        _libc.madvise(self.address + first, stop - first, advice)

    def is_cached(self, position: int) -> bool:
        """Whether the page with this byte is in the page cache; no where it cannot be told."""
        flag = ctypes.create_string_buffer(1)
        _libc.mincore(self.address + position // PAGE * PAGE, 1, flag)
        return self.tells_cached and bool(flag.raw[0] & 1)

    def has_its_name(self) -> bool:
        """Whether a file can be found by the path, and it is this one."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def open_again(self, flags: int) -> int | None:
        """A descriptor of this very file, to be closed by the caller.

        None if another one has its name now, or it cannot be opened in this way.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
        except OSError:
            return None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == self._identity:
            read_at_random(fd)
            return fd
        os.close(fd)
        return None

    def __del__(self, munmap: Callable[[int, int], int] = _libc.munmap) -> None:
        if self.address:
            munmap(self.address, self.n_bytes)
