"""What do small rows cost, against NumPy's fancy indexing in memory?

1 KB ragged rows in batches of 256. The anchor indexes one in-memory array of equal-length rows,
which knows no offsets and packs nothing.
"""

from argparse import Namespace
from functools import partial

import numpy as np

from benchmarks.data import make_store, random_rows
from benchmarks.harness import Epoch, alternate, loader_epoch, parser, run
from benchmarks.tables import finish, ratios
from store import Column, permutation

ROW_BYTES, BATCH_SIZE = 1024, 256
KINDS = {"equal rows": (512, 513), "ragged rows": (412, 613)}


def main(args: Namespace) -> None:
    """Run the anchor and ours."""
    n_rows = args.size_mb * 10**6 // ROW_BYTES
    bits = np.random.default_rng(0).integers(0, 2**15, (n_rows, ROW_BYTES // 2), np.int16)
    array = bits.view(np.float16)
    contenders = {"fancy indexing": fancy(array)}
    for name, lengths in KINDS.items():
        path = args.dir / f"small-{args.size_mb}-{name.split()[0]}.zarr"
        rows = partial(random_rows, n_rows, (), lengths)
        store = make_store(path, {"x": Column("float16", axis="t")}, rows)
        contenders[name] = loader_epoch(store, BATCH_SIZE)
        contenders[f"{name}, 2 threads"] = loader_epoch(store, BATCH_SIZE, num_workers=2)
    seconds = alternate(contenders, args.epochs)
    found = ratios(seconds, n_rows, n_rows * ROW_BYTES, "fancy indexing")
    finish("small_records", args.output, found)


def fancy(array: np.ndarray) -> Epoch:
    def epoch(number: int) -> None:
        order = permutation(len(array), 0, number)
        for i in range(0, len(order), BATCH_SIZE):
            array[order[i : i + BATCH_SIZE]]

    return epoch


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=200))
