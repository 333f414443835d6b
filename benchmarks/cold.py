"""How fast are random rows of 1 MB and 256 KB that are in no cache, against the disk's own speed?

Before each turn the files are put out of the page cache. Anchors: 32 threads that pread the same
ranges in the same order, the plain map (which guesses that what follows comes next), and reading
the file from end to end. A disk that others use too is never the same for long, so a ratio is the
median of the ratios within each turn.
"""

import os
import statistics
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.harness import (
    FlatCopy,
    alternate_cold,
    finish,
    make_store,
    parser,
    ragged_rows,
    ratios,
    run,
    sequential,
)
from store import Column, TraceLoader

# bytes of a row, and of an item
SIZES = {"1 MB": (1_000_000, 4096), "256 KB": (256_000, 2048)}
BATCH_SIZE, N_THREADS = 32, 32
ANCHOR = "pread, 32 threads"


def main(args: Namespace) -> None:
    """Run the anchors and ours, each on files out of the cache, with rows of each size."""
    rows = [row for size in SIZES for row in measure(args, size)]
    finish("cold", args.results, rows, "x_pread,_32_threads")


def measure(args: Namespace, size: str) -> list[dict]:
    row_bytes, item_bytes = SIZES[size]
    path = args.dir / f"cold-{args.size_mb}-{row_bytes // 1000}.zarr"
    columns = {"x": Column("float16", (item_bytes // 2,), axis="t")}
    store = make_store(path, columns, lambda: ragged_rows(args.size_mb, row_bytes, item_bytes))
    flat = FlatCopy(store)
    del store  # pages that this process has mapped cannot be put out of the cache
    contenders = {
        ANCHOR: pread(flat),
        "plain map": remapped(flat),
        "sequential read": sequential([flat.path]),
        "ours": ours(path, 0),
        "ours, 2 threads": ours(path, 2),
    }
    seconds = alternate_cold(contenders, args.epochs, [path, flat.path])
    rows = []
    for row in ratios(seconds, len(flat), flat.n_bytes, ANCHOR):
        times = seconds[row["contender"]]
        within = [a / b for a, b in zip(seconds[ANCHOR], times, strict=True)]
        row["x_pread,_32_threads"] = round(statistics.median(within), 3)
        rows.append({"rows": size} | row)
    return rows


def pread(flat: FlatCopy) -> Callable[[int], None]:
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


def remapped(flat: FlatCopy) -> Callable[[int], None]:
    """The ceiling's loop over a fresh map, whose pages are not in the process yet."""

    def epoch(number: int) -> None:
        fresh = FlatCopy.__new__(FlatCopy)
        fresh.offsets = flat.offsets
        fresh.items = np.memmap(flat.path, flat.items.dtype, "r").reshape(flat.items.shape)
        fresh.ceiling(BATCH_SIZE)(number)

    return epoch


def ours(path: object, num_workers: int) -> Callable[[int], None]:
    def epoch(number: int) -> None:
        loader = TraceLoader(path, ["x"], BATCH_SIZE, shuffle=True, num_workers=num_workers)
        loader.set_epoch(number)
        for _ in loader:
            pass

    return epoch


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=7))
