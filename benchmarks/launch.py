"""How much longer does a launch take than its parts alone, and the merge behind them?

Each part sleeps, then imports a small file: what is measured is the launch, not the disk, in
seconds beyond the parts alone; the ratio falls as parts get longer. The parts alone are the same
commands, run by a pool of threads. Ray and Dask, where they are installed, start a cluster on this
machine for each launch, as a user's would without an address.
"""

import os
import shlex
import shutil
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from operator import sub
from pathlib import Path

import numpy as np

from benchmarks.harness import Parser, alternate, fail, finish, parser, run
from benchmarks.tables import median_ratio
from store.launch.task import package_root

NEEDS = {"ray": "ray", "dask": "distributed"}
ENGINES = ("processes", "ray", "dask")
ALONE = "parts alone"
# Python imports it as it starts, in the processes of parts alone
SLEEP = 'import sys, time\nif "--part" in sys.orig_argv:\n    time.sleep({})\n'


def main(args: Namespace) -> None:
    """The parts alone and each engine, several times, taking turns."""
    if args.parts < 2:
        fail(f"--parts: expected 2 or more, found {args.parts}")
    folder = args.dir / "launch"
    make_files(folder, args.parts, args.sleep_s)
    engines = [name for name in ENGINES if name not in NEEDS or find_spec(NEEDS[name])]
    contenders = {ALONE: parts_alone(folder, args)}
    contenders |= {name: launched(folder, args, name) for name in engines}
    seconds = alternate(contenders, args.epochs, warm=False)
    rows = [
        {
            "contender": name,
            "median_s": round(statistics.median(times), 2),
            "best_s": round(min(times), 2),
            "s_a_part": round(statistics.median(times) * args.workers / args.parts, 2),
            "beyond_parts_alone_s": round(statistics.median(map(sub, times, seconds[ALONE])), 2),
            "x_parts_alone": round(median_ratio(times, seconds[ALONE]), 3),
        }
        for name, times in seconds.items()
    ]
    finish("launch", args.results, rows, "x_parts_alone", main="beyond_parts_alone_s")


def make_files(folder: Path, n_parts: int, sleep_s: float) -> None:
    """A file for each part, and what has its process sleep."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(SLEEP.format(sleep_s))
    for part in range(n_parts):
        ids = np.array([f"q{part}"])
        np.savez(folder / "files" / f"{part:04}.npz", y=np.zeros(1, int), qid=ids)


def arguments_of(out: Path) -> list[str]:
    return ["import", str(out), str(out.parent / "files"), "--map", "label=y,question_id=qid"]


def parts_alone(folder: Path, args: Namespace) -> Callable[[int], None]:
    """Each part by a thread that waits for it, then the merge."""

    def epoch(number: int) -> None:
        parts = folder / "alone.parts"
        parts.mkdir()

        def make(part: int) -> None:
            command, _, *rest = arguments_of(folder / "alone")
            number = f"{part}/{args.parts}"
            call(folder, [command, str(parts / f"{part}.zarr"), *rest, "--part", number])

        with ThreadPoolExecutor(args.workers) as pool:
            list(pool.map(make, range(1, args.parts + 1)))
        call(folder, ["merge", str(folder / "alone"), "--parts", str(parts)])
        clear(folder / "alone")

    return epoch


def launched(folder: Path, args: Namespace, engine: str) -> Callable[[int], None]:
    """The launch of all parts, by a command as a user types it."""

    def epoch(number: int) -> None:
        options = ["--parts", str(args.parts), "--workers", str(args.workers)]
        call(folder, ["launch", "--engine", engine, *options, "--", *arguments_of(folder / engine)])
        clear(folder / engine)

    return epoch


def call(folder: Path, arguments: list[str]) -> None:
    """Run a command of the store to its end."""
    paths = os.pathsep.join([str(folder.absolute()), package_root()])
    # engines give a part one thread where there are more parts than cores: so to the others as well
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "store", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{shlex.join(arguments)}: {done.stderr.strip()[-300:]}")


def clear(out: Path) -> None:
    shutil.rmtree(out)
    shutil.rmtree(out.with_name(f"{out.name}.parts"))


def options() -> Parser:
    """The command line."""
    made = parser(__doc__, size_mb=0, epochs=3)
    made.add_argument(
        "--parts", type=int, default=4, help="parts of each launch (default %(default)s)"
    )
    made.add_argument("--workers", type=int, default=2, help="parts at once (default %(default)s)")
    made.add_argument(
        "--sleep-s", type=float, default=3, help="seconds that a part sleeps (default %(default)s)"
    )
    return made


if __name__ == "__main__":
    run(main, options())
