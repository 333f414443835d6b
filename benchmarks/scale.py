"""Does speed or memory change with the size of the store?

From 0.5 GB up, one epoch of 1 MB rows each. Each size runs in a process of its own: rows/s of the
median epoch, the most private memory (RssAnon) beyond what the process had before, and what the
process has mapped, which is the kernel's page cache and no leak. With `--limit-mb`, only the
largest size runs, cold, inside a memory control group of that size (needs root), against pread and
a plain map of the same ranges in a group like it; medians of alternating turns, and of the ratios
within each turn.
"""

import os
import statistics
from argparse import Namespace
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.cold import ANCHOR, BATCH_SIZE, ours, pread, remapped
from benchmarks.data import MEGABYTE_ROWS, drop_caches, ragged_store
from benchmarks.flat_copy import FlatCopy
from benchmarks.harness import (
    clocks,
    in_new_process,
    loader_epoch,
    parser,
    private_bytes,
    run,
    status_bytes,
    take_turns,
    watching,
)
from benchmarks.tables import finish, ratio_to
from store import TraceStore

LIMITED = (ANCHOR, "plain map", "ours")


def main(args: Namespace) -> None:
    """Every size, doubled from 500 MB; or the largest inside a limit."""
    if args.limit_mb:
        path = ragged_store(args.dir, args.size_mb, *MEGABYTE_ROWS).path
        in_new_process(copy_flat, path)
        results = alternate_limited(path, args.epochs, args.limit_mb)
        finish("scale_limited", args.output, results, "contender", "limit_MB")
        return
    results = []
    for size_mb in (500 * 2**i for i in range(7)):
        if size_mb <= args.size_mb:
            path = ragged_store(args.dir, size_mb, *MEGABYTE_ROWS).path
            results.append(in_new_process(measure, path, args.epochs))
    finish("scale", args.output, results, "GB")


def measure(path: Path, epochs: int) -> dict:
    """Epochs of a store, the first of which is not timed."""
    store = TraceStore.open(path)
    epoch = loader_epoch(store, BATCH_SIZE)
    before = private_bytes()
    with watching() as most:
        seconds = [clocks(partial(epoch, number))[0] for number in range(epochs + 1)]
    return {
        "GB": round(store.n_items("x") * store.schema.columns["x"].item_bytes / 1e9, 2),
        "rows_per_s": round(len(store) / statistics.median(seconds[1:])),
        "private_MB": round((most() - before) / 1e6, 1),
        "mapped_MB": round(status_bytes("RssFile") / 1e6, 1),
    }


def copy_flat(path: Path) -> None:
    """Make the anchors' copy, in a process that ends: what one has mapped cannot be put out of the
    cache."""
    FlatCopy(TraceStore.open(path))


def alternate_limited(path: Path, n_turns: int, limit_mb: int) -> list[dict]:
    """Turns of every contender, each in a control group of its own."""

    def turn(contender: str, number: int) -> dict:
        group, processes = make_group(limit_mb * 2**20)
        try:
            return in_new_process(limited, path, contender, processes)
        finally:
            with suppress(OSError):  # interrupted: the process is still in it
                group.rmdir()

    turns = take_turns({name: partial(turn, name) for name in LIMITED}, n_turns)
    anchor = [result["GB_per_s"] for result in turns[ANCHOR]]
    rows = []
    for name, results in turns.items():
        speeds = [result["GB_per_s"] for result in results]
        within = [speed / other for speed, other in zip(speeds, anchor, strict=True)]
        rows.append(
            {
                "contender": name,
                "limit_MB": limit_mb,
                "GB_per_s": round(statistics.median(speeds), 3),
                ratio_to(ANCHOR): round(statistics.median(within), 3),
                "private_MB": max(result["private_MB"] for result in results),
            }
        )
    return rows


def limited(path: Path, contender: str, processes: Path) -> dict:
    """One cold epoch inside a control group, which has this file of its processes."""
    flat = FlatCopy(TraceStore.open(path))
    epochs = {ANCHOR: pread(flat), "plain map": remapped(flat), "ours": ours(path, 0)}
    drop_caches([path, flat.path])
    processes.write_text("0")
    with watching() as most:
        seconds, _ = clocks(partial(epochs[contender], 0))
    return {"GB_per_s": flat.n_bytes / seconds / 1e9, "private_MB": round(most() / 1e6, 1)}


def make_group(n_bytes: int) -> tuple[Path, Path]:
    """A new memory control group, version 2 or 1, and the file to enter it by."""
    root, limit = Path("/sys/fs/cgroup"), "memory.max"
    if not (root / "cgroup.controllers").exists():
        root, limit = root / "memory", "memory.limit_in_bytes"
    if not (root / "cgroup.procs").exists():
        raise SystemExit(
            f"{root}: expected memory control groups, found none; leave out --limit-mb"
        )
    group = root / f"trace-store-{os.getpid()}"
    group.mkdir()
    (group / limit).write_text(str(n_bytes))
    return group, group / "cgroup.procs"


OPTIONS = {"--limit-mb": (int, "run the largest size inside so much memory")}

if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=8000, epochs=3, options=OPTIONS))
