"""Does one layer of 32 cost one layer?

Bytes that come from the disk, and speed, with and without `split`. Files are put out of the page
cache first; the bytes are those that the kernel read for this process.
"""

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.data import drop_caches, make_store
from benchmarks.harness import parser, run
from benchmarks.tables import finish
from store import Column, TraceLoader

N_LAYERS, HIDDEN, BATCH_SIZE = 32, 4096, 16
LAYOUTS = {"split by layer": ("layers",), "not split": ()}


def main(args: Namespace) -> None:
    """Read all rows: every layer, then one."""
    results = []
    for name, split in LAYOUTS.items():
        column = Column("float16", (N_LAYERS, HIDDEN), "t", ("layers", "hidden"), split)
        path = args.dir / f"partial-{args.size_mb}-{name.split()[0]}.zarr"
        store = make_store(path, {"x": column}, lambda: rows(args.size_mb))
        whole = store.n_items("x") * column.item_bytes
        for layers, select in (("all layers", None), ("layer 16", {"x": {"layers": 16}})):
            results.append({"layout": name, "read": layers} | measure(path, select, whole))
    named_by = ("layout", "read")
    finish("partial", args.results, results, "disk_share_x_32", "disk_share_x_32", named_by)


def rows(size_mb: int) -> Iterator[tuple[str, dict]]:
    rng = np.random.default_rng(0)
    item_bytes = 2 * N_LAYERS * HIDDEN
    for i in range(size_mb * 10**6 // (34 * item_bytes)):
        n = int(rng.integers(28, 41))
        values = np.frombuffer(rng.bytes(n * item_bytes), np.float16)
        yield f"trace_{i}", {"x": values.reshape(n, N_LAYERS, HIDDEN)}


def measure(path: Path, select: dict | None, whole: int) -> dict:
    drop_caches([path])
    loader = TraceLoader(path, ["x"], BATCH_SIZE, shuffle=True, select=select)
    before, start = disk_bytes(), time.perf_counter()
    delivered = sum(batch["x"].values.nbytes for batch in loader)
    seconds, read = time.perf_counter() - start, disk_bytes() - before
    return {
        "delivered_share": round(delivered / whole, 4),
        "disk_share": round(read / whole, 4),
        "disk_share_x_32": round(32 * read / whole, 3),
        "rows_per_s": round(len(loader.store) / seconds, 1),
    }


def disk_bytes() -> int:
    """Bytes that the kernel fetched from storage for this process so far."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("read_bytes: ")[1].split()[0])


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=1))
