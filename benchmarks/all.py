"""Run every benchmark, one after the other, and say what changed since the committed results.

Each runs in a process of its own, with its default sizes, and prints its table. What needs a
package, a program or rights that are missing is skipped. A failure, or one that takes longer than
its limit, does not stop the others, and is told at the end (exit status 1), after the main figures
that differ from the committed ones by more than 5%. On another machine, or beside other programs,
many do: measure on a quiet one. `benchmarks.revisions` is left out: it compares two revisions.

    python -m benchmarks.all                        # prints all tables, and what changed
    python -m benchmarks.all --only peers,workers   # of these
    python -m benchmarks.all --save                 # and replaces the committed results, and the
                                                    # figures of the README and the documents
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import harness
from benchmarks.changes import NOTABLE, changes
from benchmarks.figures import FigureError
from benchmarks.harness import Parser
from benchmarks.object_server import find_nginx
from benchmarks.program import elapsed_s, fail, program
from benchmarks.readme import write_figures
from benchmarks.tables import Table, print_table, read_table
from store import StoreError

ROOT = Path(__file__).parent.parent
LIMIT_S = 900
FAILED = "failed: "
GRACE_S = 60  # to remove test data after a SIGTERM
INTERRUPTED_S = 15  # the same after Ctrl-C
PEERS = ("zarrs", "tensorstore", "h5py", "tensordict", "litdata")
PEERS += ("streaming", "array_record", "datasets", "lance")


@dataclass(frozen=True)
class Job:
    """A benchmark to run: its module, its options, the table that it writes, and what it needs
    that may be missing: modules to import, or a key of `FOUND`."""

    module: str
    options: tuple[str, ...] = ()
    table: str = ""
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its table."""
        return self.table or self.module


JOBS = (
    Job("row_sizes"),
    Job("workers"),
    Job("small_records"),
    Job("tokens"),
    Job("peers", needs=PEERS),
    Job("checked"),
    Job("index"),
    Job("codecs", needs=("transformers",)),
    Job("cold"),
    Job("partial"),
    Job("scale"),
    Job("scale", ("--limit-mb", "1024"), "scale_limited", ("root",)),
    Job("write"),
    Job("tiny_rows"),
    Job("verify"),
    Job("remote", needs=("obstore", "nginx")),
    Job("mirrored", needs=("obstore", "nginx")),
    Job("remote", ("--far",), "remote_far", ("obstore", "nginx")),
    Job("remote", ("--tls",), "remote_tls", ("obstore", "nginx")),
    Job("known_signal"),
    Job("coverage"),
    Job("coverage", ("--part", "metrics"), "coverage_metrics"),
    Job("coverage", ("--part", "risk"), "coverage_risk"),
    Job("coverage", ("--part", "trainings"), "coverage_trainings"),
)
FOUND: Mapping[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "nginx": lambda: find_nginx() is not None,
}


def main(args: Namespace, jobs: Sequence[Job] = JOBS) -> int:
    """Run the benchmarks that were asked for; the exit status."""
    chosen = [job for job in jobs if not args.only or job.name in args.only]
    committed = {job.name: read_committed(job.name) for job in chosen}
    found: dict[str, Table] = {}
    reasons: dict[str, str] = {}  # why there is no table
    with tempfile.TemporaryDirectory() as folder:
        for number, job in enumerate(chosen, 1):
            say(f"[{number} of {len(chosen)}] {job.name}: {outlook(committed[job.name])}")
            table = measure(job, args, Path(folder))
            if isinstance(table, str):
                say(table)
                reasons[job.name] = table
            else:
                found[job.name] = table
    report_changes(committed, found)
    for name, reason in reasons.items():
        say(f"{name}: {reason}")
    say(f"{len(found)} of {len(chosen)} benchmarks in {minutes(elapsed_s())}")
    if args.save:
        write_figures(say)
    return 1 if any(reason.startswith(FAILED) for reason in reasons.values()) else 0


def measure(job: Job, args: Namespace, folder: Path) -> Table | str:
    """Run a benchmark that finds what it needs: its table, or why there is none."""
    missing = next((need for need in job.needs if not is_there(need)), None)
    if missing:
        return f"skipped: {missing}"
    reason = run_job(job, args, folder)
    if reason:
        return FAILED + reason
    if args.save:
        save(folder, job.name)
    return read_table(folder / f"{job.name}.csv")


