"""Does speed or memory change with the size of the store?

From 0.5 GB up, one epoch of 1 MB rows each. Each size runs in a process of its own: rows/s of the
median epoch, the most private memory (RssAnon) beyond what the process had before, and what the
process has mapped, which is the kernel's page cache and no leak. With `--limit-mb`, only the
largest size runs, cold, inside a memory control group of that size (needs root), against pread and
a plain map of the same ranges in a group like it; medians of alternating turns, and of the ratios
within each turn.
"""

import multiprocessing
import os
import statistics
import threading
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from benchmarks.cold import pread, remapped
from benchmarks.harness import (
    FlatCopy,
    Parser,
    drop_caches,
    finish,
    make_store,
    parser,
    private_bytes,
    ragged_rows,
    run,
)
from store import Column, TraceLoader, TraceStore

ROW_BYTES, ITEM_BYTES, BATCH_SIZE = 1_000_000, 4096, 32

LIMITED = ("pread, 32 threads", "plain map", "ours")


def main(args: Namespace) -> None:
    """Every size, doubled from 500 MB."""
    sizes = (
        [args.size_mb]
        if args.limit_mb
        else [s for s in (500, 1000, 2000, 4000, 8000, 16000, 32000) if s <= args.size_mb]
    )
    results = []
    for size_mb in sizes:
        path = args.dir / f"scale-{size_mb}.zarr"
        columns = {"x": Column("float16", (ITEM_BYTES // 2,), axis="t")}
        make_store(
            path, columns, lambda size_mb=size_mb: ragged_rows(size_mb, ROW_BYTES, ITEM_BYTES)
        )
        if args.limit_mb:
            in_new_process(copy_flat, path)
            results += alternate_limited(path, args.epochs, args.limit_mb)
        else:
            results.append(in_new_process(measure, path, args.epochs))
    if args.limit_mb:
        named_by = ("contender", "limit_MB")
        finish("scale_limited", args.results, results, "GB_per_s", "GB_per_s", named_by)
    else:
        main_figures = ("rows_per_s", "private_MB")
        finish("scale", args.results, results, "rows_per_s", main_figures, ["GB"])


def in_new_process(function: object, *arguments: object) -> dict:
    """In a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(path: Path, epochs: int) -> dict:
    store = TraceStore.open(path)
    loader = TraceLoader(store, ["x"], BATCH_SIZE, shuffle=True)
    before, most, seconds = private_bytes(), 0, []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        for i, _ in enumerate(loader):
            if i % 16 == 0:
                most = max(most, private_bytes())
        seconds.append(time.perf_counter() - start)
    mapped = int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0]) / 1e3
    return {
        "GB": round(store.n_items("x") * ITEM_BYTES / 1e9, 2),
        "rows_per_s": round(len(store) / statistics.median(seconds[1:])),
        "private_MB": round((most - before) / 1e6, 1),
        "mapped_MB": round(mapped, 1),
    }


def copy_flat(path: Path) -> None:
    """Make the anchors' copy, in a process that ends: what one has mapped cannot be put out of the
    cache."""
    FlatCopy(TraceStore.open(path))


def alternate_limited(path: Path, n_turns: int, limit_mb: int) -> list[dict]:
    """Turns of every contender, each in a control group of its own."""
    turns: dict[str, list[dict]] = {name: [] for name in LIMITED}
    for _ in range(n_turns):
        for name, results in turns.items():
            group, processes = make_group(limit_mb * 2**20)
            try:
                results.append(in_new_process(limited, path, name, processes))
            finally:
                with suppress(OSError):  # interrupted: the process is still in it
                    group.rmdir()
    anchor = [result["GB_per_s"] for result in turns[LIMITED[0]]]
    rows = []
    for name, results in turns.items():
        speeds = [result["GB_per_s"] for result in results]
        within = [speed / other for speed, other in zip(speeds, anchor, strict=True)]
        rows.append(
            {
                "contender": name,
                "limit_MB": limit_mb,
                "GB_per_s": round(statistics.median(speeds), 3),
                "x_pread,_32_threads": round(statistics.median(within), 3),
                "private_MB": max(result["private_MB"] for result in results),
            }
        )
    return rows


def limited(path: Path, contender: str, processes: Path) -> dict:
    """One cold epoch inside a control group, which has this file of its processes."""
    flat = FlatCopy(TraceStore.open(path))
    epoch = (
        ours(path)
        if contender == "ours"
        else {"pread, 32 threads": pread, "plain map": remapped}[contender](flat)
    )
    drop_caches([path, flat.path])
    processes.write_text("0")
    most = [0]
    done = threading.Event()
    watch = threading.Thread(target=watch_private, args=(done, most))
    watch.start()
    start = time.perf_counter()
    epoch(0)
    seconds = time.perf_counter() - start
    done.set()
    watch.join()
    return {"GB_per_s": flat.n_bytes / seconds / 1e9, "private_MB": round(most[0] / 1e6, 1)}


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


def watch_private(done: threading.Event, most: list[int]) -> None:
    while not done.wait(0.05):
        most[0] = max(most[0], private_bytes())


def ours(path: Path) -> object:
    def epoch(number: int) -> None:
        for _ in TraceLoader(path, ["x"], BATCH_SIZE, shuffle=True):
            pass

    return epoch


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=8000, epochs=3)
    made.add_argument("--limit-mb", type=int, help="run the largest size inside so much memory")
    return made


if __name__ == "__main__":
    run(main, options())
