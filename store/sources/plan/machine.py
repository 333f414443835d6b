"""What this machine has: cores, memory, GPUs, and how fast a store's files come from its disk."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.memory_limits import read_memory
from store.write.files import opened

__all__ = ["DiskSpeed", "Gpu", "Machine", "read_cold", "read_machine"]

N_THREADS = 8  # of reads at once: a disk is fast only where many are
N_FILES = 256  # that may be read: each takes a descriptor
N_BLOCKS = 16_384  # that may be read
N_LOOKED_AT = 512  # blocks that tell how much of the files is in memory
LEAST_BYTES = 16 << 20  # less, and a speed would be mere chance
EVICTED_BYTES = 512 << 20  # at most, where all of the files is in memory
NOWAIT = os.RWF_NOWAIT  # read what is in memory alone
BLOCK_BYTES = (64 << 10, 4 << 20)  # smallest and largest


class Gpu(NamedTuple):
    """A GPU, and the bytes of its memory."""

    name: str
    n_bytes: int


class Machine(NamedTuple):
    """What this machine has for this process.

    Attributes
    ----------
    n_cores
        Cores that the process may run on.
    memory_bytes
        Memory of the machine, or of the job if that is less.
    available_bytes
        What of it is free, or would be if it were needed; see `memory_limits`.
    gpus
        The GPUs that torch sees.
    """

    n_cores: int
    memory_bytes: int
    available_bytes: int
    gpus: list[Gpu]


class DiskSpeed(NamedTuple):
    """What was read from the disk.

    Attributes
    ----------
    bytes_per_s
        Of blocks at random places, several at once; None if too little was there to read.
    n_bytes
        How many were read.
    cached
        The fraction of the files that was in memory before, 0 to 1, from a sample.
    """

    bytes_per_s: float | None
    n_bytes: int
    cached: float


class _Block(NamedTuple):
    fd: int
    offset: int
    n_bytes: int


def read_machine() -> Machine:
    """Ask the kernel and torch."""
    import torch

    gpus = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        gpus.append(Gpu(properties.name, properties.total_memory))
    memory = read_memory()
    return Machine(len(os.sched_getaffinity(0)), memory.total, memory.available, gpus)


def read_cold(
    files: Sequence[Path], block_bytes: int, max_s: float = 3.0, seed: int = 0
) -> DiskSpeed:
    """Measure how fast blocks at random places come from the disk, for at most `max_s` seconds.

    Blocks that are in memory do not count. Where nearly all are, some are dropped from the page
    cache first, at most 512 MB; the next reader reads them from the disk again.

    Parameters
    ----------
    files
        To read.
    block_bytes
        Of one read, which is made a multiple of a page between 64 KB and 4 MB.
    max_s
        Seconds.
    seed
        Of the places.
    """
    least, most = BLOCK_BYTES
    block_bytes = min(max(block_bytes, least), most) // least * least
    rng = np.random.default_rng([seed, len(files)])
    chosen = [files[i] for i in rng.permutation(len(files))[:N_FILES].tolist()]
    with ExitStack() as stack:
        fds = [stack.enter_context(opened(file)) for file in chosen]
        blocks = _draw_blocks(fds, block_bytes, rng)
        looked_at = blocks[:N_LOOKED_AT]
        cached = [float(_is_cached(block)) for block in looked_at]
        fraction = float(np.mean(cached or [0.0]))
        if fraction > 0.5:
            blocks = _evict(blocks)
        n_bytes, seconds = _read_all(blocks, max_s)
    speed = n_bytes / seconds if n_bytes >= LEAST_BYTES else None
    return DiskSpeed(speed, n_bytes, fraction)


def _draw_blocks(fds: Sequence[int], block_bytes: int, rng: np.random.Generator) -> list[_Block]:
    """Different blocks of all files, in random order."""
    sizes = [os.fstat(fd).st_size for fd in fds]
    counts = np.array([-(-size // block_bytes) for size in sizes], np.int64)
    ends = np.cumsum(counts)
    n_blocks = int(counts.sum())
    drawn = rng.permutation(n_blocks)[:N_BLOCKS]
    blocks = []
    for number in drawn.tolist():
        file = int(np.searchsorted(ends, number, side="right"))
        offset = (number - int(ends[file] - counts[file])) * block_bytes
        blocks.append(_Block(fds[file], offset, min(block_bytes, sizes[file] - offset)))
    return blocks


def _is_cached(block: _Block) -> bool:
    """Whether the last byte of a block is in memory; False where the file system cannot say."""
    with suppress(OSError):  # BlockingIOError: it would have to wait for the disk
        return os.preadv(block.fd, [bytearray(1)], block.offset + block.n_bytes - 1, NOWAIT) == 1
    return False


def _evict(blocks: Sequence[_Block]) -> list[_Block]:
    """Drop the first blocks from the page cache, and return them."""
    evicted: list[_Block] = []
    n_bytes = 0
    for block in blocks:
        n_bytes += block.n_bytes
        if n_bytes > EVICTED_BYTES:
            break
        os.posix_fadvise(block.fd, block.offset, block.n_bytes, os.POSIX_FADV_DONTNEED)
        evicted.append(block)
    return evicted


def _read_all(blocks: Sequence[_Block], max_s: float) -> tuple[int, float]:
    """Read until the time is up: bytes that came from the disk, and seconds."""
    counts = [0] * N_THREADS
    waiting = iter(blocks)
    lock = threading.Lock()
    began = time.monotonic()

    def take() -> Iterator[_Block]:
        while time.monotonic() - began < max_s:
            with lock:
                block = next(waiting, None)
            if block is None:
                return
            yield block

    def run(thread: int) -> None:
        for block in take():
            if not _is_cached(block):
                counts[thread] += len(os.pread(block.fd, block.n_bytes, block.offset))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), max(time.monotonic() - began, 1e-9)
