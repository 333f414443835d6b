"""The command `python -m train compare DIR...`: finished runs side by side, with paired tests on
common rows.

Only --output is written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from store.cli.arguments import path
from train.config import Parser
from train.errors import ConfigError
from train.files import check_output

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train compare runs/dense runs/sparse
  python -m train compare runs/* --output comparison.md         the tables as Markdown; .csv for a spreadsheet
  python -m train compare runs/a runs/b --json                  everything, for a program

Rows are joined by trace id; those that are in the test split of every run count. Tested are the same detector or
baseline in two runs, and the best detector of two runs, chosen on validation. Where a run trained a detector several
times, its scores are the mean over the seeds.
"""
SUFFIXES = (".md", ".csv")

# Nothing above imports torch, and nothing below does before the arguments are known to be good: it
# takes seconds.


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = Parser(
        prog="python -m train compare",
        description="Set finished runs side by side: AUROCs on their common test rows, and paired tests.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="DIR",
        type=path,
        help="directory of a run: --output-dir of train",
    )
    parser.add_argument(
        "--output", metavar="FILE", type=path, help="write the tables to FILE.md or FILE.csv, too"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    return parser


def main(argv: Sequence[str]) -> None:
    """Read, compare, write and print; mistakes come out as TrainError."""
    arguments = build_parser().parse_args(argv)
    if arguments.output is not None:
        if arguments.output.suffix not in SUFFIXES:
            found = str(arguments.output)
            raise ConfigError(
                f"--output: expected a file that ends in {' or '.join(SUFFIXES)}, found {found!r}"
            )
        check_output(arguments.output)
    from train.commands.side_by_side import compare_runs, name_runs, print_comparison, write_output
    from train.report.console import OutputConsole
    from train.run.results import read_run

    found = compare_runs(
        dict(zip(name_runs(arguments.runs), map(read_run, arguments.runs), strict=True))
    )
    if arguments.output is not None:
        write_output(arguments.output, found)
    if arguments.json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        print_comparison(found, OutputConsole())
