"""What does it cost to check chunks as they are read?

Rows of 1 MB and of 1 KB, warm, with and without. The first epoch of a store that was just opened,
and the second of the same store, are measured apart: what was checked or mapped once may not have
to be again.
"""

from argparse import Namespace
from pathlib import Path

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
ANCHOR = "plain, 0 threads"


def main(args: Namespace) -> None:
    """Each size with its own plain reading as the anchor."""
    found = []
    for size, (row_bytes, item_bytes, batch_size) in SIZES.items():
        columns = {"x": Column("float16", (item_bytes // 2,), axis="t")}
        size_mb = args.size_mb if row_bytes > 10_000 else max(1, args.size_mb // 10)
        path = args.dir / f"checked-{row_bytes}-{size_mb}.zarr"
        store = make_store(
            path, columns, lambda b=row_bytes, i=item_bytes, mb=size_mb: ragged_rows(mb, b, i)
        )
        contenders = {}
        for name, check in (("plain", False), ("checked", True)):
            for n_threads in (0, 2):
                opened = Opened(path, check, batch_size, n_threads)
                contenders[f"{name}, {n_threads} threads, first epoch"] = opened.first
                contenders[f"{name}, {n_threads} threads"] = opened.again
        seconds = alternate(contenders, args.epochs, warm=False)
        rows = ratios(seconds, len(store), size_mb * 10**6, ANCHOR)
        found += [{"rows": size} | row for row in rows]
    named_by = ("rows", "contender")
    main_figures = "x_plain,_0_threads"
    finish("checked", args.results, found, "median_GB_per_s", main_figures, named_by)


class Opened:
    """A store, opened for a first epoch, that stays open for the second; it takes its turns in this
    order."""

    def __init__(self, path: Path, check: bool, batch_size: int, n_threads: int) -> None:
        self.path, self.check = path, check
        self.batch_size, self.n_threads = batch_size, n_threads
        self.loader: TraceLoader | None = None

    def first(self, number: int) -> None:
        """Open the store and read it once."""
        store = TraceStore.open(self.path, check=self.check)
        self.loader = TraceLoader(
            store, ["x"], self.batch_size, shuffle=True, num_workers=self.n_threads
        )
        epoch_of(self.loader)(2 * number)

    def again(self, number: int) -> None:
        """Read it once more, in another order."""
        epoch_of(self.loader)(2 * number + 1)


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=500, epochs=5))
