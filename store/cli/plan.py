"""`python -m store plan`: what an extraction will need, measured with a few of its questions.

transformers and torch are imported when it runs.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from store.cli import shared_options
from store.cli.arguments import as_called, path, positive
from store.cli.command import argument, option
from store.cli.extract import Asked, ExtractOptions, load_source, read_asked
from store.errors import SchemaError
from store.extras import needs_extra
from store.reports import LeftOut, say
from store.write.build import check_new

if TYPE_CHECKING:
    from store.sources.huggingface.plan import ExtractionPlan
    from store.sources.huggingface.source import HuggingFaceSource

__all__ = ["Plan"]

EXAMPLES = """\
Give the options that python -m store extract will get. The model is asked a few questions, spread
over FILE, on this machine; nothing is written. Bytes, and time, are those of the sample for each
question. Bytes are those of the values; compressed columns take less.

  --workers N are so many parts (extract --part K/N) at once, each with a device of its own.

Exit status 0: the disk of PATH has room; 1: it has not; 2: a mistake.

examples:
  python -m store plan traces.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions triviaqa.jsonl --chat-template --workers 8
  python -m store plan traces.zarr --model ./model --questions nq.jsonl --sample 64 --json
"""


class Plan(ExtractOptions):
    """Say what an extraction will need before it runs."""

    epilog = EXAMPLES
    store_path: Path = argument("the store to make", "PATH", path)
    workers: int = option("parts that are extracted at the same time", "N", positive, 1)
    sample: int = option("questions that the model is asked", "N", positive, 8)
    json: bool = shared_options.JSON

    def run(self) -> int:
        """Print a plan; return 1 if the disk has no room for it."""
        check_new(self.store_path)
        found = _plan_extraction(self)
        say(json.dumps(found.to_json()) if self.json else as_called(found.text()))
        return int(not found.fits)


def _plan_extraction(args: Plan) -> "ExtractionPlan":
    with needs_extra("extract"):
        from torch import OutOfMemoryError

        from store.sources.huggingface.plan import ExtractionPlan, choose_sample, measure_sample
    from store.write.space import free_bytes

    asked = read_asked(args)
    chosen = asked._replace(questions=choose_sample(asked.questions, args.sample))
    began = time.perf_counter()
    try:
        source, encoded = load_source(args, chosen, None)
        sample = measure_sample(source, len(chosen.questions), time.perf_counter() - began)
    except OutOfMemoryError as error:
        raise SchemaError(
            "out of memory: one trace does not fit on the device; choose another --device"
        ) from error
    return ExtractionPlan(
        out=str(args.store_path),
        n_questions=len(asked.questions),
        sample=sample,
        batch_size=min(args.batch_size, len(source)),
        device=str(source.model.device),
        n_workers=args.workers,
        free_bytes=free_bytes(args.store_path),
        remarks=[*asked.remarks, *_remarks(args, asked, source, encoded.skipped)],
    )


def _remarks(
    args: Plan, asked: Asked, source: "HuggingFaceSource", skipped: LeftOut
) -> Iterator[str]:
    """What makes the plan less certain, or differs from what one might expect."""
    if args.store_path.exists():
        yield f"{args.store_path} is there already: extract would make nothing"
    for left_out, what in (
        (asked.left_out, "record"),
        (skipped, "question of the sample"),
        (source.left_out, "trace of the sample"),
    ):
        if left_out.n:
            yield f"{left_out.n:,} left out, the first {what}: {left_out.messages[0]}"
