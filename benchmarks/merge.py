"""What does a merge by reference cost, and what does reading a merged store?

Parts are merged by reference and copied, as merges were before; and read in a shuffled order,
against the same rows written as one store in as many shards, batch by batch in turns. What both
give is compared bit for bit. Ratios are medians of the turns'.
"""

import math
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import torch

from benchmarks.data import make_store, ragged_rows
from benchmarks.harness import Epoch, alternate, parser, run
from benchmarks.tables import GB, finish, median_ratio
from store import Column, TraceLoader, TraceStore
from store.read.joined.joined_store import Stores
from store.transform.merge import merge_stores

SHARD_PER_PART = 1.02  # so that both stores have as many shards, as those of large parts have
READ = {"1 MB": (2**20, 8192, 32), "4 KB": (4096, 512, 256)}  # bytes of rows and items, batch size


def main(args: Namespace) -> None:
    """Merge and read parts."""
    results: list[dict] = []
    for name, (row_bytes, item_bytes, batch_size) in READ.items():
        one, parts = make_rows(args, row_bytes, item_bytes)
        results += compare_merges(args, name, parts)
        merged = TraceStore.open(args.dir / f"merged-{name.replace(' ', '')}-by.zarr")
        stores = {"written as one": one, "merged by reference": merged}
        results += compare_reading(args, name, stores, batch_size)
    named_by = ("what", "contender")
    finish("merge", args.results, results, "x_baseline", "x_baseline", named_by)


def make_rows(
    args: Namespace, row_bytes: int, item_bytes: int
) -> tuple[TraceStore, list[TraceStore]]:
    """Random rows as one store, and as parts of about a shard each."""
    chunk_items = max(1, 65_536 // item_bytes)
    n_chunks = args.size_mb * 10**6 / args.parts / item_bytes / chunk_items
    shard_items = math.ceil(SHARD_PER_PART * n_chunks) * chunk_items
    sizes = {"chunk_items": chunk_items, "shard_items": shard_items}
    columns = {"x": Column("float16", (item_bytes // 2,), "t", **sizes)}
    rows = partial(ragged_rows, args.size_mb, row_bytes, item_bytes)
    one = make_store(args.dir / f"one-{row_bytes}.zarr", columns, rows)
    source = rows()
    parts = []
    for i in range(args.parts):
        n_rows = len(one) * (i + 1) // args.parts - len(one) * i // args.parts
        some = list(islice(source, n_rows))
        path = args.dir / f"part-{row_bytes}-{i}.zarr"
        parts.append(make_store(path, columns, lambda some=some: iter(some)))
    return one, parts


def compare_merges(args: Namespace, name: str, parts: Sequence[TraceStore]) -> list[dict]:
    """Merge by reference and by copying, in turns."""

    def merge(kind: str) -> Epoch:
        out = args.dir / f"merged-{name.replace(' ', '')}-{kind.split()[0]}.zarr"

        def once(number: int) -> None:
            shutil.rmtree(out, ignore_errors=True)
            merge_stores(out, parts, lambda done: None, copy=kind == "copied")

        return once

    contenders = {kind: merge(kind) for kind in ("copied", "by reference")}
    seconds = alternate(contenders, 1, warm=False)
    return _rows(f"merge, {name} rows", seconds, "copied")


def compare_reading(
    args: Namespace, name: str, stores: Mapping[str, Stores], batch_size: int
) -> list[dict]:
    """Read the same rows, of a store or of several as one, in the same shuffled order, batch by
    batch in turns; the first is the baseline."""
    loaders = {
        kind: TraceLoader(store, ["x"], batch_size, shuffle=True) for kind, store in stores.items()
    }
    for ours, theirs in zip(*loaders.values(), strict=True):
        same = torch.equal(ours["x"].values.view(torch.int16), theirs["x"].values.view(torch.int16))
        if not same or not torch.equal(ours["x"].offsets, theirs["x"].offsets):
            raise AssertionError(f"{name} rows: the stores give different batches")
    seconds: dict[str, list[float]] = {kind: [] for kind in loaders}
    for number in range(args.epochs):
        for kind, times in read_in_turns(loaders, number).items():
            seconds[kind] += times
    baseline, loader = next(iter(loaders.items()))
    item_bytes = loader.store.schema.columns["x"].item_bytes
    n_bytes = loader.store.n_items("x") * item_bytes / len(loader)
    return _rows(f"read a batch, {name} rows", seconds, baseline, n_bytes)


def read_in_turns(loaders: dict[str, TraceLoader], epoch: int) -> dict[str, list[float]]:
    """Seconds of every batch of an epoch; who is first changes with each."""
    for loader in loaders.values():
        loader.set_epoch(epoch)
    batches = {kind: iter(loader) for kind, loader in loaders.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in loaders}
    for i in range(len(next(iter(loaders.values())))):
        for kind in list(batches)[:: -1 if i % 2 else 1]:
            start = time.perf_counter()
            next(batches[kind])
            seconds[kind].append(time.perf_counter() - start)
    return seconds


def _rows(
    what: str, seconds: dict[str, list[float]], baseline: str, n_bytes: float = 0
) -> list[dict]:
    """A row for each contender: the median, and its speed as a ratio to the baseline's."""
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        row = {"what": what, "contender": name, "seconds": round(median, 6)}
        row["x_baseline"] = round(median_ratio(seconds[baseline], times), 3)
        if n_bytes:
            row["GB_per_s"] = round(n_bytes / median / GB, 3)
        rows.append(row)
    return rows


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=500, epochs=9, options={"--parts": (100, "parts")}))
