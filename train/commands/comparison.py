"""A comparison of runs as tables: on the terminal, in Markdown and in CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from rich.console import Console

from train.files import replace_file
from train.report.markdown import escape, format_table
from train.report.table import Table, clean_text, print_terminal, short, short_p, with_interval

__all__ = ["build_areas", "build_tests", "describe_rows", "print_comparison", "write_comparison"]

P_VALUES = ("p_bootstrap", "p_delong", "p_holm")
CSV_HEADER = ("what", "run", "name", "other_run", "other_name", "value", "low", "high", *P_VALUES)

# Everywhere here `comparison` is what `train.commands.side_by_side.compare_runs` returns.


def print_comparison(comparison: dict[str, Any], console: Console) -> None:
    """Print both tables."""
    areas = build_areas(comparison)
    firsts = [i for i, row in enumerate(areas.rows) if i and row[0]]
    console.print(describe_rows(comparison), highlight=False, markup=False)
    print_terminal(areas, console, "", firsts)
    if comparison["comparisons"]:
        tests = build_tests(comparison)
        print_terminal(tests, console, "paired tests of AUROC; * the best of either run")


def describe_rows(comparison: dict[str, Any]) -> str:
    """What was compared, and what was left out."""
    text = (
        f"{comparison['rows']} traces of {comparison['questions']} questions, "
        f"{comparison['hallucinations']} hallucinations, in the test split of every run"
    )
    if comparison["left_out"]:
        text += (
            f"; left out {comparison['left_out']} that are in the test split of some runs only, "
            f"{comparison['left_out_trained']} of which another was trained on"
        )
    if comparison["different_models"]:
        text += "; WARNING: the runs read traces of different models, layers or prompts"
    return f"{text}; * is the best on validation"


def build_areas(comparison: dict[str, Any]) -> Table:
    """AUROC of each detector and baseline of each run; a run's name stands in its first line.

    A star marks its best. Those with the same scores in an earlier run are only counted.
    """
    rows: list[tuple[str, ...]] = []
    for name, run in comparison["runs"].items():
        copies = {model: first for model, first in run["same_as"].items() if model != run["best"]}
        lines = [area_line(run, model) for model in run["auroc"] if model not in copies]
        if copies:
            firsts = ", ".join(clean_text(first) for first in dict.fromkeys(copies.values()))
            lines.append((f"({len(copies)} with the scores of {firsts})", "", ""))
        rows += [("" if i else name, *line) for i, line in enumerate(lines)]
    return Table(("run", "", "AUROC [95%]", "val"), rows, n_left=2)


def area_line(run: dict[str, Any], model: str) -> tuple[str, str, str]:
    """A name, its AUROC on test and that on validation."""
    area = run["auroc"][model]
    star = " *" if model == run["best"] else ""
    on_test = with_interval(area["auroc"], area["ci"])
    return clean_text(model) + star, on_test, short(area["val_auroc"])


def build_tests(comparison: dict[str, Any]) -> Table:
    """Both paired tests, a line per pair."""
    rows = []
    for test in comparison["comparisons"]:
        (a_run, a), (b_run, b) = test["a"], test["b"]
        names = a if a == b else f"{a} - {b}"
        star = " *" if test["what"] == "best" else ""
        difference = with_interval(test["difference"], test["ci"])
        p_values = [short_p(test[key]) for key in P_VALUES]
        runs = clean_text(f"{a_run} - {b_run}")
        rows.append((runs, clean_text(names + star), difference, *p_values))
    return Table(("runs", "of", "difference [95%]", "p boot", "DeLong", "Holm"), rows, n_left=2)


def write_comparison(path: Path, comparison: dict[str, Any]) -> None:
    """Write the comparison as Markdown or CSV, by the ending of the file's name."""
    to_text = format_markdown if path.suffix == ".md" else format_csv
    with replace_file(path) as temporary:
        temporary.write_text(to_text(comparison), encoding="utf-8", newline="")


def format_markdown(comparison: dict[str, Any]) -> str:
    """Both tables."""
    summary = escape(describe_rows(comparison))
    parts = ["# Runs side by side", f"{summary}.", format_table(build_areas(comparison))]
    if comparison["comparisons"]:
        parts += ["## Paired tests of AUROC", format_table(build_tests(comparison))]
    return "\n\n".join(parts) + "\n"


def format_csv(comparison: dict[str, Any]) -> str:
    """One table of full precision: a line per AUROC, of one name, and per difference, of two."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for name, run in comparison["runs"].items():
        for model, area in run["auroc"].items():
            empty = [""] * len(P_VALUES)
            writer.writerow(["auroc", name, model, "", "", area["auroc"], *area["ci"], *empty])
    for test in comparison["comparisons"]:
        numbers = [test["difference"], *test["ci"], *(test[key] for key in P_VALUES)]
        writer.writerow([f"difference of {test['what']}", *test["a"], *test["b"], *numbers])
    return text.getvalue()
