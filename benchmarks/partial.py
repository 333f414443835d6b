"""Does one layer of 32 cost one layer?

Bytes that come from the disk, and speed, with and without `split`. Files are put out of the page
cache first; the bytes are those that the kernel read for this process.
"""

import time
from argparse import Namespace
from functools import partial
from pathlib import Path

from benchmarks.data import drop_caches, make_store, random_rows
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
        n_rows = args.size_mb * 10**6 // (34 * column.item_bytes)
        rows = partial(random_rows, n_rows, column.item_shape, (28, 41))
        store = make_store(path, {"x": column}, rows)
        whole = store.n_items("x") * column.item_bytes
        for layers, select in (("all layers", None), ("layer 16", {"x": {"layers": 16}})):
            results.append({"layout": name, "read": layers} | measure(path, select, whole))
    finish("partial", args.output, results, "layout", "read")


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
