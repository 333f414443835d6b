"""The process of one revision, for `benchmarks.revisions`: it times what a line of JSON asks for.

It is run with the revision's checkout as its place to import from, so it uses only names that
earlier revisions have as well, and none of the other benchmarks.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

import store
from store import Column, Schema, StoreWriter, TraceLoader


def main() -> None:
    """Answer each line with the seconds that its work took, until there are no more."""
    checkout, folder = map(Path, sys.argv[1:])
    found = Path(store.__file__).resolve().parent
    assert found == checkout.resolve() / "store", f"expected {checkout}/store, found {found}"
    out = folder / f"{os.getpid()}.zarr"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        repeats, kind = request.pop("repeats"), request.pop("work")
        work = WORK[kind](out, **request)
        print(json.dumps({"seconds": seconds_of(work, out, repeats)}), file=answers, flush=True)


def seconds_of(work: Callable[[int], None], out: Path, repeats: int) -> float:
    """Of the work, repeated; what it wrote is removed without counting."""
    seconds = 0.0
    for number in range(repeats):
        start = time.perf_counter()
        work(number)
        seconds += time.perf_counter() - start
        shutil.rmtree(out, ignore_errors=True)
    return seconds


@cache
def read(out: Path, path: str, batch_size: int) -> Callable[[int], None]:
    """An epoch of packed batches in a shuffled order."""
    loader = TraceLoader(Path(path), ["x"], batch_size, shuffle=True)

    def epoch(number: int) -> None:
        loader.set_epoch(number)
        for _ in loader:
            pass

    return epoch


@cache
def append(out: Path, row_bytes: int, n_rows: int) -> Callable[[int], None]:
    """A new store of rows, committed once."""
    schema = Schema({"x": Column("float16", (16,), axis="t")})
    rng = np.random.default_rng(0)
    rows = [np.frombuffer(rng.bytes(row_bytes), np.float16).reshape(-1, 16) for _ in range(n_rows)]

    def write(number: int) -> None:
        with StoreWriter.create(out, schema) as writer:
            for row, values in enumerate(rows):
                writer.append(f"trace_{row}", {"x": values})

    return write


@cache
def extract(out: Path, n_questions: int) -> Callable[[int], None]:
    """The traces of the embedded example, in a new store."""
    from store.sources.example import ExampleSource, example_questions
    from store.write.build import build_store

    source = ExampleSource(example_questions(n_questions))
    return lambda number: build_store(out, source)


WORK = {"read": read, "append": append, "extract": extract}

if __name__ == "__main__":
    main()
