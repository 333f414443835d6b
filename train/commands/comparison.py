"""A comparison of runs as tables on the terminal."""

from collections.abc import Sequence

from rich.console import Console

from train.commands.side_by_side import Comparison, Key
from train.evaluate.results import PairedTest
from train.report.console import print_line, print_table
from train.report.numbers import clean_text, short, with_interval
from train.report.render import Table, in_words
from train.report.tables import comparison_cells

__all__ = ["build_areas", "print_comparison"]


def print_comparison(comparison: Comparison, console: Console) -> None:
    print_line(console, in_words("compared_rows", comparison))
    for title, table in build_tables(comparison).items():
        print_table(table, console, title)
    for note in in_words("comparison_notes", comparison).splitlines():
        print_line(console, note)


def build_tables(comparison: Comparison) -> dict[str, Table]:
    """Title -> table: AUROCs, without a title, and paired tests."""
    tables = {"": build_areas(comparison)}
    if comparison.comparisons:
        header = ("runs", "of", "difference [95%]", "p boot", "DeLong", "Holm")
        tables["paired tests of AUROC"] = build_tests(header, comparison.comparisons)
    return tables


def build_areas(comparison: Comparison) -> Table:
    """AUROC of each detector and baseline of each run; a run's name stands in its first line.

    A star marks its best.
    """
    rows: list[tuple[str, ...]] = []
    groups = {}
    for name, run in comparison.runs.items():
        groups[len(rows)] = ""
        for i, (model, area) in enumerate(run.auroc.items()):
            star = " *" if model == run.best else ""
            test = with_interval(area.auroc, area.ci)
            label = "" if i else name
            rows.append((label, clean_text(model) + star, test, short(area.val_auroc)))
    return Table(("run", "", "AUROC [95%]", "val"), rows, n_left=2, groups=groups)


def build_tests(header: Sequence[str], tests: Sequence[PairedTest[Key]]) -> Table:
    rows = [(*name_pair(test), *comparison_cells(test)) for test in tests]
    return Table(header, rows, n_left=2)


def name_pair(test: PairedTest[Key]) -> tuple[str, str]:
    """The two runs, and what of them was compared; a star marks the best of each."""
    a_run, a = test.a
    b_run, b = test.b
    names = a if a == b else f"{a} - {b}"
    star = " *" if test.what == "best" else ""
    return clean_text(f"{a_run} - {b_run}"), clean_text(names + star)
