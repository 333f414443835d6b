"""`python -m store extract`: a model's answers to questions, as a store.

transformers and torch are imported when it runs.
"""

import argparse
from typing import TYPE_CHECKING

from store.cli.arguments import (
    add_columns,
    add_ignore_space,
    add_part,
    add_score_threshold,
    expand,
    finite,
    layers,
    path,
    positive,
)
from store.cli.progress import Progress
from store.errors import NotFoundError, SchemaError
from store.extras import missing_package
from store.reports import NOTHING_TO_DO
from store.write.space import SpaceCheck

if TYPE_CHECKING:
    from store.sources.huggingface.load import ExtractReport
    from store.sources.huggingface.source import HuggingFaceSource
    from store.sources.questions import Question

__all__ = ["add_command"]

EXAMPLES = """questions are JSON lines, a JSON array or CSV with question_id, question and answers (a list or
one text; in CSV a JSON list or texts between |); TriviaQA and NQ-open are understood as they are. --limit counts before
--part. With --num-samples, the answers to question Q are the traces Q, Q#2, Q#3, ...

examples:
  python -m store extract traces.zarr --model meta-llama/Llama-2-7b-chat-hf --questions triviaqa.jsonl --chat-template
  python -m store extract probes.zarr --model ./model --questions nq.jsonl --layers 8,16,24 --columns hs_last,label
  python -m store extract base.zarr --model gpt2 --questions nq.jsonl --stop '\\n'
  python -m store extract samples.zarr --model ./model --questions q.csv --num-samples 10 --temperature 0.7
  python -m store extract part1.zarr --model ./model --questions q.csv --part 1/4

Stopped, the same command goes on where it stood. A trace with a hidden state beyond float16 is left out and named;
--dtype bf16 keeps it. Exit status 0: all is there; 1: some questions or traces were left out.
"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Add it to the parser of `python -m store`."""
    raw = argparse.RawDescriptionHelpFormatter
    made = commands.add_parser(
        "extract", help="make a store of a model's answers", epilog=EXAMPLES, formatter_class=raw
    )
    made.add_argument("store", metavar="OUT", type=path, help="the store to make")
    made.add_argument(
        "--model", metavar="NAME_OR_PATH", type=expand, required=True, help="directory, or name on the Hub"
    )
    made.add_argument("--questions", metavar="FILE", type=path, required=True, help="what to ask")
    made.add_argument("--limit", type=positive, help="only the first questions")
    add_part(made, "of them")
    prompt = made.add_argument_group("prompt")
    prompt.add_argument(
        "--prompt-template",
        metavar="TEXT",
        help=r"with {question}; \n is a new line (default 'Question: {question}\nAnswer:', or {question} in a chat)",
    )
    prompt.add_argument("--chat-template", action="store_true", help="ask in the tokenizer's own chat template")
    running = made.add_argument_group("model")
    running.add_argument("--dtype", choices=("bf16", "fp16", "fp32", "auto"), default="auto", help="(default auto)")
    running.add_argument("--device", help="e.g. cuda:1 (default: cuda if there, else cpu)")
    running.add_argument("--batch-size", type=positive, default=16, help="traces at once (default %(default)s)")
    answers = made.add_argument_group("answers")
    answers.add_argument("--max-new-tokens", type=positive, default=64, help="longest (default %(default)s)")
    answers.add_argument("--stop", metavar="TEXT", help=r"ends an answer, e.g. '\n' for a model that never does itself")
    answers.add_argument("--num-beams", type=positive, default=1, help="beam search (default %(default)s: greedy)")
    answers.add_argument(
        "--num-samples", metavar="K", type=positive, default=1, help="to each question; drawn, or the K best beams"
    )
    answers.add_argument("--temperature", type=finite, help="of what is drawn (default 1)")
    answers.add_argument("--top-p", type=finite, default=1.0, help="draw from this much probability (default 1)")
    answers.add_argument("--seed", type=int, default=0, help="of what is drawn (default %(default)s)")
    kept = made.add_argument_group("what is kept")
    kept.add_argument(
        "--layers", type=layers, help="as the model numbers them: 8,16,24 or 8-16, -1 the last (default: all)"
    )
    add_columns(kept, " (no attn_: no maps computed)")
    kept.add_argument("--top-k", type=positive, default=10, help="candidates for each token (default %(default)s)")
    kept.add_argument(
        "--labels", choices=("exact", "f1", "none"), default="exact", help="score of an answer (default exact match)"
    )
    add_score_threshold(kept)
    add_ignore_space(kept)
    made.set_defaults(run=run_extract)


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
    source, report = _extract_source(args, questions)
    import torch

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
    print(report.summary(args.store, store, source))
    if there:
        print(NOTHING_TO_DO)
    return int(report.skipped.n > 0 or source.left_out.n > 0)


def _extract_source(args: argparse.Namespace, questions: "list[Question]") -> "tuple[HuggingFaceSource, ExtractReport]":
    """Load the model; raises SchemaError for arguments that do not fit it or one another."""
    try:
        from store.sources.huggingface import load
        from store.sources.huggingface.prompts import Prompts, check_prompt_template
        from store.sources.huggingface.source import Decoding, HuggingFaceSource
        from store.write.build import open_begun
    except ModuleNotFoundError as error:
        message = missing_package(error, "extract")
        if message is None:
            raise
        raise NotFoundError(message) from error
    template = args.prompt_template or ("{question}" if args.chat_template else r"Question: {question}\nAnswer:")
    template = template.replace(r"\n", "\n")
    try:
        decoding = Decoding(args.num_beams, args.num_samples, args.temperature, args.top_p, args.seed)
        check_prompt_template(template)
        device = load.choose_device(args.device)
        model, tokenizer = load.load_model(args.model, args.dtype, device, maps=load.needs_maps(args.columns))
        prompts = Prompts(tokenizer, model, template, args.chat_template, args.max_new_tokens)
        fitting, report = load.take_fitting(questions, prompts)
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
    return source, report
