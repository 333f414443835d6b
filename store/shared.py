"""Memory that a worker process fills and its parent uses: batches cross without being copied.

torch moves a tensor between processes through fresh shared memory: one more copy, and a page fault for every
4 KiB on both sides. Here each worker has one anonymous file that both processes map. The worker reads rows
straight into it and sends places instead of bytes; it uses a place again when the parent's last tensor over it is
gone. The file has no name and needs no /dev/shm: it vanishes with the last process that maps it.

Only what multiprocessing sends is treated so; plain pickling and copying of a batch copy its bytes.
"""

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from store.batch import Batch, Ragged
from store.maps import HUGE_PAGE, SMALL_BYTES, block_bytes

__all__ = ["worker_arena"]

ARENA_BYTES = 1 << 40  # addresses; memory is used where something was written
MAX_BLOCKS = 1 << 16
MAX_IDLE_BYTES = 128 * 1024 * 1024
FREE, TAKEN, SENT = 0, 1, 2  # who must give a block back: nobody, the worker, the parent


class ArenaKey(NamedTuple):
    """A worker's process, its file's descriptor there, and a number that no other arena has."""

    pid: int
    fd: int
    token: bytes


class Place(NamedTuple):
    """Where a large tensor is."""

    arena: ArenaKey
    block: int
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Inline(NamedTuple):
    """A small tensor, sent as it is: cheaper than any memory that is shared."""

    data: bytearray
    shape: tuple[int, ...]
    dtype: torch.dtype


class Arena:
    """A worker's file, mapped: a byte of state for each block, then the blocks."""

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, ARENA_BYTES)  # shared; charged page by page, when touched
        self.states = np.frombuffer(self.memory, np.uint8, MAX_BLOCKS)

    def release(self, block: int) -> None:
        """Give a block back to the worker."""
        self.states[block] = FREE


class WorkerArena(Arena):
    """The worker's side: gives out blocks, and takes back those that are free."""

    def __init__(self) -> None:
        fd = os.memfd_create("trace-store", os.MFD_CLOEXEC)
        os.ftruncate(fd, ARENA_BYTES)
        super().__init__(fd)
        self.key = ArenaKey(os.getpid(), fd, os.urandom(8))
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._blocks: dict[int, tuple[int, int]] = {}  # offset -> number, size; the latest used is last
        self._n_blocks, self._end = 0, HUGE_PAGE
        Finalize(self, self._trim, (0,), exitpriority=0)  # what the parent keeps mapped is only what it uses

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised, writable array; ordinary memory if it is small or the arena is full."""
        n_bytes = math.prod(shape) * dtype.itemsize
        offset = None if n_bytes < SMALL_BYTES else self._take(block_bytes(n_bytes))
        if offset is None:
            return np.empty(shape, dtype)
        array = np.ndarray(shape, dtype, self.memory, offset)
        weakref.finalize(array, self._give_back, self._blocks[offset][0]).atexit = False
        return array

    def _take(self, n_bytes: int) -> int | None:
        """Offset of a free block of fitting size, or of a new one; None if there is no room."""
        fits = (at for at in reversed(self._blocks) if n_bytes <= self._blocks[at][1] <= 2 * n_bytes)
        offset = next((at for at in fits if self.states[self._blocks[at][0]] == FREE), None)
        if offset is None:
            self._trim(MAX_IDLE_BYTES)
            if self._n_blocks == MAX_BLOCKS or self._end + n_bytes > ARENA_BYTES:
                return None
            offset, block = self._end, (self._n_blocks, n_bytes)
            self._n_blocks += 1
            self._end += -(-n_bytes // HUGE_PAGE) * HUGE_PAGE
        else:
            block = self._blocks.pop(offset)
        self._blocks[offset] = block
        self.states[block[0]] = TAKEN
        return offset

    def _give_back(self, number: int) -> None:
        if self.states[number] == TAKEN:
            self.states[number] = FREE

    def _trim(self, max_idle_bytes: int) -> None:
        """Return the memory of free blocks beyond a number of bytes, those not used for longest first."""
        idle = [(at, size) for at, (number, size) in self._blocks.items() if self.states[number] == FREE]
        n_bytes = sum(size for _, size in idle)
        for at, size in idle:
            if n_bytes <= max_idle_bytes:
                break
            del self._blocks[at]
            self.memory.madvise(mmap.MADV_REMOVE, at, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            n_bytes -= size

    def send(self, tensor: Tensor) -> Place | None:
        """Leave a block to the parent: the place of a tensor that fills it, or None if this tensor does not."""
        offset = tensor.data_ptr() - self._address
        number, _ = self._blocks.get(offset, (None, 0))
        if number is None or self.states[number] != TAKEN or not tensor.is_contiguous():
            return None
        self.states[number] = SENT
        return Place(self.key, number, offset, tuple(tensor.shape), tensor.dtype)


_own: list[WorkerArena] = []
_attached: dict[ArenaKey, Arena] = {}


def worker_arena() -> WorkerArena | None:
    """This worker process's arena, made when first asked for; None where the parent could not open it."""
    if _own_arena() is None and _parent_reads_us():
        _own.append(WorkerArena())
    return _own_arena()


