"""What does reading several stores as one cost?

The same rows as one store, and as two stores that a loader reads as one, each read in the same
shuffled order, batch by batch in turns. What both give is compared bit for bit. Ratios are medians
of the turns'.
"""

from argparse import Namespace

from benchmarks.harness import parser, run
from benchmarks.merge import READ, compare_reading, make_rows
from benchmarks.tables import finish


def main(args: Namespace) -> None:
    """Read one store and its parts."""
    results: list[dict] = []
    for name, (row_bytes, item_bytes, batch_size) in READ.items():
        one, parts = make_rows(args, row_bytes, item_bytes)
        stores = {"one store": one, f"{args.parts} stores as one": parts}
        results += compare_reading(args, name, stores, batch_size)
    finish("joined", args.results, results, "x_baseline", "x_baseline", ("what", "contender"))


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=500, epochs=9, options={"--parts": (2, "stores")}))
