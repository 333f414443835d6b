"""`python -m store plan`: what an extraction or a training will need, before it runs.

transformers and torch are imported when it runs.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from store.cli import options
from store.cli.arguments import as_called, path, positive
from store.cli.command import argument, flag, option, optional
from store.cli.extract import ExtractOptions
from store.cli.main import parse
from store.cli.plan_extraction import plan_extraction
from store.errors import IncompleteError, SchemaError
from store.reports import say

if TYPE_CHECKING:
    from store.read.store import TraceStore
    from store.sources.plan.training import Reading

__all__ = ["Plan"]

EXTRACT_BATCH = 16  # of `extract`
TRAIN_BATCH = 32  # of `train`
TRAIN_OPTIONS = {
    "typed",
    "store_path",
    "train",
    "workers",
    "columns",
    "batch_size",
    "json",
}
EXAMPLES = """\
an extraction: give the options that python -m store extract will get. Nothing is written, and no
weights are needed: the model's configuration and its tokenizer are read, from a directory, a
config.json, or the cache of Hugging Face. Nothing is downloaded. Bytes are those of the files, to
1% where lengths are known: where answers are given, or as long as in a sample (--sample). Without
either, every answer counts as --max-new-tokens, so that all numbers are upper bounds.

  --sample N asks the model N questions, spread over FILE, and writes nothing: it tells the time of
  a question on this machine, and how long answers are.
  --workers N are so many parts (extract --part K/N) at once, each with a device of its own.

a training (--train): PATH is a store. --columns are those that are read, --batch-size the traces in
a batch of all processes together (default: 32), --workers the processes on this machine. For up to
3 seconds the store is read at random places, as fast as the disk gives it, past what is in memory.

Exit status 0: the disk of PATH has room; 1: it has not; 2: a mistake.

examples:
  python -m store plan traces.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions triviaqa.jsonl --chat-template --workers 8
  python -m store plan traces.zarr --model ./model/config.json --questions nq.jsonl \\
      --columns hs_last,label
  python -m store plan traces.zarr --model ./model --questions nq.jsonl --sample 8 --json
  python -m store plan traces.zarr --train --columns hidden_states,label
"""


class Plan(ExtractOptions):
    """Say what an extraction will need before it runs, or how to read a store in a training."""

    epilog = EXAMPLES
    store_path: Path = argument("PATH", path, "the store to make; with --train the store to read")
    train: bool = flag("plan a training (default: an extraction)")
    workers: int = option(
        "N",
        positive,
        "parts that are extracted at the same time, or processes that train (default: %(default)s)",
        1,
    )
    sample: int | None = option(
        "N",
        positive,
        "ask the model N questions and measure (default: none, and the time is not known)",
    )
    json: bool = options.JSON
    model = optional(ExtractOptions.model)
    questions = optional(ExtractOptions.questions)
    # which options were given has to be seen: a training has another default
    batch_size = optional(ExtractOptions.batch_size, default=None)

    def run(self) -> int:
        """Print a plan; return 1 if the disk has no room for it."""
        if self.train:
            return _run_training(self)
        missing = [f"--{name}" for name in ("model", "questions") if getattr(self, name) is None]
        if missing:
            raise SchemaError(
                f"expected {' and '.join(missing)}, as extract takes them, or --train for a "
                "training; found none"
            )
        if self.batch_size is None:
            self.batch_size = EXTRACT_BATCH
        return _run_extraction(self)


def _run_extraction(args: Plan) -> int:
    from store.sources.plan.report import extraction_report
    from store.write.build import check_new

    check_new(args.store_path)
    plan = plan_extraction(args)
    say(json.dumps(plan.to_json()) if args.json else as_called(extraction_report(plan)))
    return int(not plan.fits and not args.ignore_space)


def _run_training(args: Plan) -> int:
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


def _check_training_options(args: Plan) -> None:
    """Raise SchemaError for an option of extractions alone."""
    defaults = vars(parse(["plan", str(args.store_path)]))
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
