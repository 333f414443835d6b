"""Is this checkout as fast as an earlier revision of it?

Two processes that stay, one for each revision, do the same work in turns: packed reads of the same
stores, appends, the extraction of the embedded example (of each its own: that ratio says something
only where the example is the same). Who is first changes from turn to turn, and a turn takes at
least --turn-ms. `x_earlier` is the median of the turns' ratios, above 1 where this checkout is
faster; half of the ratios lie between `low` and `high`.

    python -m benchmarks.revisions v0.3
    python -m benchmarks.revisions 08728c1 --only "read 1 MB" extract --epochs 60
"""

import json
import math
import os
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.data import MEGABYTE_ROWS, ragged_store
from benchmarks.harness import fail, parser, run, show
from benchmarks.tables import finish, median_ratio

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).with_name("revision_worker.py")
# bytes of a row, bytes of an item, rows of a batch
READ = {
    "read 1 KB": (1024, 32, 256),
    "read 64 KB": (65_536, 2048, 64),
    "read 256 KB": (262_144, 4096, 32),
    "read 1 MB": (*MEGABYTE_ROWS, 32),
}
APPENDED = {"append 1 KB": (1024, 20_000), "append 64 KB": (65_536, 1000)}  # bytes of a row, rows
WORK = [*READ, *APPENDED, "extract"]

Request = dict[str, object]


def main(args: Namespace) -> None:
    """Both revisions, work by work."""
    results = []
    with ExitStack() as stack:
        earlier = stack.enter_context(checked_out(args.revision, args.dir / "earlier"))
        sides = {
            "earlier": stack.enter_context(started(earlier, args.dir)),
            "this": stack.enter_context(started(ROOT, args.dir)),
        }
        for name in args.only:
            request = request_of(name, args)
            seconds = alternate_sides(sides, request, args.epochs, args.turn_ms / 1000)
            results.append(compared(name, seconds))
    finish("revisions", args.output, results, "work")


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """A work tree of an earlier revision, removed in the end."""
    tree = folder.resolve()
    git("worktree", "add", "--detach", str(tree), revision)
    try:
        yield tree
    finally:
        git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> None:
    """Run git on this checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"git {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")


class Side:
    """A process of one revision, which answers each line of JSON with another."""

    def __init__(self, checkout: Path, process: subprocess.Popen) -> None:
        self.checkout, self.process = checkout, process

    def seconds(self, request: Request) -> float:
        """Have it do some work, and give the seconds that this took."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            fail(f"{self.checkout}: it ended with status {self.process.wait()}, as it says above")
        return json.loads(answer)["seconds"]


@contextmanager
def started(checkout: Path, folder: Path) -> Iterator[Side]:
    """A process that imports `store` from a checkout, and writes below a folder."""
    command = [sys.executable, "-P", str(WORKER), str(checkout), str(folder.resolve())]
    process = subprocess.Popen(
        command,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # which closes its input, and so ends it
        yield Side(checkout, process)


def request_of(name: str, args: Namespace) -> Request:
    """What both processes are asked to do; stores to read are made here, once for both."""
    if name in READ:
        row_bytes, item_bytes, batch_size = READ[name]
        store = ragged_store(args.dir, args.size_mb, row_bytes, item_bytes)
        return {"work": "read", "path": str(store.path.resolve()), "batch_size": batch_size}
    if name in APPENDED:
        row_bytes, n_rows = APPENDED[name]
        return {"work": "append", "row_bytes": row_bytes, "n_rows": n_rows}
    return {"work": "extract", "n_questions": args.questions}


def alternate_sides(
    sides: Mapping[str, Side], request: Request, epochs: int, turn_s: float
) -> dict[str, list[float]]:
    """Seconds of both in turns, in each of which the work is repeated equally often."""
    for _ in range(2):  # the first time loads what it needs
        once_s = [side.seconds(request | {"repeats": 1}) for side in sides.values()]
    timed = request | {"repeats": math.ceil(turn_s / min(once_s))}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(epochs):
        show(f"turn {number + 1} of {epochs}: {request}")
        for name in list(sides)[:: -1 if number % 2 else 1]:
            found[name].append(sides[name].seconds(timed))
    show("")
    return found


def compared(name: str, seconds: Mapping[str, list[float]]) -> dict:
    """A result row: the earlier revision's seconds over this one's: median and quartiles."""
    earlier, this = seconds["earlier"], seconds["this"]
    ratios = [theirs / ours for theirs, ours in zip(earlier, this, strict=True)]
    low, high = np.quantile(ratios, [0.25, 0.75]).tolist()
    return {
        "work": name,
        "x_earlier": round(median_ratio(earlier, this), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "turns": len(ratios),
        "earlier_s": round(statistics.median(earlier), 4),
        "this_s": round(statistics.median(this), 4),
    }


def options() -> ArgumentParser:
    """The command line."""
    own = {
        "--turn-ms": (200, "milliseconds that a turn takes at least"),
        "--questions": (1000, "of the extraction"),
    }
    made = parser(__doc__, size_mb=100, epochs=40, options=own)
    made.add_argument("revision", help="of this repository, as git names it")
    made.add_argument(
        "--only",
        nargs="+",
        choices=WORK,
        default=WORK,
        metavar="WORK",
        help=f"what to compare, of {', '.join(WORK)} (default: all)",
    )
    return made


if __name__ == "__main__":
    run(main, options())
