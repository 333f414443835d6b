"""The id table on disk: its runs, read and checked; `ranges.py` knows what is in them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError
from store.format.contents import run_arrays, run_name
from store.read.open_array import open_array
from store.read.shard import RESTORE

__all__ = ["check_run", "read_run"]

Run = tuple[int, int]


def read_run(root: Path, run: Run, inode: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A run's hashes, uint64 ascending, and their rows, int64; mapped. Raises CorruptError."""
    return tuple(
        open_array(root, array, inode=inode).read(0, array.n_items) for array in run_arrays(run)
    )


def check_run(run: Run, hashes: np.ndarray, rows: np.ndarray, sums: Mapping[str, int]) -> None:
    """Compare a run with its checksum, if it has one (the first stores had none); raises
    CorruptError."""
    name, found = run_name(run), crc32c(rows, crc32c(hashes))
    expected = sums.get(name, found)
    if found != expected:
        raise CorruptError(
            f"id table, rows {name}: expected checksum {expected:08x}, found {found:08x}; {RESTORE}"
        )
