"""What does it cost to check chunks as they are read?

Rows of 1 MB and of 1 KB, warm, with and without. The first epoch of a store that was just opened,
and the second of the same store, are measured apart: what was checked or mapped once may not have
to be again.
"""

from argparse import Namespace
from pathlib import Path

from benchmarks.data import MEGABYTE_ROWS, ragged_store
from benchmarks.harness import Epoch, alternate, loader_epoch, parser, run
from benchmarks.tables import finish, ratios
from store import TraceStore

# bytes of a row and of an item, rows of a batch, megabytes of rows for one of --size-mb
SIZES = {"1 MB": (MEGABYTE_ROWS, 32, 1), "1 KB": ((1000, 20), 256, 0.1)}
ANCHOR = "plain, 0 threads"


def main(args: Namespace) -> None:
    """Each size with its own plain reading as the anchor."""
    found = []
    for size, (shape, batch_size, share) in SIZES.items():
        size_mb = max(1, int(args.size_mb * share))
        store = ragged_store(args.dir, size_mb, *shape)
        contenders = {}
        for name, check in (("plain", False), ("checked", True)):
            for n_threads in (0, 2):
                opened = Opened(store.path, check, batch_size, n_threads)
                contenders[f"{name}, {n_threads} threads, first epoch"] = opened.first
                contenders[f"{name}, {n_threads} threads"] = opened.again
        seconds = alternate(contenders, args.epochs, warm=False)
        rows = ratios(seconds, len(store), size_mb * 10**6, ANCHOR)
        found += [{"rows": size} | row for row in rows]
    finish("checked", args.output, found, "rows", "contender")


class Opened:
    """A store, opened for a first epoch, that stays open for the second; it takes its turns in this
    order."""

    def __init__(self, path: Path, check: bool, batch_size: int, n_threads: int) -> None:
        self.path, self.check = path, check
        self.batch_size, self.n_threads = batch_size, n_threads
        self.epoch: Epoch

    def first(self, number: int) -> None:
        """Open the store and read it once."""
        store = TraceStore.open(self.path, check=self.check)
        self.epoch = loader_epoch(store, self.batch_size, self.n_threads)
        self.epoch(2 * number)

    def again(self, number: int) -> None:
        """Read it once more, in another order."""
        self.epoch(2 * number + 1)


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=500, epochs=5))
