"""Does opening a store or finding an id depend on how many there are? 10^4 to 10^7 ids.

Each size is measured in a process of its own: the time to open, the private memory that opening and
one look-up add, and look-ups of ids chosen at random (found, and absent).
"""

import multiprocessing
import shutil
import statistics
import time
from argparse import Namespace
from pathlib import Path

import numpy as np

from benchmarks.harness import Parser, finish, parser, private_bytes, run
from benchmarks.view_stores import BLOCK_ROWS, append_block, encode
from store import Column, Schema, StoreWriter, TraceStore
from store.format.schema import TRACE_ID

N_LOOKUPS = 2000


def main(args: Namespace) -> None:
    """Every power of ten up to the size asked for."""
    results, n_ids = [], 10**4
    while n_ids <= args.max_ids:
        path = args.dir / f"index-{n_ids}.zarr"
        if not path.exists():
            partial = path.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a run with --keep that was stopped
            write_ids(partial, n_ids)
            partial.rename(path)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results.append({"ids": n_ids} | pool.apply(measure, (path, n_ids, args.epochs)))
        n_ids *= 10
    finish("index", args.results, results, "median_lookup_us", "median_lookup_us", ["ids"])


def write_ids(path: Path, n_ids: int) -> None:
    """A store of so many rows with hardly anything but ids, in blocks: row by row, ten million take
    minutes. A block is as large as the commits that a writer makes by itself."""
    with StoreWriter.create(path, Schema({"label": Column("int8")})) as writer:
        for start in range(0, n_ids, BLOCK_ROWS):
            ids = [f"trace_{i}" for i in range(start, min(start + BLOCK_ROWS, n_ids))]
            items, lengths = encode({TRACE_ID: ids})
            append_block(writer, ids, items | {"label": np.zeros(len(ids), np.int8)}, lengths)


def measure(path: Path, n_ids: int, epochs: int) -> dict:
    TraceStore.open(path).row_of("trace_0")  # whatever the first use of any store costs
    before, start = private_bytes(), time.perf_counter()
    store = TraceStore.open(path)
    open_ms = 1000 * (time.perf_counter() - start)
    store.row_of("trace_1")
    grown = private_bytes() - before
    ids = [f"trace_{i}" for i in np.random.default_rng(0).integers(0, n_ids, N_LOOKUPS)]
    found_us = [lookup_us(store, ids) for _ in range(epochs)]
    absent = [f"{i}?" for i in ids]
    absent_us = [lookup_us(store, absent) for _ in range(epochs)]
    return {
        "open_ms": round(open_ms, 2),
        "grown_MB": round(grown / 1e6, 2),
        "median_lookup_us": round(statistics.median(found_us), 1),
        "best_lookup_us": round(min(found_us), 1),
        "absent_us": round(statistics.median(absent_us), 1),
    }


def lookup_us(store: TraceStore, ids: list[str]) -> float:
    start = time.perf_counter()
    for trace_id in ids:
        trace_id in store  # noqa: B015
    return 1e6 * (time.perf_counter() - start) / len(ids)


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=0, epochs=5)
    made.add_argument(
        "--max-ids", type=int, default=10**7, help="largest store (default %(default)s)"
    )
    return made


if __name__ == "__main__":
    run(main, options())
