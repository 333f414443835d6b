"""What the benchmarks share: command line, data, alternating timing.

Contenders take turns within one run, so that a noisy neighbour hurts all alike; figures are medians
of the turns. Every byte that is counted is copied by the contender, and what it delivers is
compared once with the rows that were written.

A run leaves no file unless it is asked to: its test data is removed in the end, and the
table is only printed.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from benchmarks.flat_copy import FlatCopy
from benchmarks.page_cache import drop_caches, read_back, sequential
from benchmarks.program import fail, installed, module_name, needs_extra, program
from benchmarks.tables import GB, finish, plot_bars, pyplot, ratio_to, ratios
from store import Column, Schema, StoreError, StoreWriter, TraceStore
from store.cli.arguments import path as path_argument
from store.extras import find_checkout

__all__ = [
    "GB",
    "FlatCopy",
    "Parser",
    "alternate",
    "alternate_cold",
    "alternate_long",
    "drop_caches",
    "epoch_of",
    "example_store",
    "fail",
    "finish",
    "installed",
    "make_store",
    "needs_extra",
    "parser",
    "plot_bars",
    "private_bytes",
    "pyplot",
    "ragged_rows",
    "ratio_to",
    "ratios",
    "run",
    "sequential",
    "show",
]

RESULTS = Path(__file__).parent / "results"
TERMINATED = 128 + signal.SIGTERM  # exit status of a terminated command, as shells count


class Parser(ArgumentParser):
    """A command line whose mistakes are one line each, and whose flags are written in full."""

    def __init__(self, doc: str) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(program(), description=doc, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        fail(f"{message}; see {self.prog} --help")


def parser(doc: str, size_mb: int, epochs: int = 5, *, makes_data: bool = True) -> Parser:
    """The options every benchmark takes.

    Parameters
    ----------
    doc
        The module's docstring.
    size_mb
        Default size of its test data, in megabytes; 0 where something else decides it.
    epochs
        Default number of turns of each contender.
    makes_data
        Whether it writes test data. The options that concern none are taken and not shown.
    """
    made = Parser(doc)
    made.add_argument(
        "--dir",
        type=path_argument,
        default=Path("data/benchmarks"),
        help=shown(
            makes_data, "make test data below DIR and remove it in the end (default %(default)s)"
        ),
    )
    made.add_argument(
        "--keep",
        action="store_true",
        help=shown(
            makes_data,
            "make test data in DIR itself, leave it there, and use what an earlier --keep left",
        ),
    )
    made.add_argument(
        "--size-mb",
        type=int,
        default=size_mb,
        help=shown(size_mb > 0, "megabytes of test data (default %(default)s)"),
    )
    made.add_argument(
        "--epochs", type=int, default=epochs, help="turns of each contender (default %(default)s)"
    )
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--output",
        metavar="DIR",
        type=path_argument,
        help="write the table as CSV, and a picture of it, into DIR (default: only print it)",
    )
    # its name in earlier versions
    where.add_argument("--results", dest="output", type=path_argument, help=SUPPRESS)
    where.add_argument(
        "--save",
        action="store_true",
        help="write both over the committed ones in benchmarks/results of this checkout",
    )
    made.set_defaults(makes_data=makes_data)
    return made


def shown(is_shown: bool, text: str) -> str:
    """A help text, or argparse's mark for an option that `--help` leaves out."""
    return text if is_shown else SUPPRESS


def run(main: Callable[[Namespace], None], options: Parser) -> None:
    """Run a benchmark with the options of the command line, and remove its test data whatever ends
    it.

    `main` gets the options with `dir` the directory to make test data in, and `results` the one
    that `finish` writes to, or None. A mistake is one line and exit status 2.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # else nothing would be removed
    args = options.parse_args()
    try:
        args.results = open_results(args)
        with data_directory(args) as args.dir:
            main(args)
    except (StoreError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        show("")
        print(f"{program()}: interrupted", file=sys.stderr)
        sys.exit(130)


def open_results(args: Namespace) -> Path | None:
    """The directory for the table and its picture, made now; None if nothing is to be written."""
    if args.save and find_checkout() is None:
        fail(
            f"--save: {RESULTS.parent} is an installed copy and has no committed results to "
            "replace; use --output DIR"
        )
    if args.output is not None and args.output.resolve() == RESULTS.resolve():
        fail(
            f"--output: {args.output} holds the committed results; use --save to replace them, "
            "or another directory"
        )
    results = RESULTS if args.save else args.output
    if results is not None:
        pyplot()  # measuring takes minutes: what the picture needs is missed before
        results.mkdir(parents=True, exist_ok=True)
    return results


@contextmanager
def data_directory(args: Namespace) -> Iterator[Path]:
    """The directory to make test data in: a new one that is removed, or the named one with
    `--keep`."""
    if not args.makes_data:
        yield args.dir
        return
    if args.keep:
        args.dir.mkdir(parents=True, exist_ok=True)
        print(f"test data: {args.dir}, kept", file=sys.stderr)
        yield args.dir
        return
    created = [folder for folder in (args.dir, *args.dir.parents) if not folder.exists()]
    args.dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f"{module_name()}-", dir=args.dir) as fresh:
            print(f"test data: {fresh}, removed in the end (--keep leaves it)", file=sys.stderr)
            yield Path(fresh)
    finally:
        with suppress(OSError):  # another run makes its data beside ours
            for folder in created:
                folder.rmdir()


def make_store(
    path: Path, columns: dict[str, Column], rows: Callable[[], Iterator[tuple[str, dict]]]
) -> TraceStore:
    """The store at `path`, written now unless it is there."""
    if not (path / "zarr.json").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a run with --keep that was stopped
        with StoreWriter.create(partial, Schema(columns)) as writer:
            for trace_id, row in rows():
                writer.append(trace_id, row)
        partial.rename(path)
        read_back(path)
    return TraceStore.open(path)


def example_store(directory: Path) -> TraceStore:
    """The embedded example's traces, built now unless they are there."""
    with needs_extra("extract"):
        from store.sources.example import ExampleSource
        from store.write.build import build_store

    path = directory / "example.zarr"
    return TraceStore.open(path) if path.exists() else build_store(path, ExampleSource())


