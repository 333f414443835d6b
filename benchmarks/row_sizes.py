"""How near to memory's speed are rows of each size, from 4 KB to 10 MB?

Ragged float16 rows under a global shuffle, packed in batches, warm page cache. The ceilings are a
memcpy of the same bytes from a flat map into one buffer, by one core and by two. A copy is a call
of NumPy for each row, and a row of 4 KB costs more to name than to copy: its ceiling is that of the
interpreter, whose lock a second core would only wait for.
"""

from argparse import Namespace

from benchmarks.data import MEGABYTE_ROWS, ragged_store
from benchmarks.flat_copy import FlatCopy
from benchmarks.harness import alternate, loader_epoch, parser, run
from benchmarks.tables import finish, ratios

# bytes of a row, bytes of an item, rows of a batch
SIZES = {
    "4 KB": (4096, 128, 256),
    "64 KB": (65_536, 2048, 64),
    "1 MB": (*MEGABYTE_ROWS, 32),
    "10 MB": (10_000_000, 4096, 8),
}
ONE_CORE, TWO_CORES = "memcpy, 1 core", "memcpy, 2 cores"
LEAST_BATCHES = 40  # of 1000 MB and more: the start of an epoch takes a millisecond
LEAST_SHARED_BYTES = 10_000  # of a row, so that two cores copy faster than one


def main(args: Namespace) -> None:
    """The ceilings and ours, size by size."""
    results = []
    for size, (row_bytes, item_bytes, batch_size) in SIZES.items():
        size_mb = args.size_mb * max(1, round(LEAST_BATCHES * batch_size * row_bytes / 10**9))
        store = ragged_store(args.dir, size_mb, row_bytes, item_bytes)
        flat = FlatCopy(store)
        contenders = {ONE_CORE: flat.ceiling(batch_size)}
        if row_bytes >= LEAST_SHARED_BYTES:
            contenders[TWO_CORES] = flat.ceiling(batch_size, n_threads=2)
        ceilings = list(contenders)
        contenders["ours"] = loader_epoch(store, batch_size)
        contenders["ours, 2 threads"] = loader_epoch(store, batch_size, num_workers=2)
        seconds = alternate(contenders, args.epochs)
        rows = ratios(seconds, len(flat), flat.n_bytes, *ceilings)
        results += [{"rows": size} | row for row in rows]
    finish("row_sizes", args.output, results, "rows", "contender")


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=1000, epochs=5))
