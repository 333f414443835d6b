"""Results: printed as a table, written as CSV, and read again.

A CSV begins with what made it, a line each: the command; the commit and the seconds it took; the
versions; the machine; the columns that name a row.
"""

import csv
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

__all__ = ["GB", "Table", "finish", "median_ratio", "module_name", "ratio_to", "ratios"]
__all__ += ["read_table"]

GB = 1e9
STARTED_S = time.perf_counter()
ROOT = Path(__file__).parent.parent
# written by a run of all benchmarks while it goes on, and no part of what is measured
NOT_MEASURED = [":(exclude)benchmarks/results", ":(exclude)README.md", ":(exclude)docs"]
NAMED_BY = "rows named by: "
SEPARATOR = " | "


@dataclass(frozen=True)
class Table:
    """A table of results that was written."""

    rows: list[dict[str, str]]  # column -> cell, as text
    named_by: list[str]  # columns whose cells name a row


def ratios(seconds: dict[str, list[float]], n_rows: int, n_bytes: int, *anchors: str) -> list[dict]:
    """A result row for each contender, of turns that they took one after the other.

    `seconds` are those of its turns, as many for each contender, and a turn delivers `n_rows` and
    `n_bytes`. A row has the speed of the median turn and of the best, rows/s of the median turn,
    and for each of the `anchors`, contenders that the others are compared with, the median of the
    ratios of the turns: what slows the machine for a while slows neighbours in a turn alike, so
    that their ratio spreads less than their speeds.
    """
    return [
        {
            "contender": name,
            "median_GB_per_s": round(n_bytes / statistics.median(times) / GB, 3),
            "best_GB_per_s": round(n_bytes / min(times) / GB, 3),
            "rows_per_s": round(n_rows / statistics.median(times)),
        }
        | {ratio_to(anchor): round(median_ratio(seconds[anchor], times), 3) for anchor in anchors}
        for name, times in seconds.items()
    ]


def ratio_to(anchor: str) -> str:
    """The column of ratios to a contender."""
    return f"x_{anchor.replace(' ', '_')}"


def median_ratio(anchor: Sequence[float], seconds: Sequence[float]) -> float:
    """The median of the ratios of the turns: how many times as fast as the anchor."""
    return statistics.median(a / b for a, b in zip(anchor, seconds, strict=True))


def finish(name: str, folder: Path | None, rows: list[dict], *named_by: str) -> None:
    """Print the rows; write `NAME.csv`, under what made them, into the folder, if there is one.

    Cells of the columns `named_by`, by default the contender's, together name a row.
    """
    print_table(rows)
    print(f"\n{machine()}")
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    write_table(path, rows, named_by or ["contender"])
    print(f"written: {path}")


def columns_of(rows: Iterable[dict]) -> list[str]:
    """The columns that any of the rows has, in the order in which they come."""
    return list(dict.fromkeys(key for row in rows for key in row))


def print_table(rows: list[dict]) -> None:
    """Print the rows, each column as wide as its widest cell."""
    keys = columns_of(rows)
    table = [keys, *([str(row.get(key, "")) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def write_table(path: Path, rows: list[dict], named_by: Sequence[str]) -> None:
    """Write the rows as CSV, under what made them."""
    made_by = [
        command(),
        f"commit {commit()}, took {time.perf_counter() - STARTED_S:.0f} s",
        versions(),
        machine(),
        NAMED_BY + SEPARATOR.join(named_by),
    ]
    with path.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in made_by)
        writer = csv.DictWriter(file, columns_of(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> Table:
    """Read a table that `finish` wrote."""
    lines = path.read_text().splitlines()
    said = [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]
    (named_by,) = (line.removeprefix(NAMED_BY) for line in said if line.startswith(NAMED_BY))
    return Table([*csv.DictReader(lines[len(said) :])], named_by.split(SEPARATOR))


def module_name() -> str:
    """The benchmark's name, as in `python -m benchmarks.NAME`."""
    return Path(sys.argv[0]).stem


def command() -> str:
    """The command that measures the same again: without the options that say where files are."""
    places = ArgumentParser(allow_abbrev=False, add_help=False)
    places.add_argument("--dir")
    places.add_argument("--output")
    places.add_argument("--save", action="store_true")
    settings = places.parse_known_args(sys.argv[1:])[1]
    return shlex.join(["python", "-m", f"benchmarks.{module_name()}", *settings])


def commit(checkout: Path = ROOT) -> str:
    """The short hash of the checkout's commit, with a "+" where files differ from it.

    Results, the README and documents are not looked at: writing them changes no figure.
    """
    found = git(checkout, "rev-parse", "--short", "HEAD")
    if not found:
        return "unknown"
    changed = git(checkout, "status", "--porcelain", "--", ".", *NOT_MEASURED)
    return f"{found}+" if changed else found


def git(checkout: Path, *arguments: str) -> str:
    """What git prints; nothing where there is no repository."""
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def versions() -> str:
    """The packages that matter, and Python."""
    packages = (f"{name} {version(name)}" for name in ("numpy", "torch", "zarr", "numcodecs"))
    return ", ".join([f"python {platform.python_version()}", *packages])


def machine() -> str:
    """Processor, cores, memory and kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine()
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    kernel = platform.release().split("-")[0]
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {kernel}"
