"""`python -m store extract`: a model's answers to questions, as a store.

transformers and torch are imported when it runs.
"""

import argparse
from typing import TYPE_CHECKING

from store.cli.progress import Progress
from store.errors import NotFoundError, SchemaError
from store.extras import missing_package
from store.reports import NOTHING_TO_DO
from store.write.space import SpaceCheck

if TYPE_CHECKING:
    from store.reports import LeftOut
    from store.sources.huggingface.source import HuggingFaceSource
    from store.sources.questions import Question

__all__ = ["run_extract"]


def run_extract(args: argparse.Namespace) -> int:
    """Ask a model; 1 if a question or a trace was left out."""
    from store.sources.questions import read_questions
    from store.write.build import build_store, check_new

    check_new(args.store)  # before a model is loaded for nothing
    questions = read_questions(args.questions)[: args.limit]
    k, n = args.part
    questions = questions[k - 1 :: n]
    if not questions:
        raise SchemaError(f"{args.questions}: expected questions in this part, found none")
    source, skipped = _extract_source(args, questions)
    import torch

    from store.sources.huggingface.report import extraction_report

    there = args.store.exists()

    def share(n_rows: int) -> float:
        return (n_rows + source.left_out.n) / max(1, len(source))

    space = SpaceCheck(args.store, share, args.batch_size, ignore=args.ignore_space)
    try:
        with Progress(share) as progress:
            store = build_store(args.store, source, progress, command=args.typed, space=space)
    except torch.OutOfMemoryError as error:
        raise SchemaError(
            f"expected memory for one trace, found too little on {source.model.device}; what is done is kept; free "
            "memory and repeat the command"
        ) from error
    print(extraction_report(args.store, store, source, skipped))
    if there:
        print(NOTHING_TO_DO)
    return int(skipped.n > 0 or source.left_out.n > 0)


def _extract_source(
    args: argparse.Namespace, questions: "list[Question]"
) -> "tuple[HuggingFaceSource, LeftOut]":
    """Load the model; raises SchemaError for arguments that do not fit it or one another."""
    try:
        from store.sources.huggingface import load
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
    template = args.prompt_template or (
        "{question}" if args.chat_template else r"Question: {question}\nAnswer:"
    )
    template = template.replace(r"\n", "\n")
    try:
        decoding = Decoding(
            args.num_beams, args.num_samples, args.temperature, args.top_p, args.seed
        )
        check_prompt_template(template)
        device = load.choose_device(args.device)
        model, tokenizer = load.load_model(
            args.model, args.dtype, device, maps=load.needs_maps(args.columns)
        )
        prompts = Prompts(tokenizer, model, template, args.chat_template, args.max_new_tokens)
        fitting, skipped = take_fitting(questions, prompts)
        source = HuggingFaceSource(
            model,
            tokenizer,
            fitting,
            batch_size=args.batch_size,
            max_new_tokens=args.max_new_tokens,
            decoding=decoding,
            stop=(args.stop or "").replace(r"\n", "\n") or None,
            prompt_template=template,
            chat_template=args.chat_template,
            layers=args.layers,
            columns=args.columns,
            top_k=args.top_k,
            labels=args.labels,
            score_threshold=args.score_threshold,
            model_name=args.model,
            begun=open_begun(args.store),
        )
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return source, skipped
