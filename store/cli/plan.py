"""`python -m store plan`: what an extraction or a training will need, before it runs.

transformers and torch are imported when it runs.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from store.cli.arguments import as_called
from store.cli.plan_extraction import plan_extraction
from store.errors import IncompleteError, SchemaError
from store.reports import say

if TYPE_CHECKING:
    from store.read.store import TraceStore
    from store.sources.plan.training import Reading

__all__ = ["run_plan"]

EXTRACT_BATCH = 16  # of `extract`
TRAIN_BATCH = 32  # of `train`
TRAIN_OPTIONS = {"typed", "store_path", "train", "workers", "columns", "batch_size", "json"}


def run_plan(args: argparse.Namespace) -> int:
    """Print a plan; return 1 if the disk has no room for it."""
    if args.train:
        return _run_training(args)
    missing = [f"--{name}" for name in ("model", "questions") if getattr(args, name) is None]
    if missing:
        raise SchemaError(
            f"expected {' and '.join(missing)}, as extract takes them, or --train for a training; "
            "found none"
        )
    if args.batch_size is None:
        args.batch_size = EXTRACT_BATCH
    return _run_extraction(args)


def _run_extraction(args: argparse.Namespace) -> int:
    from store.sources.plan.report import extraction_report
    from store.write.build import check_new

    check_new(args.store_path)
    plan = plan_extraction(args)
    say(json.dumps(plan.to_json()) if args.json else as_called(extraction_report(plan)))
    return int(not plan.fits and not args.ignore_space)


def _run_training(args: argparse.Namespace) -> int:
    from store.sources.plan.machine import read_cold, read_machine
    from store.sources.plan.report import training_json, training_report
    from store.sources.plan.training import plan_training

    _check_training_options(args)
    store = _open(args.store_path)
    readings = _readings(store, args.columns)
    machine = read_machine()
    batch_size = args.batch_size or TRAIN_BATCH
    if batch_size % args.workers:
        raise SchemaError(
            f"--batch-size: expected a multiple of the {args.workers} processes that share each "
            f"batch, found {batch_size}"
        )
    row_bytes = sum(reading.decoded_bytes for reading in readings) // max(1, len(store))
    files = _files(store, [reading.name for reading in readings])
    disk = read_cold(files, row_bytes) if files else None
    bytes_per_s = disk.bytes_per_s if disk else None
    plan = plan_training(readings, len(store), batch_size, args.workers, machine, bytes_per_s)
    if args.json:
        print(json.dumps(training_json(plan, str(args.store_path), machine, disk)))
    else:
        say(as_called(training_report(plan, str(args.store_path), machine, disk)))
    return 0


def _check_training_options(args: argparse.Namespace) -> None:
    """Raise SchemaError for an option of extractions alone."""
    from store.cli.parser import build_parser

    defaults = vars(build_parser().parse_args(["plan", str(args.store_path)]))
    given = {name for name, value in vars(args).items() if value != defaults.get(name, value)}
    surplus = sorted(given - TRAIN_OPTIONS)
    if surplus:
        flag = surplus[0].replace("_", "-")
        raise SchemaError(
            f"--train: expected --columns, --batch-size, --workers and --json alone, found --{flag}"
        )


def _open(path: Path) -> "TraceStore":
    from store.read.store import TraceStore
    from store.write.build import unfinished

    message = unfinished(path)
    if message is not None:
        raise IncompleteError(message)
    return TraceStore.open(path)


def _readings(store: "TraceStore", names: Sequence[str] | None) -> "list[Reading]":
    """The columns that a training reads: those named, or all."""
    from store.sources.plan.training import Reading

    readings = []
    for name in names or list(store.schema.columns):
        column = store.schema.column(name, store.path)
        decoded = store.n_items(name) * column.item_bytes
        n_bytes = decoded
        if column.codec is not None:
            n_bytes = sum(file.stat().st_size for file in _files(store, [name]))
        readings.append(Reading(name, n_bytes, decoded, column.codec is not None))
    return readings


def _files(store: "TraceStore", names: Sequence[str]) -> list[Path]:
    """The shards of columns."""
    folders = [store.path / store.schema.layout(name).path / "c" for name in names]
    return [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
