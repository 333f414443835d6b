"""What the benchmarks share: command line, alternating timing, processes, memory.

Contenders take turns within one run, so that a noisy neighbour hurts all alike; figures are medians
of the turns. Every byte that is counted is copied by the contender, and what it delivers is
compared once with the rows that were written.

A run leaves no file unless it is asked to: its test data is removed in the end, and the
table is only printed.
"""

import argparse
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from benchmarks.data import drop_caches
from benchmarks.tables import module_name
from store import StoreError, TraceLoader, TraceStore
from store.cli.arguments import path as path_argument

__all__ = [
    "RESULTS",
    "Epoch",
    "alternate",
    "clocks",
    "epoch_of",
    "fail",
    "in_new_process",
    "loader_epoch",
    "parser",
    "private_bytes",
    "run",
    "show",
    "status_bytes",
    "take_turns",
    "watching",
]

T = TypeVar("T")
Epoch = Callable[[int], object]

RESULTS = Path(__file__).parent / "results"


def parser(
    doc: str, size_mb: int, epochs: int = 5, options: Mapping[str, tuple[Any, str]] | None = None
) -> ArgumentParser:
    """The options every benchmark takes, and its own.

    `doc` is the module's docstring; `size_mb` the default size of its test data, in megabytes, 0
    where something else decides it; `epochs` the default number of turns of each contender.

    `options` are its own: flag -> default value and help text. The type is that of the default; a
    type in its place is that of an option without a default, and False is a switch.
    """
    made = ArgumentParser(
        f"python -m benchmarks.{module_name()}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--dir",
        type=path_argument,
        default=Path("data/benchmarks"),
        help="make test data below DIR and remove it in the end (default %(default)s)",
    )
    if size_mb:
        add_option(made, "--size-mb", size_mb, "megabytes of test data")
    add_option(made, "--epochs", epochs, "turns of each contender")
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--output",
        metavar="DIR",
        type=path_argument,
        help="write the table as CSV into DIR (default: only print it)",
    )
    where.add_argument(
        "--save",
        dest="output",
        action="store_const",
        const=RESULTS,
        help="write it over the committed one in benchmarks/results of this checkout",
    )
    for flag, (default, text) in (options or {}).items():
        add_option(made, flag, default, text)
    return made


def add_option(made: ArgumentParser, flag: str, default: Any, text: str) -> None:
    """Add an option, whose help text ends with its default where it has one."""
    if default is False:
        made.add_argument(flag, action="store_true", help=text)
    elif callable(default):
        made.add_argument(flag, type=default, help=text)
    elif isinstance(default, list):
        text += f" (default {' '.join(map(str, default))})"
        made.add_argument(flag, type=type(default[0]), nargs="+", default=default, help=text)
    else:
        text += " (default %(default)s)"
        made.add_argument(flag, type=type(default), default=default, help=text)


def run(main: Callable[[Namespace], None], options: ArgumentParser) -> None:
    """Run a benchmark with the options of the command line, and remove its test data whatever ends
    it.

    `main` gets the options with `dir` the directory to make test data in, and `output` the one
    that `finish` writes to, or None. A mistake is one line and exit status 2.
    """
    # else nothing would be removed; the exit status is that of a command that was terminated
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args = options.parse_args()
    try:
        args.dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{module_name()}-", dir=args.dir) as fresh:
            args.dir = Path(fresh)
            main(args)
    except (StoreError, OSError) as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """End the benchmark with one line and exit status 2."""
    print(f"python -m benchmarks.{module_name()}: {message}", file=sys.stderr)
    sys.exit(2)


def take_turns(contenders: Mapping[str, Callable[[int], T]], epochs: int) -> dict[str, list[T]]:
    """What every contender gives in each of its turns, which it is told the number of."""
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(epochs):
        for name, contender in contenders.items():
            show(f"turn {number + 1} of {epochs}: {name}")
            found[name].append(contender(number))
    show("")
    return found


def alternate(
    contenders: Mapping[str, Epoch], epochs: int, warm: bool = True, cold: Sequence[Path] = ()
) -> dict[str, list[float]]:
    """Seconds of every epoch of every contender, taking turns.

    Where `warm`, a turn begins with an epoch that is not timed: while the others had theirs, the
    kernel may have unmapped or dropped a contender's pages and the processor's cache holds theirs;
    who comes next to a reader of the same file would be spared that. Of the files and folders
    `cold` nothing is in the page cache when a turn begins, and no epoch comes before it.
    """

    def turn(contender: Epoch, number: int) -> float:
        if cold:
            drop_caches(cold)
        elif warm:
            contender(number + epochs)
        return clocks(partial(contender, number))[0]

    turns = {name: partial(turn, contender) for name, contender in contenders.items()}
    return take_turns(turns, epochs)


def clocks(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that it takes, and those of the processor, of all threads: what other programs do at
    the same time disturbs these less."""
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu_start


def loader_epoch(
    store: TraceStore | Path, batch_size: int, num_workers: int = 0, **options: object
) -> Epoch:
    """An epoch of the shuffled loader of the column `x`, with nothing done to its batches."""
    loader = TraceLoader(store, ["x"], batch_size, shuffle=True, num_workers=num_workers, **options)
    return epoch_of(loader)


def epoch_of(loader: Any) -> Epoch:
    """An epoch of a loader, or of a sampler's loader, with nothing done to its batches."""

    def epoch(number: int) -> None:
        (loader if hasattr(loader, "set_epoch") else loader.sampler).set_epoch(number)
        for _ in loader:
            pass

    return epoch


def in_new_process(function: Callable[..., T], *arguments: object) -> T:
    """What a function of a module gives in a process that has just started."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


@contextmanager
def watching(pid: int | str = "self", every_s: float = 0.02) -> Iterator[Callable[[], int]]:
    """Watch the private memory of a process while the block runs; gives a function that tells how
    many bytes it had at its highest."""
    most = [private_bytes(pid)]
    done = threading.Event()

    def note() -> None:
        while not done.wait(every_s):
            most[0] = max(most[0], private_bytes(pid))

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        done.set()
        thread.join()


def private_bytes(pid: int | str = "self") -> int:
    """Memory of a process that no file backs and no process shares (RssAnon)."""
    return status_bytes("RssAnon", pid)


def status_bytes(key: str, pid: int | str = "self") -> int:
    """A line of a process's status, which the kernel gives in kB of 1024."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{key}:")[1].split()[0]) * 1024


def show(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
