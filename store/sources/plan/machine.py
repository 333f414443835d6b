"""What this machine has: cores, memory, GPUs, and how fast a store's files come from its disk.

With it, times and bytes as plans print them.
"""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.memory_limits import read_memory
from store.reports import size_text
from store.system import available_cores, drop_from_cache
from store.write.files import opened

__all__ = ["DiskSpeed", "Gpu", "Machine", "clock_text", "column_table", "read_cold", "read_machine"]
N_THREADS = 8  # of reads at once: a disk is fast only where many are
N_FILES = 256  # that may be read: each takes a descriptor
N_BLOCKS = 16_384  # that may be read
LEAST_BYTES = 16 << 20  # less, and a speed would be mere chance
BLOCK_BYTES = (64 << 10, 4 << 20)  # smallest and largest


def clock_text(seconds: float) -> str:
    """Seconds for people: 12 s, 3.4 min, 5.6 h, 2.3 days."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else "under a second"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def column_table(columns: Mapping[str, int], n_rows: int) -> list[str]:
    """Lines of a table of columns and their bytes, the largest first."""
    total = max(1, sum(columns.values()))
    width = max(map(len, columns), default=0)
    lines = [f"{'column':<{width}}  {'a trace':>9}  {'total':>9}  {'share':>6}"]
    for name, n_bytes in sorted(columns.items(), key=lambda item: -item[1]):
        of_trace, of_all = size_text(n_bytes / max(1, n_rows)), size_text(n_bytes)
        lines.append(f"{name:<{width}}  {of_trace:>9}  {of_all:>9}  {n_bytes / total:>6.1%}")
    return lines


class Gpu(NamedTuple):
    """A GPU, and the bytes of its memory."""

    name: str
    n_bytes: int


class Machine(NamedTuple):
    """What this machine has for this process: cores, memory (see `memory_limits`) and GPUs."""

    n_cores: int
    memory_bytes: int
    available_bytes: int
    gpus: list[Gpu]


class DiskSpeed(NamedTuple):
    """What was read from the disk."""

    # of blocks at random places, several at once; None if too little was there to read
    bytes_per_s: float | None
    n_bytes: int  # how many were read
    cached: float  # the fraction of the blocks that was in memory before, 0 to 1


def read_machine() -> Machine:
    import torch

    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus = [Gpu(device.name, device.total_memory) for device in devices]
    memory = read_memory()
    return Machine(available_cores(), memory.total, memory.available, gpus)


def read_cold(
    files: Sequence[Path], block_bytes: int, max_s: float = 3.0, seed: int = 0
) -> DiskSpeed:
    """Measure how fast blocks at random places come from the disk, for at most `max_s` seconds.

    A block is dropped from the page cache right before it is read, and is in it again afterwards;
    one that stays there does not count. A block is a multiple of 64 KB up to 4 MB.
    """
    least, most = BLOCK_BYTES
    block_bytes = min(max(block_bytes, least), most) // least * least
    rng = np.random.default_rng([seed, len(files)])
    chosen = [files[i] for i in rng.permutation(len(files))[:N_FILES].tolist()]
    n_bytes: list[int] = []
    cached: list[bool] = []

    def read(fd: int, offset: int) -> None:
        if time.monotonic() - began > max_s:
            return
        cached.append(_is_cached(fd, offset))
        if drop_from_cache(fd, offset, block_bytes) and not _is_cached(fd, offset):
            n_bytes.append(len(os.pread(fd, block_bytes, offset)))

    with ExitStack() as stack:
        fds = np.array([stack.enter_context(opened(file)) for file in chosen], int)
        n_blocks = np.array([-(-os.fstat(fd).st_size // block_bytes) for fd in fds], int)
        ends = np.cumsum(n_blocks)
        drawn = rng.permutation(n_blocks.sum())[:N_BLOCKS]
        of_file = np.searchsorted(ends, drawn, side="right")
        offsets = (drawn - (ends - n_blocks)[of_file]) * block_bytes
        began = time.monotonic()
        with ThreadPoolExecutor(N_THREADS) as pool:
            list(pool.map(read, fds[of_file].tolist(), offsets.tolist()))
        seconds = time.monotonic() - began
    total = sum(n_bytes)
    speed = total / seconds if total >= LEAST_BYTES else None
    return DiskSpeed(speed, total, float(np.mean(cached or [False])))


def _is_cached(fd: int, offset: int) -> bool:
    """Whether the first byte of a block is in memory; False where the file system cannot say."""
    with suppress(OSError):  # BlockingIOError: it would have to wait for the disk
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    return False
