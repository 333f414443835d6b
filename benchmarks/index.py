"""Does opening a store or finding an id depend on how many there are? 10^4 to 10^7 ids.

Each size is measured in a process of its own: the time to open, the private memory that opening and
one look-up add, and look-ups of ids chosen at random (found, and absent).
"""

import statistics
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.data import made_once
from benchmarks.harness import clocks, in_new_process, parser, private_bytes, run
from benchmarks.tables import finish
from store import Column, Schema, StoreWriter, TraceStore

N_LOOKUPS = 2000
BLOCK_ROWS = 1 << 18


def main(args: Namespace) -> None:
    """Every power of ten up to the size asked for."""
    results, n_ids = [], 10**4
    while n_ids <= args.max_ids:
        path = made_once(args.dir / f"index-{n_ids}.zarr", partial(write_ids, n_ids=n_ids))
        results.append({"ids": n_ids} | in_new_process(measure, path, n_ids, args.epochs))
        n_ids *= 10
    finish("index", args.output, results, "ids")


def write_ids(path: Path, n_ids: int) -> None:
    """A store of so many rows with hardly anything but ids, in blocks: row by row, ten million take
    minutes. A block is as large as the commits that a writer makes by itself."""
    with StoreWriter.create(path, Schema({"label": Column("int8")})) as writer:
        for start in range(0, n_ids, BLOCK_ROWS):
            ids = [f"trace_{i}" for i in range(start, min(start + BLOCK_ROWS, n_ids))]
            writer.append_many(ids, {"label": np.zeros(len(ids), np.int8)})


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
    seconds, _ = clocks(lambda: [trace_id in store for trace_id in ids])
    return 1e6 * seconds / len(ids)


OPTIONS = {"--max-ids": (10**7, "largest store")}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=0, epochs=5, options=OPTIONS))
