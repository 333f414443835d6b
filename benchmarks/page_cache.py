"""What of the test data the page cache holds, and how."""

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["drop_caches", "read_back", "sequential"]


def drop_caches(paths: Sequence[Path]) -> None:
    """Drop these files from the page cache, so that the next read comes from the disk.

    No process may have them mapped.
    """
    gc.collect()
    for root in paths:
        for path in [root] if root.is_file() else root.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)


def sequential(paths: Sequence[Path]) -> Callable[[int], None]:
    """Reading files from end to end."""

    def epoch(number: int) -> None:
        buffer = memoryview(bytearray(8 * 2**20))
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    return epoch


def read_back(path: Path) -> None:
    """Have the page cache hold a file or a folder as one that was read, not one just written.

    Pages that were written lie in smaller pieces: a map of them was read up to a sixth slower.
    """
    drop_caches([path])
    sequential([file for file in [path, *path.rglob("*")] if file.is_file()])(0)
