"""What an extraction will need: lengths, sizes, memory and a sample, put together from options.

transformers and torch are imported when it runs.
"""

import argparse
import time
from typing import TYPE_CHECKING, NamedTuple

from store.cli.extract import Asked, load_source, make_prompts, read_asked, settle
from store.errors import SchemaError
from store.extras import needs_extra
from store.reports import LeftOut, count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from store.format.schema import Schema
    from store.sources.huggingface.planned import Sample
    from store.sources.plan.extraction import ExtractionPlan
    from store.sources.plan.lengths import TraceLengths
    from store.sources.plan.memory import ModelShape
    from store.sources.questions import Question

__all__ = ["plan_extraction"]

WEIGHTS = ("*.safetensors", "*.bin")


class _Prompted(NamedTuple):
    """The questions that can be asked, and the lengths of their traces."""

    questions: "list[Question]"
    lengths: "TraceLengths"
    skipped: LeftOut


def plan_extraction(args: argparse.Namespace) -> "ExtractionPlan":
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
        from store.sources.huggingface.outline import load_outline, model_shape
    from store.labels.grading import rule_columns

    asked = read_asked(args)
    settled = settle(args, asked)
    wants_maps = needs_maps(settled.columns)
    model, tokenizer = load_outline(args.model, args.dtype, maps=wants_maps)
    try:
        decoding = Decoding(
            args.num_beams, args.num_samples, args.temperature, args.top_p, args.seed
        )
        check_model(model, wants_maps)
        kept = choose_kept(
            model.config.get_text_config(),
            model.dtype,
            layers=args.layers,
            columns=settled.columns,
            top_k=args.top_k,
            label_columns=rule_columns(settled.rules),
        )
        prompted = _measure(args, asked, decoding.num_samples, model, tokenizer)
        check_given(prompted.questions, decoding)
        check_ids(prompted.questions, decoding.num_samples)
    except ValueError as error:
        raise SchemaError(str(error)) from error
    remarks = _remarks(args, asked, prompted, tokenizer)
    if getattr(model.config, "quantization_config", None):
        remarks.append("the checkpoint is quantized: it needs less memory than its whole weights")
    sample = None
    if args.sample is not None:
        sample = _ask_sample(args, asked, prompted.questions, remarks)
    return _assemble(
        args, kept.schema, model_shape(model, args.quantize), prompted, sample, remarks
    )


def _measure(
    args: argparse.Namespace,
    asked: Asked,
    n_samples: int,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | str",
) -> _Prompted:
    """The lengths of what can be asked; raises SchemaError if nothing can."""
    from store.sources.huggingface.planned import guess_lengths, measure_lengths
    from store.sources.huggingface.prompts import cut_contexts

    skipped = LeftOut()
    if isinstance(tokenizer, str):
        questions, lengths = guess_lengths(
            asked.questions, asked.template, asked.few_shot, args.max_new_tokens, n_samples, skipped
        )
    else:
        prompts = make_prompts(args, asked, model, tokenizer)
        cut, _, _ = cut_contexts(asked.questions, prompts)
        questions, lengths = measure_lengths(cut, prompts, n_samples, skipped)
    if not questions:
        raise SchemaError(
            "expected questions whose prompts the model can take, "
            f"found none of {len(asked.questions)}: {skipped.messages[0]}"
        )
    return _Prompted(questions, lengths, skipped)


def _remarks(
    args: argparse.Namespace,
    asked: Asked,
    prompted: _Prompted,
    tokenizer: "PreTrainedTokenizerBase | str",
) -> list[str]:
    """What makes the plan less certain, or differs from what one might expect."""
    remarks = list(asked.remarks)
    if isinstance(tokenizer, str):
        remarks.append(
            f"{args.model}: {tokenizer}; four bytes count as a token, and a chat template as none"
        )
    if args.judge_model is not None:
        remarks.append(f"the judge {args.judge_model} needs memory of its own, not counted here")
    if args.store_path.exists():
        remarks.append(f"{args.store_path} is there already: extract would make nothing")
    left_out = prompted.skipped.n + asked.left_out.n
    if left_out:
        first = (*prompted.skipped.messages, *asked.left_out.messages)[0]
        remarks.append(f"{count(left_out, 'record')} left out, the first: {first}")
    return remarks


