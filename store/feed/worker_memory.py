"""Memory that a worker process fills and its parent uses: batches cross without being copied.

torch moves a tensor between processes through fresh shared memory: one more copy, and a page fault
for every 4 KiB in both processes. Here each worker has one anonymous file, its arena, that both
processes map. The worker reads rows straight into a block of it and sends the place instead of the
bytes. A block is reused when the last tensors over it are gone from the worker and the parent. The
file has no name and needs no /dev/shm.

Only multiprocessing's own transport is replaced: plain pickling and copying of a batch copy its
bytes. A process that the parent forks sees a batch only while the parent holds it: copy there what
must last.
"""

import ctypes
import math
import mmap
import os
import resource
import select
import weakref
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from store.read.batch import Batch, map_columns
from store.read.buffers import HUGE_PAGE, SMALL_BYTES, block_bytes

__all__ = ["worker_arena"]

ARENA_BYTES = 1 << 40  # of addresses; memory is used only where something was written
MAX_BLOCKS = 1 << 16
MAX_IDLE_BYTES = 128 * 1024 * 1024


class ArenaKey(NamedTuple):
    """A worker's process, the descriptor of its file there, and a number unique to the arena."""

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
    """A small tensor, sent by value: cheaper than any shared memory."""

    data: bytearray
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Block:
    """A range of an arena, of whole pages; once trimmed it has no memory until it is written."""

    number: int
    n_bytes: int
    is_trimmed: bool = False


