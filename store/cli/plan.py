"""`python -m store plan`: what an extraction will need, before it runs.

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
from store.cli.extract import Asked, ExtractOptions, load_source, make_prompts, read_asked, settings
from store.errors import SchemaError
from store.extras import needs_extra
from store.reports import LeftOut, count, say
from store.write.build import check_new

if TYPE_CHECKING:
    from store.sources.huggingface.plan import ExtractionPlan, Sample
    from store.sources.questions import Question

__all__ = ["Plan"]

WEIGHTS = ("*.safetensors", "*.bin")
EXAMPLES = """\
Give the options that python -m store extract will get. Nothing is written, and no weights are
needed: the model's configuration and its tokenizer are read, from a directory or the cache of
Hugging Face. Nothing is downloaded. Bytes are those of the values; compressed columns take less. If
answers are not given, each counts as --max-new-tokens, so that all numbers are upper bounds, or
with --sample as those of a sample.

  --sample N asks the model N questions, spread over FILE, and writes nothing: it tells the time of
  a question on this machine, and how long answers are.
  --workers N are so many parts (extract --part K/N) at once, each with a device of its own.

Exit status 0: the disk of PATH has room; 1: it has not; 2: a mistake.

examples:
  python -m store plan traces.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions triviaqa.jsonl --chat-template --workers 8
  python -m store plan traces.zarr --model ./model --questions nq.jsonl --sample 8 --json
"""


class Plan(ExtractOptions):
    """Say what an extraction will need before it runs."""

    epilog = EXAMPLES
    store_path: Path = argument("the store to make", "PATH", path)
    workers: int = option("parts that are extracted at the same time", "N", positive, 1)
    sample: int | None = option(
        "ask the model N questions and measure (default: none, and the time is not known)",
        "N",
        positive,
    )
    json: bool = shared_options.JSON

    def run(self) -> int:
        """Print a plan; return 1 if the disk has no room for it."""
        check_new(self.store_path)
        found = _plan_extraction(self)
        say(json.dumps(found.to_json()) if self.json else as_called(found.text()))
        return int(not found.fits)


def _plan_extraction(args: Plan) -> "ExtractionPlan":
    """Plan from the model's configuration and its tokenizer, and from a sample if one is wanted."""
    with needs_extra("extract"):
        from torch import cuda

        from store.sources.huggingface.kept import check_model, check_questions
        from store.sources.huggingface.load import load_outline, weight_bytes
    from store.labels.grading import rule_columns
    from store.sources.huggingface.plan import ExtractionPlan, measure_lengths
    from store.sources.huggingface.prompts import encode_questions
    from store.write.space import free_bytes

    asked = read_asked(args)
    try:
        decoding, kept = settings(args, asked)
        model, tokenizer = load_outline(args.model, args.dtype, maps=kept.needs_maps)
        check_model(model, kept.needs_maps)
        config = model.config.get_text_config()
        schema = kept.choose(config, model.dtype, rule_columns(asked.rules)).schema
        encoded = encode_questions(asked.questions, make_prompts(args, asked, model, tokenizer))
        sizes = (args.max_new_tokens, args.num_samples, asked.fields)
        lengths = measure_lengths(encoded.questions, tokenizer, *sizes)
        questions = [one.question for one in encoded.questions]
        check_questions(questions, decoding)
    except ValueError as error:
        raise SchemaError(str(error)) from error
    notes = [*asked.remarks, *_notes(args, asked, encoded.skipped)]
    if getattr(model.config, "quantization_config", None):
        notes.append("the checkpoint is quantized: it needs less memory than its whole weights")
    sample = _ask_sample(args, asked, questions, notes)
    device = args.device or ("cuda" if cuda.is_available() else "cpu")
    return ExtractionPlan(
        out=str(args.store_path),
        n_questions=len(questions),
        n_left_out=encoded.skipped.n,
        schema=schema,
        lengths=sample.refine(lengths) if sample else lengths,
        max_answer=int(lengths.answers.max(initial=0)),
        sample=sample,
        weight_bytes=weight_bytes(model, args.quantize),
        batch_size=min(args.batch_size, lengths.n_rows),
        device=device.partition(":")[0],
        n_workers=args.workers,
        free_bytes=free_bytes(args.store_path),
        notes=notes,
    )


def _notes(args: Plan, asked: Asked, skipped: LeftOut) -> Iterator[str]:
    """What makes the plan less certain, or differs from what one might expect."""
    if args.judge_model is not None:
        yield f"the judge {args.judge_model} needs memory of its own, not counted here"
    if args.store_path.exists():
        yield f"{args.store_path} is there already: extract would make nothing"
    n_left_out = skipped.n + asked.left_out.n
    if n_left_out:
        first = (*skipped.messages, *asked.left_out.messages)[0]
        yield f"{count(n_left_out, 'record')} left out, the first: {first}"


def _ask_sample(
    args: Plan, asked: Asked, questions: "list[Question]", notes: list[str]
) -> "Sample | None":
    """Ask a few questions; None, with a note, where the weights are not on this machine."""
    if args.sample is None:
        return None
    from torch import OutOfMemoryError

    from store.sources.huggingface.load import local_folder
    from store.sources.huggingface.plan import SAMPLED, choose_sample, measure_sample

    folder = local_folder(args.model)
    if folder is None or not any(file for form in WEIGHTS for file in folder.glob(form)):
        notes.append(f"no sample: the weights of {args.model} are not on this machine")
        return None
    columns = [*(args.columns or ["default"]), *SAMPLED]
    changed = Plan(**{**vars(args), "model": str(folder), "columns": columns})
    began = time.perf_counter()
    try:
        chosen = asked._replace(questions=choose_sample(questions, args.sample))
        source, _ = load_source(changed, chosen, None)
        sample = measure_sample(source, time.perf_counter() - began)
    except OutOfMemoryError as error:
        raise SchemaError(
            "--sample: out of memory: one trace does not fit on the device; choose another "
            "--device, or leave the sample out"
        ) from error
    if source.left_out.n:
        traces = count(source.left_out.n, "trace")
        notes.append(
            f"{traces} of the sample left out: {source.left_out.messages[0]}; {source.advice}"
        )
    return sample
