"""How fast is a store verified that is in no cache, against reading its files from end to end?"""

from argparse import Namespace
from pathlib import Path

from benchmarks.data import MEGABYTE_ROWS, files_of, ragged_store, sequential
from benchmarks.harness import Epoch, alternate, parser, run
from benchmarks.tables import finish, ratios
from store.check.verify import verify_store


def main(args: Namespace) -> None:
    """Both, several times, taking turns."""
    path = ragged_store(args.dir, args.size_mb, *MEGABYTE_ROWS).path
    files = files_of(path)
    contenders = {
        "sequential read": sequential(files),
        "verify": verified(path),
        "verify, 1 thread": verified(path, n_threads=1),
        "verify --quick": verified(path, quick=True),
    }
    seconds = alternate(contenders, args.epochs, cold=[path])
    n_bytes = sum(file.stat().st_size for file in files)
    rows = ratios(seconds, args.size_mb, n_bytes, "sequential read")
    finish("verify", args.output, rows)


def verified(path: Path, **options: object) -> Epoch:
    def epoch(number: int) -> None:
        problems = verify_store(path, **options).problems
        if problems:
            raise AssertionError(f"expected a whole store, found {problems[0]}")

    return epoch


if __name__ == "__main__":
    run(main, parser(__doc__, size_mb=2000, epochs=5))
