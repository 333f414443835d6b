"""Results: printed as a table, written as CSV with a picture, and read again.

A CSV begins with what made it, a line each: the command; the commit and the seconds it took; the
versions; the machine; the columns that hold the benchmark's main figures; the columns that name a
row. So a program that compares two of them needs no benchmark to be imported.
"""

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from types import ModuleType

from benchmarks.program import command, commit, elapsed_s, machine, needs_extra, versions

__all__ = ["GB", "Table", "finish", "median_ratio", "plot_bars", "print_table", "pyplot"]
__all__ += ["ratio_to", "ratios", "read_table"]

GB = 1e9
SEPARATOR = " | "  # of names of columns, some of which have commas
MAIN, NAMED_BY, TOOK = "main figures: ", "rows named by: ", ", took "


@dataclass(frozen=True)
class Table:
    """A table of results that was written."""

    rows: list[dict[str, str]]  # column -> cell, as text
    main: list[str] = field(default_factory=list)  # columns that are compared and quoted
    named_by: list[str] = field(default_factory=list)  # columns whose cells name a row
    took_s: float | None = None  # None where the file does not say
    machine: str = ""  # as `program.machine` describes it; empty where the file does not say


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


def finish(
    name: str,
    results: Path | None,
    rows: list[dict],
    plotted: str | Callable[[Path], None],
    main: str | Sequence[str],
    named_by: Sequence[str] = ("contender",),
) -> None:
    """Print the rows as a table; write `NAME.csv`, under what made them, and `NAME.png` into the
    folder `results`, if there is one.

    The picture has a bar a row of the column `plotted`, or what that function draws into the file
    it is given. `main` is the column of the main figure, or columns: what is quoted, and compared
    with earlier runs. Cells of the columns `named_by` together name a row, in each run alike.
    """
    print_table(rows)
    print(f"\n{machine()}")
    if results is None:
        return
    table_path, picture_path = results / f"{name}.csv", results / f"{name}.png"
    write_table(table_path, rows, [main] if isinstance(main, str) else main, named_by)
    if callable(plotted):
        plotted(picture_path)
    else:
        plot_bars(rows, plotted, picture_path)
    print(f"written: {table_path}, {picture_path}")


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


def write_table(path: Path, rows: list[dict], main: Sequence[str], named_by: Sequence[str]) -> None:
    """Write the rows as CSV, under what made them."""
    keys = columns_of(rows)
    for key in (*main, *named_by):
        assert key in keys, f"{path.stem}: no column {key!r} in {keys}"
    made_by = [
        command(),
        f"commit {commit()}{TOOK}{elapsed_s():.0f} s",
        versions(),
        machine(),
        MAIN + SEPARATOR.join(main),
        NAMED_BY + SEPARATOR.join(named_by),
    ]
    with path.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in made_by)
        writer = csv.DictWriter(file, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: Path) -> Table:
    """Read a table that `finish` wrote, also of earlier versions, which say less of it."""
    lines = path.read_text().splitlines()
    said = [line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]
    took = next((line.partition(TOOK)[2] for line in said if TOOK in line), None)
    return Table(
        list(csv.DictReader(lines[len(said) :])),
        said_columns(said, MAIN),
        said_columns(said, NAMED_BY),
        None if took is None else float(took.removesuffix(" s")),
        next((line for line in said if " cores, " in line), ""),
    )


def said_columns(said: Iterable[str], what: str) -> list[str]:
    """The columns that a line of what made a table names; none without such a line."""
    line = next((line for line in said if line.startswith(what)), None)
    return [] if line is None else line.removeprefix(what).split(SEPARATOR)


def plot_bars(rows: list[dict], key: str, path: Path) -> None:
    """A bar for each row, named by the cells before its first measurement."""
    plt = pyplot()
    names = [
        ", ".join(map(str, takewhile(lambda cell: not isinstance(cell, float), row.values())))
        for row in rows
    ]
    names = [name or str(next(iter(row.values()))) for name, row in zip(names, rows, strict=True)]
    values = [row[key] for row in rows]
    figure, axis = plt.subplots(figsize=(8, 0.8 + 0.26 * len(rows)), constrained_layout=True)
    colors = [
        "tab:orange" if "ours" in name or "TraceLoader" in name else "tab:gray" for name in names
    ]
    bars = axis.barh(
        range(len(rows)), values, color=colors if "tab:gray" in colors else "tab:orange"
    )
    axis.bar_label(bars, padding=3, fontsize=8)
    axis.set(xlabel=key.replace("_per_", "/").replace("_", " "), yticks=range(len(rows)))
    axis.set_yticklabels(names, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.12, y=0.01)
    axis.invert_yaxis()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def pyplot() -> ModuleType:
    """matplotlib's, drawing to files."""
    with needs_extra("train"):
        import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt
