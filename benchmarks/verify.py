"""How fast is a store verified that is in no cache, against reading its files from end to end?"""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import (
    alternate_cold,
    finish,
    make_store,
    parser,
    ragged_rows,
    ratios,
    run,
    sequential,
)
from store import Column
from store.check.verify import verify_store

ROW_BYTES, ITEM_BYTES = 1_000_000, 4096


def main(args: Namespace) -> None:
    """Both, several times, taking turns."""
    path = args.dir / f"cold-{args.size_mb}.zarr"
    columns = {"x": Column("float16", (ITEM_BYTES // 2,), axis="t")}
    make_store(path, columns, lambda: ragged_rows(args.size_mb, ROW_BYTES, ITEM_BYTES))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    contenders = {
        "sequential read": sequential(files),
        "verify": verified(path),
        "verify, 1 thread": verified(path, n_threads=1),
        "verify --quick": verified(path, quick=True),
    }
    seconds = alternate_cold(contenders, args.epochs, [path])
    n_bytes = sum(file.stat().st_size for file in files)
    rows = ratios(seconds, args.size_mb, n_bytes, "sequential read")
    finish("verify", args.results, rows, "median_GB_per_s", main="x_sequential_read")


def verified(path: Path, **options: object) -> Callable[[int], None]:
    def epoch(number: int) -> None:
        problems = verify_store(path, **options).problems
        if problems:
            raise AssertionError(f"expected a whole store, found {problems[0]}")

    return epoch


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=5))
