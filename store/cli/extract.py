"""`python -m store extract`: a model's answers to questions, as a store.

transformers and torch are imported when it runs.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from store.cli.arguments import as_called
from store.cli.judge import check_judge_options, load_judge
from store.cli.progress import Progress
from store.cli.questions import read_all_asked
from store.errors import SchemaError
from store.extras import needs_extra
from store.reports import count, say
from store.sources.prompt_templates import PLAIN_TEMPLATES
from store.write.background import BackgroundWriter
from store.write.space import SpaceCheck

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from store.labels.grading import Judge
    from store.read.store import TraceStore
    from store.reports import LeftOut
    from store.sources.huggingface.prompts import Prompts
    from store.sources.huggingface.source import HuggingFaceSource
    from store.sources.questions import Question

__all__ = [
    "Asked",
    "load_source",
    "make_prompts",
    "read_asked",
    "run_extract",
    "settle",
    "settle_labels",
    "settle_stop",
]

NEW_LINE = "\n"
NO_STOP = ("", "none")  # of --stop: the end-of-sequence token alone


def run_extract(args: argparse.Namespace) -> int:
    """Ask a model; return 1 if a question or a trace was left out."""
    from store.cli.parts import publish_part
    from store.write.build import build_store, check_new, open_begun

    check_new(args.store)  # before a model is loaded for nothing
    begun = open_begun(args.store)
    asked = read_asked(args)
    source, skipped, cuts = load_source(args, asked, begun)
    from torch import OutOfMemoryError

    from store.sources.huggingface.report import extraction_report

    def share(n_rows: int) -> float:
        return (n_rows + source.left_out.n) / max(1, len(source))

    background = BackgroundWriter(args.batch_size)
    space = SpaceCheck(args.store, share, args.batch_size, ignore=args.ignore_space)
    try:
        with Progress(share) as progress:
            store = build_store(
                args.store, source, progress, command=args.typed, space=space, background=background
            )
    except OutOfMemoryError as error:
        raise SchemaError(
            f"out of memory: one trace does not fit on {source.model.device}; what is done is "
            "kept; free memory and repeat the command"
        ) from error
    n_left_out = skipped.n + source.left_out.n + asked.left_out.n
    publish_part(args, store, n_left_out)
    report = extraction_report(args.store, store, source, skipped, background.seconds)
    say(as_called(report))
    say(*_remarks(args, asked, cuts), sep="\n", end="")
    return int(n_left_out > 0)


class Asked(NamedTuple):
    """The questions to ask, the template to ask them in, and the examples that come first."""

    questions: "list[Question]"
    template: str
    few_shot: "list[Question]"
    is_given: bool
    left_out: "LeftOut"
    remarks: list[str]


class _Cuts(NamedTuple):
    """How many contexts were cut, and which could not be."""

    n: int
    whole: "LeftOut"


def read_asked(args: argparse.Namespace) -> Asked:
    """Read what is asked; raise SchemaError for a malformed template, or a part without any."""
    from store.sources.prompt_templates import default_template
    from store.sources.questions import read_questions

    file, found, questions, template, fields = read_all_asked(args)
    k, n = args.part
    questions = questions[k - 1 :: n]
    if not questions:
        raise SchemaError(f"{args.questions}: part {k}/{n} has no question; choose fewer parts")
    is_given = any("response" in question for question in found)
    if template is None:
        has_context = any("context" in question for question in found)
        template = default_template(
            file.form, has_context=has_context, chat=args.chat_template, briefly=not is_given
        )
    few_shot = read_questions(args.few_shot, fields) if args.few_shot else []
    return Asked(questions, template, few_shot, is_given, file.left_out, file.remarks)


def _remarks(args: argparse.Namespace, asked: Asked, cuts: _Cuts) -> list[str]:
    """Lines about the file of questions and what was made of it; each ends in a new line."""
    lines = [f"  {remark}" for remark in asked.remarks]
    if cuts.n:
        contexts = count(cuts.n, "context was", "contexts were")
        lines.append(f"  {contexts} cut to {args.max_context_tokens:,} tokens")
    if cuts.whole.n:
        contexts = count(cuts.whole.n, "context", "contexts")
        lines.append(f"  {contexts} could not be cut and stayed whole")
        lines += cuts.whole.lines()
    if asked.left_out.n:
        lines.append(f"  {count(asked.left_out.n, 'record')} left out")
        lines += asked.left_out.lines()
    return [*lines, ""] if lines else []


class Settled(NamedTuple):
    """What is asked for, with what stands for options that were left out."""

    stop: str | None
    rules: list[str]
    columns: list[str] | None


def settle(args: argparse.Namespace, asked: Asked) -> Settled:
    """Settle what decides the columns; raise SchemaError for options that contradict another."""
    stop = settle_stop(args, asked.template)
    rules = settle_labels(args, is_given=asked.is_given)
    check_judge_options(args, rules)
    columns = args.columns
    if args.keep_attention:
        columns = [*(columns or ["default"]), "attentions"]
    return Settled(stop, rules, columns)


def settle_stop(args: argparse.Namespace, template: str) -> str | None:
    """The text that ends an answer: a new line with the plain templates, by default; else None."""
    if args.stop is not None:
        return None if args.stop in NO_STOP else str(args.stop).replace(r"\n", "\n")
    is_plain = template in PLAIN_TEMPLATES and not args.chat_template
    return NEW_LINE if is_plain else None


def settle_labels(args: argparse.Namespace, *, is_given: bool) -> list[str]:
    """The rules that label the answers: `contains` for chats and given answers, else `exact`."""
    if args.labels is not None:
        return list(args.labels)
    return ["contains"] if args.chat_template or is_given else ["exact"]


def load_source(
    args: argparse.Namespace, asked: Asked, begun: "TraceStore | None"
) -> "tuple[HuggingFaceSource, LeftOut, _Cuts]":
    """Load the model; raise SchemaError for arguments that contradict it or one another.

    With the source come the questions that it cannot be asked, and which contexts were cut.
    """
    with needs_extra("extract"):
        from store.sources.huggingface.decoding import Decoding
        from store.sources.huggingface.prompts import cut_contexts, take_fitting
        from store.sources.huggingface.source import HuggingFaceSource
    stop, rules, columns = settle(args, asked)
    try:
        decoding = Decoding(
            args.num_beams, args.num_samples, args.temperature, args.top_p, args.seed
        )
        model, tokenizer = _load_model(args, columns)
        prompts = make_prompts(args, asked, model, tokenizer)
        questions, n_cut, whole = cut_contexts(asked.questions, prompts)
        fitting, skipped = take_fitting(questions, prompts)
        source = HuggingFaceSource(
            model,
            tokenizer,
            fitting,
            batch_size=args.batch_size,
            max_new_tokens=args.max_new_tokens,
            decoding=decoding,
            stop=stop,
            prompts=prompts,
            layers=args.layers,
            columns=columns,
            top_k=args.top_k,
            labels=rules,
            score_threshold=args.score_threshold,
            judge=_load_judge(args, rules, model, tokenizer, fitting),
            model_name=args.model,
            begun=begun,
        )
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return source, skipped, _Cuts(n_cut, whole)


def _load_model(
    args: argparse.Namespace, columns: Sequence[str] | None
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from store.sources.huggingface import load
    from store.sources.huggingface.columns import needs_maps

    return load.load_model(
        args.model,
        args.dtype,
        load.choose_device(args.device),
        maps=needs_maps(columns),
        quantize=args.quantize,
        device_map=args.device_map,
    )


def make_prompts(
    args: argparse.Namespace,
    asked: Asked,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
) -> "Prompts":
    from store.sources.huggingface.prompts import Prompts

    return Prompts(
        tokenizer,
        model,
        asked.template,
        args.chat_template,
        args.max_new_tokens,
        system=args.system,
        few_shot=asked.few_shot,
        max_context_tokens=args.max_context_tokens,
    )


def _load_judge(
    args: argparse.Namespace,
    rules: Sequence[str],
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    questions: "Sequence[Question]",
) -> "Judge | None":
    """Load the judge, which may be the model itself; a template of the user's is tried first."""
    from store.labels.grading import Case, check_judge

    judge = load_judge(args, rules, {args.model: (model, tokenizer)})
    if judge and args.judge_template is not None:
        check_judge(judge, (Case(one["question"], one["answers"], "") for one in questions))
    return judge