def _ask_sample(
    args: argparse.Namespace, asked: Asked, questions: "list[Question]", remarks: list[str]
) -> "Sample | None":
    """Ask a few questions; None, with a remark, where the weights are not on this machine."""
    from torch import OutOfMemoryError

    from store.sources.huggingface.outline import local_folder
    from store.sources.huggingface.planned import SAMPLED, choose_sample, measure_sample

    folder = local_folder(args.model)
    if folder is None or not any(file for form in WEIGHTS for file in folder.glob(form)):
        remarks.append(f"no sample: the weights of {args.model} are not on this machine")
        return None
    chosen = choose_sample(questions, args.sample)
    columns = [*(args.columns or ["default"]), *SAMPLED]
    changed = {**vars(args), "model": str(folder), "columns": columns}
    began = time.perf_counter()
    try:
        source, _, _ = load_source(
            argparse.Namespace(**changed), asked._replace(questions=chosen), None
        )
        sample = measure_sample(source, time.perf_counter() - began)
    except OutOfMemoryError as error:
        raise SchemaError(
            "--sample: out of memory: one trace does not fit on the device; choose another "
            "--device, or leave the sample out"
        ) from error
    if source.left_out.n:
        traces = count(source.left_out.n, "trace")
        remarks.append(
            f"{traces} of the sample left out: {source.left_out.messages[0]}; {source.advice}"
        )
    return sample


def _assemble(
    args: argparse.Namespace,
    schema: "Schema",
    shape: "ModelShape",
    prompted: _Prompted,
    sample: "Sample | None",
    remarks: list[str],
) -> "ExtractionPlan":
    """Put lengths, sizes, memory and time together."""
    from store.sources.huggingface.planned import refine_lengths
    from store.sources.plan.extraction import ExtractionPlan, Speed
    from store.sources.plan.lengths import AnswerLengths, count_items
    from store.sources.plan.machine import read_machine
    from store.sources.plan.memory import BatchShape, plan_memory, trace_bytes
    from store.sources.plan.report import memory_remarks
    from store.sources.plan.sizes import plan_parts
    from store.write.space import free_bytes

    lengths = prompted.lengths
    is_given = not isinstance(lengths.answers, AnswerLengths)
    certainty = "given" if is_given else "longest"
    speed = None
    if sample is not None:
        lengths = refine_lengths(lengths, sample, args.max_new_tokens)
        certainty = certainty if is_given else "sample"
        per_question = 1 / sample.n_questions
        passes = {name: spent * per_question for name, spent in sample.passes.items()}
        speed = Speed(sample.n_questions, sample.load_s, sample.seconds * per_question, passes)
        remarks += _spread(lengths)
    n_layers = shape.n_layers + 1
    items = count_items(lengths, shape.n_heads, n_layers)
    shrinks = sample.shrinks if sample is not None else {}
    size = plan_parts(schema, lengths.n_rows, items, shrinks, args.workers)
    longest = (lengths.longest_prompt, lengths.longest - lengths.longest_prompt)
    batch = BatchShape(
        min(args.batch_size, lengths.n_rows),
        args.num_beams,
        lengths.longest,
        lengths.longest_prompt,
        is_generated=not is_given,
    )
    column_bytes = trace_bytes(schema, *longest, edges=lengths.edges)
    memory = plan_memory(shape, batch, list(schema.columns), column_bytes)
    machine = read_machine()
    device = args.device or ("cuda" if machine.gpus else "cpu")
    plan = ExtractionPlan(
        out=str(args.store_path),
        n_questions=len(prompted.questions),
        n_left_out=prompted.skipped.n,
        size=size,
        certainty=certainty,
        mean_tokens=items["tokens"] / lengths.n_rows,
        memory=memory,
        batch_size=batch.n_traces,
        device=device.partition(":")[0],
        n_workers=args.workers,
        free_bytes=free_bytes(args.store_path),
        speed=speed,
        remarks=remarks,
    )
    return plan._replace(remarks=[*remarks, *memory_remarks(plan, machine)])


def _spread(lengths: "TraceLengths") -> list[str]:
    """How far the answers of a sample may be from all answers."""
    from store.sources.plan.lengths import AnswerLengths

    answers = lengths.answers
    if not isinstance(answers, AnswerLengths) or not answers.error:
        return []
    tokens = float(lengths.prompts.mean()) + answers.mean
    return [
        f"answers of the sample have {answers.mean:.2f} tokens on average, with a standard error "
        f"of {answers.error:.2f}: {answers.error / tokens:.1%} of a trace"
    ]
