"""Is this checkout as fast as an earlier revision of it?

Runs other benchmarks of both in turns, each in a process of its own, on the same stores. A ratio
above 1 means that this checkout is faster; `spread` says how far the turns of the earlier revision
lie apart by themselves, which no ratio can be more exact than.

    python -m benchmarks.revisions v0.3
    python -m benchmarks.revisions 0646b43 --only decode workers --epochs 9
"""

import csv
import statistics
import subprocess
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Parser, fail, finish, parser, run, show

ROOT = Path(__file__).parent.parent
SETTINGS = {  # large enough for a turn of some seconds
    "row_sizes": ["--size-mb", "400", "--epochs", "3"],
    "write": ["--size-mb", "400", "--epochs", "3"],
    "peers": ["--size-mb", "400", "--epochs", "3"],
    "small_records": ["--size-mb", "100", "--epochs", "5"],
    "workers": ["--size-mb", "400", "--epochs", "2"],
    "decode": ["--size-mb", "100", "--epochs", "3"],
    "graphs": ["--epochs", "2", "--threads", "1"],
}
SPEEDS = {"median_GB_per_s": 1, "median_ms": -1}  # a column, and the power that makes it a speed
MEASURED = {*SPEEDS, "GB_per_s", "ms"}  # the last two come first in tables of earlier versions

Speeds = dict[tuple[str, str], list[float]]  # of a benchmark's row, one for each turn


def main(args: Namespace) -> None:
    """Both revisions, several times, taking turns."""
    speeds: dict[str, Speeds] = {"earlier": defaultdict(list), "this": defaultdict(list)}
    with checked_out(args.revision, args.dir / "earlier") as earlier:
        checkouts = {"earlier": earlier, "this": ROOT}
        for turn in range(args.epochs):
            sides = ["earlier", "this"] if turn % 2 == 0 else ["this", "earlier"]
            for name in args.only:
                for side in sides:
                    show(f"turn {turn + 1} of {args.epochs}: {name}, {side}")
                    rows = measured(checkouts[side], name, args.dir)
                    for key, speed in rows.items():
                        speeds[side][key].append(speed)
    show("")
    compared = [
        ratio(key, speeds["earlier"][key], speeds["this"][key])
        for key in speeds["this"]
        if key in speeds["earlier"]
    ]
    named_by = ("benchmark", "contender")
    finish("revisions", args.results, compared, "x_median", "x_median", named_by)


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
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        fail(f"git {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")


def measured(checkout: Path, name: str, folder: Path) -> dict[tuple[str, str], float]:
    """The speeds that a benchmark of a checkout measures, by benchmark and contender."""
    output = folder / "output"
    data = folder / f"{name}-data"
    places = ["--dir", str(data.resolve()), "--keep", "--output", str(output.resolve())]
    command = [sys.executable, "-m", f"benchmarks.{name}", *SETTINGS[name], *places]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"benchmarks.{name} of {checkout}: {done.stderr.strip().splitlines()[-1]}")
    lines = (output / f"{name}.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return {(name, contender(row)): speed(row) for row in rows}


def contender(row: dict[str, str]) -> str:
    """What a row of results is about: its cells before the first measurement."""
    keys = list(row)
    first = next(i for i, key in enumerate(keys) if key in MEASURED)
    return ", ".join(row[key] for key in keys[:first])


def speed(row: dict[str, str]) -> float:
    """The median speed of a row of results."""
    key = next(key for key in row if key in SPEEDS)
    return float(row[key]) ** SPEEDS[key]


def ratio(key: tuple[str, str], earlier: list[float], this: list[float]) -> dict:
    """A result row: this checkout's speed over the earlier one's."""
    benchmark, name = key
    return {
        "benchmark": benchmark,
        "contender": name,
        "x_best": round(max(this) / max(earlier), 3),
        "x_median": round(statistics.median(this) / statistics.median(earlier), 3),
        "spread": round(max(earlier) / min(earlier), 3),
    }


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=0, epochs=5)
    made.add_argument("revision", help="of this repository, as git names it")
    made.add_argument(
        "--only",
        nargs="+",
        choices=list(SETTINGS),
        default=list(SETTINGS),
        metavar="NAME",
        help=f"benchmarks to run, of {', '.join(SETTINGS)} (default: all)",
    )
    return made


if __name__ == "__main__":
    run(main, options())
