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

import math
import mmap
import os
import resource
import select
import weakref
from dataclasses import dataclass
from functools import cache
from multiprocessing import parent_process
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from store.read.arrays.buffers import HUGE_PAGE, SMALL_BYTES, block_bytes
from store.read.batches.batch import Batch
from store.read.batches.tensors import map_columns
from store.system import use_huge_pages

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
    """Where the bytes of a large tensor are."""

    arena: ArenaKey
    block: int
    offset: int
    n_bytes: int


class Sent(NamedTuple):
    """A tensor on its way; a small one by value, which is cheaper than any shared memory."""

    data: np.ndarray | Place
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Block:
    """A range of an arena, of whole pages; once trimmed it has no memory until it is written."""

    number: int
    offset: int
    n_bytes: int
    is_trimmed: bool = False


class WorkerArena:
    """The arena in its worker: hands out blocks, and reuses those that neither process holds.

    The file begins with one byte a block: whether the parent holds it. What the worker itself holds
    is recorded in this object. Raises OSError if the kernel refuses the file or the addresses.
    """

    def __init__(self) -> None:
        fd = os.memfd_create("trace-store", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, ARENA_BYTES)
            self.memory = mmap.mmap(fd, ARENA_BYTES)  # shared; charged page by page, when touched
        except OSError:
            os.close(fd)
            raise
        use_huge_pages(self.memory)
        self.key = ArenaKey(os.getpid(), fd, os.urandom(8))
        self.sent = np.frombuffer(self.memory, np.uint8, MAX_BLOCKS)
        self._address = self.sent.ctypes.data
        self._held: set[int] = set()  # numbers of blocks under arrays of this process
        self._blocks: dict[int, Block] = {}  # by offset, the least recently used first
        self._end = HUGE_PAGE
        Finalize(self, self._trim, (0,), exitpriority=0)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised, writable array; ordinary memory if it is small or the arena is full."""
        n_bytes = math.prod(shape) * dtype.itemsize
        block = None if n_bytes < SMALL_BYTES else self._take(block_bytes(n_bytes))
        if block is None:
            return np.empty(shape, dtype)
        array = np.ndarray(shape, dtype, self.memory, block.offset)
        weakref.finalize(array, self._held.discard, block.number).atexit = False
        return array

    def _take(self, n_bytes: int) -> Block | None:
        """A free block of fitting size, or a new one; None if there is no room."""
        block = self._find_free(n_bytes) or self._new_block(n_bytes)
        if block is not None:
            self._blocks.pop(block.offset, None)
            self._blocks[block.offset] = block  # as the most recently used
            block.is_trimmed = False
            self._held.add(block.number)
        return block

    def _find_free(self, n_bytes: int) -> Block | None:
        for block in reversed(self._blocks.values()):
            if n_bytes <= block.n_bytes <= 2 * n_bytes and self._is_free(block):
                return block
        return None

    def _new_block(self, n_bytes: int) -> Block | None:
        self._trim(MAX_IDLE_BYTES)
        if len(self._blocks) == MAX_BLOCKS or self._end + n_bytes > ARENA_BYTES:
            return None
        block = Block(len(self._blocks), self._end, n_bytes)
        self._end += _round_up(n_bytes, HUGE_PAGE)
        return block

    def _is_free(self, block: Block) -> bool:
        return block.number not in self._held and not self.sent[block.number]

    def _trim(self, max_idle_bytes: int) -> None:
        """Return the memory of free blocks, the least recently used first, down to a limit."""
        idle = [
            block
            for block in self._blocks.values()
            if not block.is_trimmed and self._is_free(block)
        ]
        n_bytes = sum(block.n_bytes for block in idle)
        for block in idle:
            if n_bytes <= max_idle_bytes:
                break
            self.memory.madvise(mmap.MADV_REMOVE, block.offset, block.n_bytes)
            block.is_trimmed = True
            n_bytes -= block.n_bytes

    def send(self, tensor: Tensor) -> Place | None:
        """Share the block that a tensor begins: its place; None if the tensor begins none."""
        block = self._blocks.get(tensor.data_ptr() - self._address)
        if block is None or self.sent[block.number] or not tensor.is_contiguous():
            return None
        self.sent[block.number] = 1
        return Place(self.key, block.number, block.offset, tensor.nbytes)


class AttachedArena:
    """A worker's arena in its parent: mapped until the worker has ended and no tensor is left."""

    def __init__(self, key: ArenaKey) -> None:
        self.pid = os.getpid()
        self.n_tensors = 0
        with Path(f"/proc/{key.pid}/fd/{key.fd}").open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), ARENA_BYTES)
        self.sent = np.frombuffer(self.memory, np.uint8, MAX_BLOCKS)
        self._worker = os.pidfd_open(key.pid)
        weakref.finalize(self, os.close, self._worker).atexit = False

    def has_ended(self) -> bool:
        """Whether the worker has ended, after which its blocks are not reused."""
        poll = select.poll()  # not `select`, which refuses descriptors from 1024 on
        poll.register(self._worker, select.POLLIN)
        return bool(poll.poll(0))

    def data(self, place: Place) -> np.ndarray:
        """The bytes in a place; its block is released with the last tensor over them."""
        array = np.frombuffer(self.memory, np.uint8, place.n_bytes, place.offset)
        weakref.finalize(array, self._release, place).atexit = False
        self.n_tensors += 1
        return array

    def _release(self, place: Place) -> None:
        if os.getpid() != self.pid:  # a forked child drops its copies; the parent still holds its
            return
        self.n_tensors -= 1
        if self.has_ended():
            n_bytes = _round_up(place.n_bytes, mmap.PAGESIZE)
            self.memory.madvise(mmap.MADV_REMOVE, place.offset, n_bytes)
            _drop_unneeded()
        self.sent[place.block] = 0


