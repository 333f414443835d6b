"""The command `python -m train evaluate`: finished runs tested on other stores.

Only --output is written, when everything is computed. Exit status 1: a store could not be judged,
the others were.
"""

import argparse
from collections.abc import Sequence

from store.cli.arguments import path
from train.config import Parser, add_scoring_options, reading_of
from train.errors import store_errors
from train.files import check_output

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train evaluate --run runs/triviaqa --store nq.zarr squad.zarr
  python -m train evaluate --run runs/triviaqa --store nq.zarr --models lstm_solo,mean_logprob
  python -m train evaluate --run runs/triviaqa --store nq.zarr --output transfer.html
  python -m train evaluate --matrix runs/* --store triviaqa.zarr nq.zarr --output matrix.html
      AUROC of each run (rows) on each store (columns), as a table and a heat map

Nothing is trained: weights, layers and thresholds are those of the run, the thresholds chosen on
its validation split. Scores are the mean over its seeds; of a run with --splits those of the first
split (DIR/split-SEED is the run of another one). Labels are the store's column `label`, or
made of `score` where the run was made with --score-threshold; traces without a label are not
judged. Intervals are 95%, over questions.

Questions that the run has learned from are no test. Of its own store its test split is judged.
Traces of questions of its train or validation split are counted and left out: those of the same
id, or of the same text but for case, white space and punctuation.
Exit status 1: a store could not be judged, for example because it has one class only; 2: a
mistake, and nothing is written.
"""
SUFFIXES = (".html",)

# Nothing above imports torch, and nothing below does before the arguments are known to be good: it
# takes seconds.


def build_parser() -> argparse.ArgumentParser:
    text = "Test finished runs on stores, at the thresholds of the runs."
    parser = Parser("evaluate", description=text, epilog=EXAMPLES)
    runs = parser.add_mutually_exclusive_group(required=True)
    runs.add_argument("--run", type=path, metavar="DIR", help="output directory of the run")
    text = "output directories of runs, each tested on each store"
    runs.add_argument("--matrix", type=path, nargs="+", metavar="DIR", help=text)
    add = parser.add_argument
    text = "stores of labelled traces"
    add("--store", type=path, nargs="+", required=True, metavar="STORE", help=text)
    text = "also write the tables and the heat map to FILE.html"
    add("--output", type=path, metavar="FILE", help=text)
    add("--json", action="store_true", help="print JSON instead of tables")
    text = "also judge traces of questions that the run was trained or tuned on"
    add("--keep-trained-questions", action="store_true", help=text)
    methods = "all that the run has; with --matrix the detectors and probes that all runs have"
    add_scoring_options(parser, methods, "test on")
    return parser


def main(argv: Sequence[str]) -> int:
    """Read, score, judge, write and print; return the exit status.

    Mistakes of the user are TrainErrors.
    """
    options = build_parser().parse_args(argv)
    check_output(options.output, SUFFIXES)
    from train.commands.evaluate_runs import Rules, evaluate_runs, open_run
    from train.commands.evaluate_tables import print_evaluation, write_evaluation
    from train.commands.side_by_side import name_runs
    from train.outside import load_methods
    from train.records import json_text
    from train.report.console import OutputConsole

    names_text = load_methods(options.models or "") or None
    directories = options.matrix or [options.run]
    is_matrix = options.matrix is not None
    names = name_runs(directories)
    reading = reading_of(options)
    runs = {
        name: open_run(directory, reading, names_text, with_baselines=not is_matrix)
        for name, directory in zip(names, directories, strict=True)
    }
    stores = dict(zip(name_runs(options.store), options.store, strict=True))
    rules = Rules(options.force, options.keep_trained_questions)
    with store_errors():
        evaluation = evaluate_runs(runs, stores, rules)
    if options.output is not None:
        write_evaluation(options.output, evaluation, is_matrix=is_matrix)
    if options.json:
        print(json_text(evaluation))
    else:
        print_evaluation(evaluation, OutputConsole(), is_matrix=is_matrix)
    return 0 if evaluation.is_complete else 1
