"""The command `python -m train predict`: scores of new traces by the detectors of a finished
run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from store.cli.arguments import expand
from train.config import Parser, check_config
from train.errors import DataError, store_errors
from train.files import check_output

if TYPE_CHECKING:
    from train.commands.scoring import TrainedRun
    from train.data.batches import TrainingData

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train predict --run runs/traces --store new.zarr > scores.csv
  python -m train predict --run runs/traces --store new.zarr --models lstm_solo,lapeigvals --output scores.csv
  python -m train predict --run runs/traces --store new.zarr --to-store      as columns score_lstm_solo, ... of new.zarr

A score is a probability of hallucination, the mean over the run's seeds. The column `split` says in which split of the
run's split the question of a trace is or would be: scores of `train` say nothing about new questions.
"""


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = Parser(
        prog="python -m train predict",
        description="Score the traces of a store with the detectors of a finished run.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--run", type=expand, required=True, metavar="DIR", help="output directory of the run"
    )
    parser.add_argument(
        "--store",
        type=expand,
        required=True,
        metavar="STORE",
        help="the traces; labels are not needed",
    )
    parser.add_argument(
        "--models",
        metavar="NAMES",
        help="names, separated by commas (default: the run's detectors)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--output", type=expand, metavar="FILE", help="write CSV there (default: to the terminal)"
    )
    where.add_argument(
        "--to-store",
        action="store_true",
        help="write a column score_NAME for each name, or replace it",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="score traces of another model, other layers or other prompts all the same",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="INT", help="traces at a time (default: as in the run)"
    )
    parser.add_argument(
        "--num-workers", type=int, default=0, metavar="INT", help="threads that read ahead"
    )
    parser.add_argument(
        "--force-cpu", action="store_true", help="use the CPU even where an accelerator is at hand"
    )
    return parser


def check_comparable(
    run: TrainedRun, names: list[str], data: TrainingData, *, force: bool
) -> str | None:
    """Raise DataError for traces that the run says nothing about, unless forced; give what the user
    has to know."""
    from train.commands.scoring import find_mismatch, is_recorded

    mismatch = find_mismatch(run, names, data)
    if mismatch and not force:
        raise DataError(
            f"{data.store.path}: {mismatch}; scores would mean nothing: give traces of the same model and layers "
            "(--force scores these all the same)"
        )
    if mismatch:
        return f"forced, although {mismatch}"
    if not is_recorded(run, data):
        return "not checked whether the traces are of the run's model: the run or the store does not record it"
    return None


def main(argv: Sequence[str]) -> None:
    """Read the run, score the store, write; mistakes come out as TrainError."""
    options = build_parser().parse_args(argv)
    if options.output is not None:
        check_output(Path(options.output))
    from train.commands.scoring import (
        choose_names,
        open_output,
        open_run,
        open_store,
        score_store,
        write_columns,
        write_csv,
    )

    run = open_run(Path(options.run))
    names = choose_names(run, options.models)
    batch_size = run.config.batch_size if options.batch_size is None else options.batch_size
    changed = {
        "batch_size": batch_size,
        "num_workers": options.num_workers,
        "force_cpu": options.force_cpu,
    }
    config = replace(run.config, **changed, amp=True, precision="32")
    check_config(config)
    with store_errors():
        data = open_store(Path(options.store), names, config)
        remark = check_comparable(run, names, data, force=options.force)
        scores = score_store(replace(run, config=config), names, data)
        if options.to_store:
            write_columns(data.store, scores)
        else:
            with open_output(options.output) as file:
                write_csv(file, data.store, scores, config.seed)
    if remark:
        print(f"python -m train predict: {remark}", file=sys.stderr)
