"""The command `python -m train predict`: scores of new traces by the detectors of a finished run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from train.config import Parser, check_config
from train.errors import ConfigError, store_errors
from train.files import check_output

__all__ = ["build_parser", "main"]

EXAMPLES = """examples:
  python -m train predict --run runs/traces --store new.zarr > scores.csv
  python -m train predict --run runs/traces --store new.zarr --models lstm_solo,lapeigvals --output scores.csv
  python -m train predict --run runs/traces --store new.zarr --to-store      as columns score_lstm_solo, ... of new.zarr

A score is a probability of hallucination, the mean over the run's seeds. The column `side` says on which side of the
run's split the question of a trace is or would be: scores of `train` say nothing about new questions.
"""


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = Parser(
        prog="python -m train predict",
        description="Score the traces of a store with the detectors of a finished run.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--run", required=True, metavar="DIR", help="output directory of the run")
    parser.add_argument("--store", required=True, metavar="STORE", help="the traces; labels are not needed")
    parser.add_argument("--models", metavar="NAMES", help="names, separated by commas (default: the run's detectors)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", metavar="FILE", help="write CSV there (default: to the terminal)")
    where.add_argument("--to-store", action="store_true", help="write a column score_NAME for each name, or replace it")
    parser.add_argument("--batch-size", type=int, metavar="INT", help="traces at a time (default: as in the run)")
    parser.add_argument("--num-workers", type=int, default=0, metavar="INT", help="threads that read ahead")
    parser.add_argument("--force-cpu", action="store_true", help="use the CPU even where an accelerator is at hand")
    return parser


def main(argv: Sequence[str]) -> None:
    """Read the run, score the store, write; mistakes come out as TrainError."""
    options = build_parser().parse_args(argv)
    if options.output is not None:
        check_output(Path(options.output))
    from models import BASELINES
    from train.scoring import open_output, open_run, open_store, score_store, write_columns, write_csv

    run = open_run(Path(options.run))
    names = options.models.split(",") if options.models else [name for name in run.names if name not in BASELINES]
    for name in names:
        if name not in run.names:
            raise ConfigError(f"--models: expected names of the run, {', '.join(run.names)}, found {name!r:.80}")
    batch_size = run.config.batch_size if options.batch_size is None else options.batch_size
    changed = {"batch_size": batch_size, "num_workers": options.num_workers, "force_cpu": options.force_cpu}
    config = replace(run.config, **changed, amp=True, precision="32")
    check_config(config)
    with store_errors():
        data = open_store(Path(options.store), names, config)
        scores = score_store(replace(run, config=config), names, data)
        if options.to_store:
            write_columns(data.store, scores)
        else:
            with open_output(options.output) as file:
                write_csv(file, data.store, scores, config.seed)