class WorkerArena:
    """The arena in its worker: hands out blocks, and reuses those that neither process holds.

    The file begins with one byte a block: whether the parent holds it. What the worker itself holds
    is recorded in this object.

    Raises
    ------
    OSError
        The kernel refuses the file or the addresses.
    """

    def __init__(self) -> None:
        fd = os.memfd_create("trace-store", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, ARENA_BYTES)
            self.memory = mmap.mmap(fd, ARENA_BYTES)  # shared; charged page by page, when touched
        except OSError:
            os.close(fd)
            raise
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.key = ArenaKey(os.getpid(), fd, os.urandom(8))
        self.sent = np.frombuffer(self.memory, np.uint8, MAX_BLOCKS)
        self._held: set[int] = set()  # numbers of blocks under arrays of this process
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._blocks: dict[int, Block] = {}  # by offset, the least recently used first
        self._end = HUGE_PAGE
        Finalize(self, self._trim, (0,), exitpriority=0)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised, writable array; ordinary memory if it is small or the arena is full."""
        n_bytes = math.prod(shape) * dtype.itemsize
        offset = None if n_bytes < SMALL_BYTES else self._take(block_bytes(n_bytes))
        if offset is None:
            return np.empty(shape, dtype)
        array = np.ndarray(shape, dtype, self.memory, offset)
        weakref.finalize(array, self._held.discard, self._blocks[offset].number).atexit = False
        return array

    def _take(self, n_bytes: int) -> int | None:
        """Offset of a free block of fitting size, or of a new one; None if there is no room."""
        offset = self._find_free(n_bytes)
        if offset is None:
            offset = self._add_block(n_bytes)
        if offset is None:
            return None
        block = self._blocks.pop(offset)
        self._blocks[offset] = block  # as the most recently used
        block.is_trimmed = False
        self._held.add(block.number)
        return offset

    def _find_free(self, n_bytes: int) -> int | None:
        for offset, block in reversed(self._blocks.items()):
            if n_bytes <= block.n_bytes <= 2 * n_bytes and self._is_free(block):
                return offset
        return None

    def _add_block(self, n_bytes: int) -> int | None:
        self._trim(MAX_IDLE_BYTES)
        offset = self._end
        if len(self._blocks) == MAX_BLOCKS or offset + n_bytes > ARENA_BYTES:
            return None
        self._blocks[offset] = Block(len(self._blocks), n_bytes)
        self._end += _round_up(n_bytes, HUGE_PAGE)
        return offset

    def _is_free(self, block: Block) -> bool:
        return block.number not in self._held and not self.sent[block.number]

    def _trim(self, max_idle_bytes: int) -> None:
        """Return the memory of free blocks, the least recently used first, down to a limit."""
        idle = [
            (offset, block)
            for offset, block in self._blocks.items()
            if not block.is_trimmed and self._is_free(block)
        ]
        n_bytes = sum(block.n_bytes for _, block in idle)
        for offset, block in idle:
            if n_bytes <= max_idle_bytes:
                break
            self.memory.madvise(mmap.MADV_REMOVE, offset, block.n_bytes)
            block.is_trimmed = True
            n_bytes -= block.n_bytes

    def send(self, tensor: Tensor) -> Place | None:
        """Share the block that a tensor begins: its place; None if the tensor begins none."""
        offset = tensor.data_ptr() - self._address
        block = self._blocks.get(offset)
        if block is None or self.sent[block.number] or not tensor.is_contiguous():
            return None
        self.sent[block.number] = 1
        return Place(self.key, block.number, offset, tuple(tensor.shape), tensor.dtype)


class AttachedArena:
    """A worker's arena in its parent: mapped until the worker has ended and no tensor is left."""

    def __init__(self, key: ArenaKey) -> None:
        self.key = key
        self.pid = os.getpid()
        self.n_tensors = 0
        fd = os.open(f"/proc/{key.pid}/fd/{key.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self.memory = mmap.mmap(fd, ARENA_BYTES)
        finally:
            os.close(fd)
        self.sent = np.frombuffer(self.memory, np.uint8, MAX_BLOCKS)
        self._worker = os.pidfd_open(key.pid)
        weakref.finalize(self, os.close, self._worker).atexit = False

    def has_ended(self) -> bool:
        """Whether the worker has ended, after which its blocks are not reused."""
        return bool(select.select([self._worker], [], [], 0)[0])

    def tensor(self, place: Place) -> Tensor:
        """The tensor in a place; its block is released with the last tensor over it."""
        n_bytes = math.prod(place.shape) * place.dtype.itemsize
        array = np.ndarray((n_bytes,), np.uint8, self.memory, place.offset)
        weakref.finalize(array, self._release, place.block, place.offset, n_bytes).atexit = False
        self.n_tensors += 1
        return torch.from_numpy(array).view(place.dtype).view(place.shape)

    def _release(self, block: int, offset: int, n_bytes: int) -> None:
        if os.getpid() != self.pid:  # a forked child drops its copies; the parent still holds its
            return
        self.n_tensors -= 1
        if self.has_ended():
            self.memory.madvise(mmap.MADV_REMOVE, offset, _round_up(n_bytes, mmap.PAGESIZE))
            if not self.n_tensors:
                _attached.pop(self.key, None)
        self.sent[block] = 0


def _round_up(n_bytes: int, unit: int) -> int:
    return -(-n_bytes // unit) * unit


_own: dict[int, WorkerArena | None] = {}  # by process id: one inherited by fork is not ours
_attached: dict[ArenaKey, AttachedArena] = {}


def worker_arena() -> WorkerArena | None:
    """Return this process's arena, created on first use; None where the system refuses it."""
    pid = os.getpid()
    if pid not in _own:
        _own.clear()
        _own[pid] = _new_arena()
    return _own[pid]


def _new_arena() -> WorkerArena | None:
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY or not _parent_reads_us():
        return None
    try:
        return WorkerArena()
    except OSError:  # batches travel as torch sends them
        return None


def _parent_reads_us() -> bool:
    """Whether this process may open files of its parent: the rule holds in both directions."""
    parent = parent_process()
    if parent is None:
        return False
    try:
        return any(Path(f"/proc/{parent.pid}/fd").iterdir())
    except OSError:
        return False


def _attach(key: ArenaKey) -> AttachedArena:
    """Return the arena of a worker; on its first use, drop those that are no longer needed."""
    if key not in _attached:
        for other, arena in list(_attached.items()):
            if not arena.n_tensors and arena.has_ended():
                del _attached[other]
        _attached[key] = AttachedArena(key)
    return _attached[key]


def _send(batch: Batch) -> tuple:
    """Reduce a batch for multiprocessing: its tensors by place, by value, or as torch does it."""
    arena = _own.get(os.getpid())

    def send(tensor: Tensor) -> Place | Inline | Tensor:
        if tensor.nbytes < SMALL_BYTES and tensor.device.type == "cpu":
            return _inline(tensor)
        place = None if arena is None else arena.send(tensor)
        return tensor if place is None else place

    return _receive, (send(batch.rows), map_columns(batch.columns, send))


def _inline(tensor: Tensor) -> Inline:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return Inline(bytearray(data), tuple(tensor.shape), tensor.dtype)


def _receive(rows: Inline | Place | Tensor, columns: dict) -> Batch:
    """Build the batch that a worker sent."""
    return Batch(_tensor(rows), map_columns(columns, _tensor))


def _tensor(sent: Inline | Place | Tensor) -> Tensor:
    if isinstance(sent, Tensor):
        return sent
    if isinstance(sent, Place):
        return _attach(sent.arena).tensor(sent)
    if not sent.data:  # frombuffer refuses it
        return torch.empty(sent.shape, dtype=sent.dtype)
    return torch.frombuffer(sent.data, dtype=sent.dtype).view(sent.shape)


ForkingPickler.register(Batch, _send)
