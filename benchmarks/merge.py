"""What does a merge by reference cost, and what does reading a merged store?

Parts of a large extraction, 10 GB each, as sparse files (their states are zeros that take no space
on the disk): seconds, and bytes written as a share of the parts' bytes. Real data, merged by
reference and copied, as merges were before; and read in a shuffled order, against the same rows
written as one store in as many shards, batch by batch in turns. What both give is compared bit for
bit. Ratios are of medians.
"""

import math
import os
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import (
    GB,
    Parser,
    alternate,
    finish,
    make_store,
    parser,
    plot_bars,
    ragged_rows,
    run,
)
from store import Column, Schema, StoreWriter, TraceLoader, TraceStore
from store.format.shard_table import table_bytes
from store.transform.merge import merge_stores
from store.write.files import Files
from store.write.link import link_stores
from store.write.space import bytes_under

# a sparse row: 1 MB of states
ITEMS = 32
LAYERS = 32
HIDDEN = 512
SPARSE = {
    "hidden_states": Column("float16", (LAYERS, HIDDEN), "tokens", ("layers", "hidden")),
    "tokens": Column("int32", axis="tokens"),
    "question_id": Column("utf8"),
    "label": Column("int8"),
}
SHARD_PER_PART = 1.02  # so that both stores have as many shards, as those of large parts have
READ = {"1 MB": (2**20, 8192, 32), "4 KB": (4096, 512, 256)}  # bytes of rows and items, batch size


def main(args: Namespace) -> None:
    """Merge and read real parts, then merge sparse ones."""
    results: list[dict] = []
    for name, (row_bytes, item_bytes, batch_size) in READ.items():
        one, parts = make_rows(args, row_bytes, item_bytes)
        results += compare_merges(args, name, parts)
        results += compare_reading(args, name, one, batch_size)
    sparse = merge_sparse(args.dir, args.parts, args.part_mb)
    finish(
        "merge",
        args.results,
        [sparse, *results],
        lambda picture: plot_bars(results, "x_baseline", picture),
        main=("written_share", "x_baseline"),
        named_by=("what", "contender"),
    )


class Sparse(Files):
    """Files of which zeros take no space."""

    def write(self, fd: int, data: memoryview | bytes, position: int) -> None:
        """Leave a hole for zeros."""
        view = memoryview(data).cast("B")
        if np.frombuffer(view, np.uint8).any():
            super().write(fd, view, position)
        elif os.fstat(fd).st_size < position + len(view):
            os.ftruncate(fd, position + len(view))

    def start_sync(self, fd: int, position: int, n_bytes: int) -> None:
        """Nothing: there is no space to write to."""

    def link(self, source: Path, target: Path) -> None:
        """A file of its own, as another process would have written it: zeros, and its table."""
        n_data = source.stat().st_size - table_bytes(Schema(SPARSE).layout("hidden_states"))
        with source.open("rb") as old, target.open("wb") as new:
            old.seek(n_data)
            new.seek(n_data)
            new.write(old.read())


def merge_sparse(folder: Path, n_parts: int, part_mb: int) -> dict:
    """Merge parts of zeros; give the seconds and the share of the bytes that is written."""
    first = make_sparse(folder / "sparse-0.zarr", part_mb)
    parts = [first]
    for i in range(1, n_parts):
        path = folder / f"sparse-{i}.zarr"
        if not (path / "zarr.json").exists():
            renamed = {(0, row): f"{i}.{row}" for row in range(len(first))}
            link_stores(path, [first], {}, renamed, Sparse(), lambda done: None)
        parts.append(TraceStore.open(path, check=True))
    n_bytes = sum(bytes_under(part.path) for part in parts)
    out = folder / "sparse-merged.zarr"
    shutil.rmtree(out, ignore_errors=True)
    before = written_bytes()
    start = time.perf_counter()
    merged = merge_stores(out, parts, lambda done: None)
    seconds = time.perf_counter() - start
    share = (written_bytes() - before) / n_bytes
    return {
        "what": f"merge {n_parts} sparse parts",
        "contender": "by reference",
        "rows": len(merged),
        "GB": round(n_bytes / GB, 2),
        "seconds": round(seconds, 2),
        "written_share": round(share, 6),
    }


