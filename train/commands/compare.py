"""The command `python -m train compare DIR...`: finished runs compared on their common rows."""

import argparse
from collections.abc import Sequence

from store.cli.arguments import path
from train.config import Parser

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train compare runs/dense runs/sparse
  python -m train compare runs/a runs/b --json            everything, for a program

Rows are joined by trace id; those that are in the test split of every run count. Tested are the
same detector or baseline in two runs, and the best detector of two runs, chosen on validation.
Scores that rank the rows in the same way are not tested against each other, nor is such a pair
tested twice. Where a run trained a detector several times, its AUROC is the mean of theirs.
Of runs with --splits the first split is compared; DIR/split-SEED is the run of another one.
"""

# Nothing above imports torch, and nothing below does before the arguments are known to be good: it
# takes seconds.


def build_parser() -> argparse.ArgumentParser:
    text = "Compare finished runs: AUROCs on their common test rows, and paired tests."
    parser = Parser("compare", description=text, epilog=EXAMPLES)
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        metavar="DIR",
        type=path,
        help="directory of a run: --output-dir of train",
    )
    add("--json", action="store_true", help="print JSON instead of tables")
    return parser


def main(argv: Sequence[str]) -> None:
    """Read, compare and print; mistakes of the user are TrainErrors."""
    options = build_parser().parse_args(argv)
    from train.commands.side_by_side import compare_runs, name_runs, print_comparison
    from train.records import json_text
    from train.report.console import OutputConsole
    from train.run.results import read_run

    names = name_runs(options.runs)
    read = [read_run(directory) for directory in options.runs]
    comparison = compare_runs(dict(zip(names, read, strict=True)))
    if options.json:
        print(json_text(comparison))
    else:
        print_comparison(comparison, OutputConsole())
