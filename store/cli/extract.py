"""`python -m store extract`: a model's answers to questions, as a store.

transformers and torch are imported when it runs.
"""

import argparse
from typing import TYPE_CHECKING

from store.cli.progress import Progress
from store.errors import NotFoundError, SchemaError
from store.extras import missing_package
from store.write.space import SpaceCheck

if TYPE_CHECKING:
    from store.reports import LeftOut
    from store.sources.huggingface.source import HuggingFaceSource
    from store.sources.questions import Question

__all__ = ["run_extract"]


def run_extract(args: argparse.Namespace) -> int:
    """Ask a model; return 1 if a question or a trace was left out."""
    from store.sources.questions import read_questions
    from store.write.build import build_store, check_new

    check_new(args.store)  # before a model is loaded for nothing
    k, n = args.part
    questions = read_questions(args.questions)[: args.limit][k - 1 :: n]
    if not questions:
        raise SchemaError(f"{args.questions}: part {k}/{n} has no question; choose fewer parts")
    source, skipped = _load_source(args, questions)
    from torch import OutOfMemoryError

    from store.sources.huggingface.report import extraction_report

    def share(n_rows: int) -> float:
        return (n_rows + source.left_out.n) / max(1, len(source))

    space = SpaceCheck(args.store, share, args.batch_size, ignore=args.ignore_space)
    try:
        with Progress(share) as progress:
            store = build_store(args.store, source, progress, command=args.typed, space=space)
    except OutOfMemoryError as error:
        raise SchemaError(
            f"out of memory: one trace does not fit on {source.model.device}; what is done is "
            "kept; free memory and repeat the command"
        ) from error
    print(extraction_report(args.store, store, source, skipped))
    return int(skipped.n + source.left_out.n > 0)


def _load_source(
    args: argparse.Namespace, questions: "list[Question]"
) -> "tuple[HuggingFaceSource, LeftOut]":
    """Load the model; raise SchemaError for arguments that contradict it or one another."""
    try:
        from store.sources.huggingface import load
        from store.sources.huggingface.columns import needs_maps
        from store.sources.huggingface.decoding import Decoding
        from store.sources.huggingface.prompts import (
            Prompts,
            check_prompt_template,
            take_fitting,
        )
        from store.sources.huggingface.source import HuggingFaceSource
        from store.write.build import open_begun
    except ModuleNotFoundError as error:
        message = missing_package(error, "extract")
        if message is None:
            raise
        raise NotFoundError(message) from error
    default_template = "{question}" if args.chat_template else "Question: {question}\nAnswer:"
    template = (args.prompt_template or default_template).replace(r"\n", "\n")
    columns = args.columns
    if args.keep_attention:
        columns = [*(columns or ["default"]), "attentions"]
    stop = args.stop.replace(r"\n", "\n") if args.stop else None
    try:
        decoding = Decoding(
            args.num_beams, args.num_samples, args.temperature, args.top_p, args.seed
        )
        check_prompt_template(template)
        device = load.choose_device(args.device)
        model, tokenizer = load.load_model(args.model, args.dtype, device, maps=needs_maps(columns))
        prompts = Prompts(tokenizer, model, template, args.chat_template, args.max_new_tokens)
        fitting, skipped = take_fitting(questions, prompts)
        source = HuggingFaceSource(
            model,
            tokenizer,
            fitting,
            batch_size=args.batch_size,
            max_new_tokens=args.max_new_tokens,
            decoding=decoding,
            stop=stop,
            prompt_template=template,
            chat_template=args.chat_template,
            layers=args.layers,
            columns=columns,
            top_k=args.top_k,
            labels=args.labels,
            score_threshold=args.score_threshold,
            model_name=args.model,
            begun=open_begun(args.store),
        )
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return source, skipped