def make_sparse(path: Path, part_mb: int) -> TraceStore:
    """A store of rows of zeros."""
    row: dict[str, Any] = {
        "hidden_states": np.zeros((ITEMS, LAYERS, HIDDEN), np.float16),
        "tokens": np.arange(ITEMS, dtype=np.int32),
        "label": 1,
    }

    def rows() -> Iterator[tuple[str, dict]]:
        for i in range(part_mb * 10**6 // row["hidden_states"].nbytes):
            yield f"0.{i}", row | {"question_id": f"question {i}"}

    if not (path / "zarr.json").exists():
        with StoreWriter.create(path, Schema(SPARSE), files=Sparse()) as writer:
            for trace_id, values in rows():
                writer.append(trace_id, values)
    return TraceStore.open(path, check=True)


def written_bytes() -> int:
    """Bytes that this process has written to files so far."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("wchar: ")[1].split()[0])


def make_rows(
    args: Namespace, row_bytes: int, item_bytes: int
) -> tuple[TraceStore, list[TraceStore]]:
    """Random rows as one store, and as parts of about a shard each."""
    chunk_items = max(1, 65_536 // item_bytes)
    n_chunks = args.size_mb * 10**6 / args.parts / item_bytes / chunk_items
    shard_items = math.ceil(SHARD_PER_PART * n_chunks) * chunk_items
    columns = {
        "x": Column(
            "float16",
            (item_bytes // 2,),
            "t",
            chunk_items=chunk_items,
            shard_items=shard_items,
        )
    }

    def rows() -> Iterator[tuple[str, dict]]:
        return ragged_rows(args.size_mb, row_bytes, item_bytes)

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

    def merge(kind: str) -> Callable[[int], None]:
        out = args.dir / f"merged-{name.replace(' ', '')}-{kind.split()[0]}.zarr"

        def once(number: int) -> None:
            shutil.rmtree(out, ignore_errors=True)
            merge_stores(out, parts, lambda done: None, copy=kind == "copied")

        return once

    contenders = {kind: merge(kind) for kind in ("copied", "by reference")}
    seconds = alternate(contenders, 1, warm=False)
    return _rows(f"merge, {name} rows", seconds, "copied")


def compare_reading(args: Namespace, name: str, one: TraceStore, batch_size: int) -> list[dict]:
    """Read both stores in the same shuffled order, batch by batch in turns."""
    merged = TraceStore.open(args.dir / f"merged-{name.replace(' ', '')}-by.zarr")
    loaders = {
        kind: TraceLoader(store, ["x"], batch_size, shuffle=True)
        for kind, store in (("written as one", one), ("merged by reference", merged))
    }
    for ours, theirs in zip(*loaders.values(), strict=True):
        same = torch.equal(ours["x"].values.view(torch.int16), theirs["x"].values.view(torch.int16))
        if not same or not torch.equal(ours["x"].offsets, theirs["x"].offsets):
            raise AssertionError(f"{name} rows: the stores give different batches")
    seconds: dict[str, list[float]] = {kind: [] for kind in loaders}
    for number in range(args.epochs):
        for kind, times in read_in_turns(loaders, number).items():
            seconds[kind] += times
    n_bytes = one.n_items("x") * one.schema.columns["x"].item_bytes / len(loaders["written as one"])
    return _rows(f"read a batch, {name} rows", seconds, "written as one", n_bytes)


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
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = []
    for name, median in medians.items():
        row = {"what": what, "contender": name, "seconds": round(median, 6)}
        row["x_baseline"] = round(medians[baseline] / median, 3)
        if n_bytes:
            row["GB_per_s"] = round(n_bytes / median / GB, 3)
        rows.append(row)
    return rows


def options() -> Parser:
    """The options of the command line."""
    made = parser(__doc__, size_mb=500, epochs=9)
    made.add_argument("--parts", type=int, default=100, help="parts (default %(default)s)")
    made.add_argument(
        "--part-mb",
        type=int,
        default=10_000,
        help="megabytes of each sparse part (default %(default)s)",
    )
    return made


if __name__ == "__main__":
    run(main, options())
