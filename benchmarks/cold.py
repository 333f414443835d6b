"""How fast are random rows of 1 MB and 256 KB that are in no cache, against the disk's own speed?

Before each turn the files are put out of the page cache. Anchors: 32 threads that pread the same
ranges in the same order, the plain map (which guesses that what follows comes next), and reading
the file from end to end. A disk that others use too is never the same for long, so a ratio is the
median of the ratios within each turn.
"""

import copy
import os
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.data import MEGABYTE_ROWS, ragged_store, sequential
from benchmarks.flat_copy import FlatCopy
from benchmarks.harness import Epoch, alternate, loader_epoch, parser, run
from benchmarks.tables import finish, ratios

# bytes of a row, and of an item
SIZES = {"1 MB": MEGABYTE_ROWS, "256 KB": (256_000, 2048)}
BATCH_SIZE, N_THREADS = 32, 32
ANCHOR = "pread, 32 threads"


def main(args: Namespace) -> None:
    """Run the anchors and ours, each on files out of the cache, with rows of each size."""
    rows = [row for size in SIZES for row in measure(args, size)]
    finish("cold", args.output, rows, "rows", "contender")


def measure(args: Namespace, size: str) -> list[dict]:
    """Rows of one size."""
    flat = FlatCopy(ragged_store(args.dir, args.size_mb, *SIZES[size]))
    path = args.dir / f"rows-{SIZES[size][0]}-{args.size_mb}.zarr"
    contenders = {
        ANCHOR: pread(flat),
        "plain map": remapped(flat),
        "sequential read": sequential([flat.path]),
        "ours": ours(path, 0),
        "ours, 2 threads": ours(path, 2),
    }
    seconds = alternate(contenders, args.epochs, cold=[path, flat.path])
    rows = ratios(seconds, len(flat), flat.n_bytes, ANCHOR)
    return [{"rows": size} | row for row in rows]


def pread(flat: FlatCopy) -> Epoch:
    """Threads that each read the next row into a buffer of their own."""
    item = flat.items[0].nbytes

    def epoch(number: int) -> None:
        fd = os.open(flat.path, os.O_RDONLY)
        out = bytearray(int(np.diff(flat.offsets).max()) * item * N_THREADS)

        def read(task: tuple[int, int]) -> None:
            slot, row = task
            n = int(flat.offsets[row + 1] - flat.offsets[row]) * item
            start = slot % N_THREADS * (len(out) // N_THREADS)
            os.preadv(fd, [memoryview(out)[start : start + n]], int(flat.offsets[row]) * item)

        rows = [row for batch in flat.batches(number, BATCH_SIZE) for row in batch]
        with ThreadPoolExecutor(N_THREADS) as pool:
            list(pool.map(read, enumerate(rows)))
        os.close(fd)

    return epoch


def remapped(flat: FlatCopy) -> Epoch:
    """The ceiling's loop over a fresh map, whose pages are not in the process yet."""

    def epoch(number: int) -> None:
        fresh = copy.copy(flat)
        fresh.items = flat.mapped()
        fresh.ceiling(BATCH_SIZE)(number)

    return epoch


def ours(path: Path, num_workers: int) -> Epoch:
    """The loader of a store that is opened for the epoch: pages that this process has mapped cannot
    be put out of the cache."""
    return lambda number: loader_epoch(path, BATCH_SIZE, num_workers)(number)


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=5))