def read_committed(name: str) -> Table | None:
    """The committed table of a benchmark; None where there is none."""
    path = harness.RESULTS / f"{name}.csv"
    return read_table(path) if path.exists() else None


def is_there(need: str) -> bool:
    """Whether a benchmark finds what it needs."""
    return FOUND[need]() if need in FOUND else find_spec(need) is not None


def outlook(last: Table | None) -> str:
    """What is said as a benchmark begins."""
    took = "" if last is None or last.took_s is None else f", took {minutes(last.took_s)} last time"
    return f"{minutes(elapsed_s())} so far{took}"


def minutes(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def run_job(job: Job, args: Namespace, results: Path) -> str:
    """Run a benchmark to its end; why it failed, empty if it did not."""
    places = ["--dir", str(args.dir.absolute()), "--output", str(results)]
    command = [sys.executable, "-m", f"benchmarks.{job.module}", *job.options, *places]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        if not has_ended(process, args.limit_s):
            return f"stopped after {minutes(args.limit_s)}, its limit"
    except KeyboardInterrupt:  # the terminal has told it as well: it is about to end by itself
        has_ended(process, INTERRUPTED_S)
        raise
    finally:
        for stop in (process.terminate, process.kill):  # it removes its test data
            if process.poll() is None:
                stop()
                has_ended(process, GRACE_S)
    if process.returncode:
        return f"exit status {process.returncode}"
    table = results / f"{job.name}.csv"
    return "" if table.exists() else f"wrote no table {table.name}"


def has_ended(process: subprocess.Popen, within_s: float) -> bool:
    """Whether a process ends in this time; waits for it."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.poll() is not None


def save(folder: Path, name: str) -> None:
    """Replace a committed table and its picture."""
    for suffix in (".csv", ".png"):
        target = harness.RESULTS / f"{name}{suffix}"
        partial = target.with_suffix(".partial")
        shutil.copyfile(folder / target.name, partial)
        partial.replace(target)
    say(f"saved: {harness.RESULTS / name}.csv and .png")


def report_changes(committed: Mapping[str, Table | None], found: Mapping[str, Table]) -> None:
    """Print which main figures differ from the committed ones."""
    rows: list[dict] = []
    others: set[str] = set()
    for name, now in found.items():
        before = committed[name] or Table([])
        rows += changes(name, before, now)
        others |= {before.machine} - {now.machine, ""}
    print()
    for other in sorted(others):
        print(f"some committed results are of another machine: {other}")
    if rows:
        print(f"main figures that changed by more than {NOTABLE:.0%}:\n")
        print_table(rows)
    elif found:
        print(f"no main figure changed by more than {NOTABLE:.0%}")


def say(text: str) -> None:
    """Progress, which is no part of what is printed."""
    print(text, file=sys.stderr, flush=True)


def names(text: str) -> list[str]:
    """Names of benchmarks, separated by commas."""
    known = [job.name for job in JOBS]
    given = text.split(",")
    for name in given:
        if name not in known:
            raise ArgumentTypeError(f"expected some of {', '.join(known)}, found {name!r}")
    return given


def options() -> Parser:
    """The command line."""
    made = Parser(__doc__)
    made.add_argument(
        "--only", metavar="NAMES", type=names, help="separated by commas (default: all)"
    )
    made.add_argument("--dir", **harness.DATA)
    made.add_argument(
        "--limit-s",
        type=float,
        default=LIMIT_S,
        help="seconds after which a benchmark is stopped (default %(default)s)",
    )
    made.add_argument(
        "--save",
        action="store_true",
        help="replace the committed results in benchmarks/results of this checkout, and the "
        "figures that the README and the documents take from them",
    )
    made.set_defaults(output=None)
    return made


def run(args: Namespace) -> int:
    """Run, and say in one line what a user has to do or has done."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(harness.TERMINATED))
    load = os.getloadavg()[0]
    if load > 1:
        say(f"other programs are at work (load {load:.1f}): expect noise")
    try:
        harness.open_results(args)
        return main(args)
    except (StoreError, FigureError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        say(f"\n{program()}: interrupted after {minutes(elapsed_s())}")
        return 130


if __name__ == "__main__":
    sys.exit(run(options().parse_args()))