def ragged_rows(
    size_mb: int, row_bytes: int, item_bytes: int, seed: int = 0
) -> Iterator[tuple[str, dict]]:
    """Rows of random bits in a column `x`, float16 `(n, item_bytes / 2)`, n 20% about its mean."""
    rng = np.random.default_rng(seed)
    n_rows, mean = size_mb * 10**6 // row_bytes, row_bytes // item_bytes
    for i in range(n_rows):
        n = int(rng.integers(mean - mean // 5, mean + mean // 5 + 1))
        yield (
            f"trace_{i}",
            {"x": np.frombuffer(rng.bytes(n * item_bytes), np.float16).reshape(n, -1)},
        )


def ragged_store(directory: Path, size_mb: int, row_bytes: int, item_bytes: int) -> TraceStore:
    """A store of such rows, made if it is not there."""
    columns = {"x": Column("float16", (item_bytes // 2,), axis="t")}
    path = directory / f"rows-{row_bytes}-{size_mb}.zarr"
    return make_store(path, columns, lambda: ragged_rows(size_mb, row_bytes, item_bytes))


def alternate(
    contenders: Mapping[str, Callable[[int], None]], epochs: int, warm: bool = True
) -> dict[str, list[float]]:
    """Seconds of every epoch of every contender, taking turns.

    Warm: a turn begins with an epoch that is not timed. While the others had theirs, the kernel may
    have unmapped or dropped a contender's pages and the processor's cache holds theirs; who comes
    next to a reader of the same file would be spared that.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(epochs):
        for name, contender in contenders.items():
            if warm:
                contender(number + epochs)
            start = time.perf_counter()
            contender(number)
            seconds[name].append(time.perf_counter() - start)
            show(f"turn {number + 1} of {epochs}: {name} {seconds[name][-1]:.2f} s")
    show("")
    return seconds


def alternate_long(
    contenders: dict[str, Callable[[int], None]], epochs: int
) -> dict[str, list[float]]:
    """The same where a turn takes seconds of arithmetic: one before all turns is enough to load
    what it needs, and what the others left in caches is gone at once."""
    for name, contender in contenders.items():
        show(f"first, untimed: {name}")
        contender(epochs)
    return alternate(contenders, epochs, warm=False)


def alternate_cold(
    contenders: dict[str, Callable[[int], None]], epochs: int, paths: Sequence[Path]
) -> dict[str, list[float]]:
    """The same with nothing of these files and folders in the page cache when a turn begins."""
    timed = {name: _WithoutCache(contender, paths) for name, contender in contenders.items()}
    seconds = alternate(timed, epochs, warm=False)
    return {
        name: [s - d for s, d in zip(times, timed[name].dropped_s, strict=True)]
        for name, times in seconds.items()
    }


class _WithoutCache:
    """An epoch that begins with nothing cached; the time that takes is kept apart."""

    def __init__(self, epoch: Callable[[int], None], paths: Sequence[Path]) -> None:
        self.epoch, self.paths, self.dropped_s = epoch, paths, []

    def __call__(self, number: int) -> None:
        start = time.perf_counter()
        drop_caches(self.paths)
        self.dropped_s.append(time.perf_counter() - start)
        self.epoch(number)


def epoch_of(loader: object) -> Callable[[int], None]:
    """An epoch of a loader, or of a sampler's loader, with nothing done to its batches."""

    def epoch(number: int) -> None:
        (loader if hasattr(loader, "set_epoch") else loader.sampler).set_epoch(number)
        for _ in loader:
            pass

    return epoch


def show(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def private_bytes() -> int:
    """Memory of this process that no file backs and no process shares (RssAnon)."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024