def _round_up(n_bytes: int, unit: int) -> int:
    return -(-n_bytes // unit) * unit


_attached: dict[ArenaKey, AttachedArena] = {}


@cache
def worker_arena() -> WorkerArena | None:
    """Return this process's arena, created on first use; None where the system refuses it."""
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY or not _parent_reads_us():
        return None
    try:
        return WorkerArena()
    except OSError:  # batches travel as torch sends them
        return None


os.register_at_fork(after_in_child=worker_arena.cache_clear)  # one inherited by fork is not ours


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
        _drop_unneeded()
        _attached[key] = AttachedArena(key)
    return _attached[key]


def _drop_unneeded() -> None:
    for key, arena in list(_attached.items()):
        if not arena.n_tensors and arena.has_ended():
            _attached.pop(key, None)


def _send(batch: Batch) -> tuple:
    """Reduce a batch for multiprocessing: its tensors by place, by value, or as torch does it."""
    if batch.arrays == "numpy":
        return Batch, (batch.rows, batch.columns)
    arena = worker_arena()

    def send(tensor: Tensor) -> Sent | Tensor:
        data: np.ndarray | Place | None = None
        if not tensor.numel():  # its strides may be 0, and then no other dtype is a view of it
            return tensor
        if tensor.nbytes < SMALL_BYTES and tensor.device.type == "cpu":
            data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        elif arena is not None:
            data = arena.send(tensor)
        return tensor if data is None else Sent(data, tuple(tensor.shape), tensor.dtype)

    return _receive, (send(batch.rows), map_columns(batch.columns, send))


def _receive(rows: Sent | Tensor, columns: dict) -> Batch:
    """Build the batch that a worker sent."""
    return Batch(_tensor(rows), map_columns(columns, _tensor))


def _tensor(sent: Sent | Tensor) -> Tensor:
    if isinstance(sent, Tensor):
        return sent
    data = sent.data
    if isinstance(data, Place):
        data = _attach(data.arena).data(data)
    return torch.from_numpy(data).view(sent.dtype).view(sent.shape)


ForkingPickler.register(Batch, _send)
