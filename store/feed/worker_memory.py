"""Memory that a worker process fills and its parent uses: batches cross without being copied.

torch moves a tensor between processes through fresh shared memory: one more copy, and a page fault
for every 4 KiB on both sides. Here each worker has one anonymous file, its arena, that both
processes map. The worker reads rows straight into a block of it and sends the place instead of the
bytes. A block is used again when the worker's and the parent's last tensors over it are both gone.
The file has no name and needs no /dev/shm.

Only what multiprocessing sends is treated so; plain pickling and copying of a batch copy its bytes.
A process that the parent forks sees its batches only as long as the parent holds them: copy there
what shall last.
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

ARENA_BYTES = 1 << 40  # addresses; memory is used where something was written
MAX_BLOCKS = 1 << 16
MAX_IDLE_BYTES = 128 * 1024 * 1024


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


@dataclass
class Block:
    """A range of an arena; `n_bytes` are whole pages. A trimmed one has no memory until it is
    written again."""

    number: int
    n_bytes: int
    is_trimmed: bool = False


class WorkerArena:
    """The worker's side: gives out blocks, and takes again those that nobody holds.

    The file begins with a byte for each block: whether the parent holds it. Who of the worker holds
    it is known here.

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
        self._blocks: dict[int, Block] = {}  # by offset; the latest used is last
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
        fits = (
            at
            for at in reversed(self._blocks)
            if n_bytes <= self._blocks[at].n_bytes <= 2 * n_bytes
        )
        offset = next((at for at in fits if self._is_free(self._blocks[at])), None)
        if offset is not None:
            block = self._blocks.pop(offset)
        else:
            self._trim(MAX_IDLE_BYTES)
            if len(self._blocks) == MAX_BLOCKS or self._end + n_bytes > ARENA_BYTES:
                return None
            offset, block = self._end, Block(len(self._blocks), n_bytes)
            self._end += -(-n_bytes // HUGE_PAGE) * HUGE_PAGE
        block.is_trimmed = False
        self._blocks[offset] = block
        self._held.add(block.number)
        return offset

    def _is_free(self, block: Block) -> bool:
        return block.number not in self._held and not self.sent[block.number]

    def _trim(self, max_idle_bytes: int) -> None:
        """Return the memory of free blocks beyond a number of bytes, those not used for longest
        first."""
        idle = [
            (at, block)
            for at, block in self._blocks.items()
            if not block.is_trimmed and self._is_free(block)
        ]
        n_bytes = sum(block.n_bytes for _, block in idle)
        for at, block in idle:
            if n_bytes <= max_idle_bytes:
                break
            self.memory.madvise(mmap.MADV_REMOVE, at, block.n_bytes)
            block.is_trimmed = True
            n_bytes -= block.n_bytes

    def send(self, tensor: Tensor) -> Place | None:
        """Share a block with the parent: the place of a tensor that begins one, or None if this
        tensor does not."""
        offset = tensor.data_ptr() - self._address
        block = self._blocks.get(offset)
        if block is None or self.sent[block.number] or not tensor.is_contiguous():
            return None
        self.sent[block.number] = 1
        return Place(self.key, block.number, offset, tuple(tensor.shape), tensor.dtype)


class AttachedArena:
    """The parent's side: the same file, mapped until its worker has ended and no tensor is left
    over it."""

    def __init__(self, key: ArenaKey) -> None:
        self.key, self.pid, self.n_tensors = key, os.getpid(), 0
        fd = os.open(f"/proc/{key.pid}/fd/{key.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self.memory = mmap.mmap(fd, ARENA_BYTES)
        finally:
            os.close(fd)
        self.sent = np.frombuffer(self.memory, np.uint8, MAX_BLOCKS)
        self._worker = os.pidfd_open(key.pid)
        weakref.finalize(self, os.close, self._worker).atexit = False

    def has_ended(self) -> bool:
        """Whether the worker has, so that nobody uses its blocks again."""
        return bool(select.select([self._worker], [], [], 0)[0])

    def tensor(self, place: Place) -> Tensor:
        """The tensor in a place; its block goes back when the last that looks at it is gone."""
        n_bytes = math.prod(place.shape) * place.dtype.itemsize
        array = np.ndarray((n_bytes,), np.uint8, self.memory, place.offset)
        weakref.finalize(array, self._release, place.block, place.offset, n_bytes).atexit = False
        self.n_tensors += 1
        return torch.from_numpy(array).view(place.dtype).view(place.shape)

    def _release(self, block: int, offset: int, n_bytes: int) -> None:
        # a forked child lets go of what it inherited; the parent still holds it
        if os.getpid() != self.pid:
            return
        self.n_tensors -= 1
        if self.has_ended():
            self.memory.madvise(
                mmap.MADV_REMOVE, offset, -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            )
            if not self.n_tensors:
                _attached.pop(self.key, None)
        self.sent[block] = 0


_own: dict[int, WorkerArena | None] = {}  # by process; one inherited by fork is not ours
_attached: dict[ArenaKey, AttachedArena] = {}


def worker_arena() -> WorkerArena | None:
    """This worker process's arena, made when first asked for; None where it cannot be had."""
    if os.getpid() not in _own:
        _own.clear()
        _own[os.getpid()] = _new_arena()
    return _own[os.getpid()]


def _new_arena() -> WorkerArena | None:
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if limited or not _parent_reads_us():
        return None
    try:
        return WorkerArena()
    except OSError:  # batches travel as torch sends them
        return None


def _parent_reads_us() -> bool:
    """Whether processes of this user may open each other's files: the same rule holds in both
    directions."""
    parent = parent_process()
    try:
        return (
            parent is not None and next(Path(f"/proc/{parent.pid}/fd").iterdir(), None) is not None
        )
    except OSError:
        return False


def _attach(key: ArenaKey) -> AttachedArena:
    """The map of a worker's file; those that nobody needs any more are let go."""
    if key not in _attached:
        for other, arena in list(_attached.items()):
            if not arena.n_tensors and arena.has_ended():
                del _attached[other]
        _attached[key] = AttachedArena(key)
    return _attached[key]


def _send(batch: Batch) -> tuple:
    """How multiprocessing pickles a batch."""
    arena = _own.get(os.getpid())

    def send(tensor: Tensor) -> Place | Inline | Tensor:
        if tensor.nbytes < SMALL_BYTES and tensor.device.type == "cpu":
            return _inline(tensor)
        return (arena and arena.send(tensor)) or tensor

    return _receive, (send(batch.rows), map_columns(batch.columns, send))


def _inline(tensor: Tensor) -> Inline:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return Inline(bytearray(data), tuple(tensor.shape), tensor.dtype)


def _receive(rows: Inline | Place | Tensor, columns: dict) -> Batch:
    """The batch that a worker sent."""
    return Batch(_tensor(rows), map_columns(columns, _tensor))


def _tensor(sent: Inline | Place | Tensor) -> Tensor:
    if isinstance(sent, Tensor):
        return sent
    if isinstance(sent, Inline):
        data = (
            torch.frombuffer(sent.data, dtype=sent.dtype)
            if sent.data
            else torch.empty(0, dtype=sent.dtype)
        )
        return data.view(sent.shape)
    return _attach(sent.arena).tensor(sent)


ForkingPickler.register(Batch, _send)
