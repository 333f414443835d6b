"""What does it cost to check every chunk at every read?

Rows of 1 MB and of 1 KB, warm, with and without.
"""

from argparse import Namespace

from benchmarks.harness import (
    alternate,
    epoch_of,
    finish,
    make_store,
    parser,
    ragged_rows,
    ratios,
    run,
)
from store import Column, TraceLoader, TraceStore

# bytes of a row, bytes of an item, rows of a batch
SIZES = {"1 MB": (1_000_000, 4096, 32), "1 KB": (1000, 20, 256)}


def main(args: Namespace) -> None:
    """Each size with its own plain reading as the anchor."""
    found = []
    for size, (row_bytes, item_bytes, batch_size) in SIZES.items():
        columns = {"x": Column("float16", (item_bytes // 2,), axis="t")}
        size_mb = args.size_mb if row_bytes > 10_000 else max(1, args.size_mb // 10)
        path = args.dir / f"checked-{row_bytes}-{size_mb}.zarr"
        make_store(
            path, columns, lambda b=row_bytes, i=item_bytes, mb=size_mb: ragged_rows(mb, b, i)
        )
        contenders = {}
        for name, check in (("plain", False), ("checked", True)):
            for n_threads in (0, 2):
                store = TraceStore.open(path, check=check)
                loader = TraceLoader(store, ["x"], batch_size, shuffle=True, num_workers=n_threads)
                contenders[f"{name}, {n_threads} threads"] = epoch_of(loader)
        seconds = alternate(contenders, args.epochs)
        rows = ratios(seconds, len(store), size_mb * 10**6, "plain, 0 threads")
        found += [{"rows": size} | row for row in rows]
    finish("checked", args.results, found, "GB_per_s")


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=500))
