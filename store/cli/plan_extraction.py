"""What an extraction will need: a plan from the options of the command line.

transformers and torch are imported when it runs.
"""

import time
from typing import TYPE_CHECKING

from store.cli.extract import Asked, load_source, make_prompts, read_asked, settle
from store.errors import SchemaError
from store.extras import needs_extra
from store.reports import LeftOut, count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from store.cli.plan import Plan
    from store.sources.plan.extraction import ExtractionPlan
    from store.sources.plan.lengths import TraceLengths
    from store.sources.plan.sample import Sample
    from store.sources.questions import Question

__all__ = ["plan_extraction"]

WEIGHTS = ("*.safetensors", "*.bin")


def plan_extraction(args: "Plan") -> "ExtractionPlan":
    """Plan from the model's configuration and its tokenizer, and from a sample if one is wanted."""
    with needs_extra("extract"):
        from store.sources.huggingface.checks import (
            check_given,
            check_ids,
            check_model,
            choose_kept,
        )
        from store.sources.huggingface.columns import needs_maps
        from store.sources.huggingface.decoding import Decoding
        from store.sources.huggingface.outline import load_outline, weight_bytes
    from store.labels.grading import rule_columns
    from store.sources.plan.extraction import ExtractionPlan
    from store.sources.plan.machine import read_machine
    from store.sources.plan.sample import choose_sample
    from store.write.space import free_bytes

    asked = read_asked(args)
    settled = settle(args, asked)
    has_maps = needs_maps(settled.columns)
    model, tokenizer = load_outline(args.model, args.dtype, maps=has_maps)
    skipped = LeftOut()
    try:
        decoding = Decoding(
            args.num_beams, args.num_samples, args.temperature, args.top_p, args.seed
        )
        check_model(model, has_maps)
        kept = choose_kept(
            model.config.get_text_config(),
            model.dtype,
            layers=args.layers,
            columns=settled.columns,
            top_k=args.top_k,
            label_columns=rule_columns(settled.rules),
        )
        questions, lengths = _measure(args, asked, model, tokenizer, skipped)
        check_given(questions, decoding)
        check_ids(questions, decoding.num_samples)
    except ValueError as error:
        raise SchemaError(str(error)) from error
    notes = _notes(args, asked, skipped, tokenizer)
    if getattr(model.config, "quantization_config", None):
        notes.append("the checkpoint is quantized: it needs less memory than its whole weights")
    sample = None
    if args.sample is not None:
        sample = _ask_sample(args, asked, choose_sample(questions, args.sample), notes)
    if sample is not None:
        lengths = sample.refine(lengths)
    machine = read_machine()
    device = args.device or ("cuda" if machine.gpus else "cpu")
    return ExtractionPlan(
        out=str(args.store_path),
        n_questions=len(questions),
        n_left_out=skipped.n,
        schema=kept.schema,
        has_maps=has_maps,
        lengths=lengths,
        sample=sample,
        weight_bytes=weight_bytes(model, args.quantize),
        batch_size=min(args.batch_size, lengths.n_rows),
        device=device.partition(":")[0],
        n_workers=args.workers,
        free_bytes=free_bytes(args.store_path),
        machine=machine,
        notes=notes,
    )


def _measure(
    args: "Plan",
    asked: Asked,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | str",
    skipped: LeftOut,
) -> "tuple[list[Question], TraceLengths]":
    """What can be asked, and the lengths of its traces; raises SchemaError if nothing can."""
    from store.sources.huggingface.prompts import cut_contexts
    from store.sources.plan.lengths import guess_lengths, measure_lengths

    if isinstance(tokenizer, str):
        texts = (asked.questions, asked.template, asked.few_shot)
        questions, lengths = guess_lengths(*texts, args.max_new_tokens, args.num_samples, skipped)
    else:
        prompts = make_prompts(args, asked, model, tokenizer)
        cut, _, _ = cut_contexts(asked.questions, prompts)
        questions, lengths = measure_lengths(cut, prompts, args.num_samples, skipped)
    if not questions:
        raise SchemaError(
            "expected questions whose prompts the model can take, "
            f"found none of {len(asked.questions)}: {skipped.messages[0]}"
        )
    return questions, lengths


def _notes(
    args: "Plan",
    asked: Asked,
    skipped: LeftOut,
    tokenizer: "PreTrainedTokenizerBase | str",
) -> list[str]:
    """What makes the plan less certain, or differs from what one might expect."""
    notes = list(asked.remarks)
    if isinstance(tokenizer, str):
        notes.append(
            f"{args.model}: {tokenizer}; four bytes count as a token, and a chat template as none"
        )
    if args.judge_model is not None:
        notes.append(f"the judge {args.judge_model} needs memory of its own, not counted here")
    if args.store_path.exists():
        notes.append(f"{args.store_path} is there already: extract would make nothing")
    n_left_out = skipped.n + asked.left_out.n
    if n_left_out:
        first = (*skipped.messages, *asked.left_out.messages)[0]
        notes.append(f"{count(n_left_out, 'record')} left out, the first: {first}")
    return notes


def _ask_sample(
    args: "Plan", asked: Asked, chosen: "list[Question]", notes: list[str]
) -> "Sample | None":
    """Ask a few questions; None, with a note, where the weights are not on this machine."""
    from torch import OutOfMemoryError

    from store.sources.huggingface.outline import local_folder
    from store.sources.plan.sample import SAMPLED, measure_sample

    folder = local_folder(args.model)
    if folder is None or not any(file for form in WEIGHTS for file in folder.glob(form)):
        notes.append(f"no sample: the weights of {args.model} are not on this machine")
        return None
    columns = [*(args.columns or ["default"]), *SAMPLED]
    changed = type(args)(**{**vars(args), "model": str(folder), "columns": columns})
    began = time.perf_counter()
    try:
        source, _, _ = load_source(changed, asked._replace(questions=chosen), None)
        sample = measure_sample(source, args.batch_size, time.perf_counter() - began)
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