def _parent_reads_us() -> bool:
    """Whether processes of this user may open each other's files: the same rule holds in both directions."""
    parent = parent_process()
    return parent is not None and os.access(f"/proc/{parent.pid}/fd/0", os.F_OK)


def _own_arena() -> WorkerArena | None:
    """The arena that this process made, not one that it inherited by fork."""
    return next((arena for arena in _own if arena.key.pid == os.getpid()), None)


def _attach(key: ArenaKey) -> Arena:
    """The map of a worker's file; those of processes that ended are let go."""
    if key not in _attached:
        for other in [key for key in _attached if not Path(f"/proc/{key.pid}").exists()]:
            del _attached[other]
        fd = os.open(f"/proc/{key.pid}/fd/{key.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            _attached[key] = Arena(fd)
        finally:
            os.close(fd)
    return _attached[key]


def _send(batch: Batch) -> tuple:
    """How multiprocessing pickles a batch."""
    arena, sent = _own_arena(), {}

    def send(tensor: Tensor) -> Place | Inline | Tensor:
        if id(tensor) not in sent:  # columns share offsets
            small = tensor.nbytes < SMALL_BYTES and tensor.device.type == "cpu"
            sent[id(tensor)] = _inline(tensor) if small else (arena and arena.send(tensor)) or tensor
        return sent[id(tensor)]

    return _receive, (send(batch.rows), _each(batch.columns, Tensor, send))


def _inline(tensor: Tensor) -> Inline:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return Inline(bytearray(data), tuple(tensor.shape), tensor.dtype)


def _receive(rows: Inline | Place | Tensor, columns: dict) -> Batch:
    """The batch that a worker sent."""
    received: dict[int, Tensor] = {}

    def receive(value: Inline | Place | Tensor) -> Tensor:
        if id(value) not in received:
            received[id(value)] = _tensor(value)
        return received[id(value)]

    return Batch(receive(rows), _each(columns, Inline | Place | Tensor, receive))


def _tensor(sent: Inline | Place | Tensor) -> Tensor:
    if isinstance(sent, Tensor):
        return sent
    if isinstance(sent, Inline):
        data = torch.frombuffer(sent.data, dtype=sent.dtype) if sent.data else torch.empty(0, dtype=sent.dtype)
        return data.view(sent.shape)
    arena, n_bytes = _attach(sent.arena), math.prod(sent.shape) * sent.dtype.itemsize
    array = np.ndarray((n_bytes,), np.uint8, arena.memory, sent.offset)
    weakref.finalize(array, arena.release, sent.block).atexit = False
    return torch.from_numpy(array).view(sent.dtype).view(sent.shape)


def _each(columns: dict, kind: type, change: Callable) -> dict:
    """The columns with every tensor changed; texts stay."""

    def value(v: object) -> object:
        if isinstance(v, Ragged):
            return Ragged(change(v.values), change(v.offsets))
        return change(v) if isinstance(v, kind) else v

    return {name: value(v) for name, v in columns.items()}


ForkingPickler.register(Batch, _send)
