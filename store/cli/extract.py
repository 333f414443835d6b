"""`python -m store extract`: a model's answers to questions, as a store.

transformers and torch are imported when it runs.
"""

import textwrap
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from store.cli import shared_options
from store.cli.arguments import as_called, expand, finite, layers, path, positive, rules
from store.cli.command import Command, Heading, flag, option
from store.cli.progress import Progress
from store.errors import SchemaError
from store.extras import needs_extra
from store.labels.rule import check_agreement
from store.reports import LeftOut, count, say
from store.sources.prompt_templates import (
    PLAIN_TEMPLATES,
    check_prompt_template,
    default_template,
    further_fields,
)
from store.sources.questions import (
    Question,
    generators_of,
    keep_generator,
    read_question_file,
    read_questions,
    without_responses,
)
from store.sources.questions.data_sets import DATA_SETS
from store.traces.columns import BY_HAND, TRACE_COLUMNS, columns_of
from store.traces.fields import Fields, find_fields
from store.write.background import BackgroundWriter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from store.read.store import TraceStore
    from store.sources.huggingface.generation import Decoding
    from store.sources.huggingface.kept import Kept
    from store.sources.huggingface.prompts import EncodedQuestions, Prompts
    from store.sources.huggingface.source import HuggingFaceSource

__all__ = [
    "Asked",
    "Extract",
    "ExtractOptions",
    "load_source",
    "make_prompts",
    "read_asked",
    "settings",
]

NEW_LINE = "\n"
MAX_NAMES = 8  # of models that a warning lists
NO_STOP = ("", "none")  # of --stop: the end-of-sequence token alone
KNOWN = f"The files of {', '.join(DATA_SETS)} are understood as they are (docs/files.md)."
FILES = f"""\
FILE of --questions is JSON lines, a JSON array or CSV with question_id, question and answers (a
list or one text; in CSV a JSON list, or texts separated by |), and perhaps context; what else is
in a record becomes a column (--fields). --limit counts before --part. With --num-samples, the
answers to question Q are the traces Q, Q#2, Q#3, ...

{textwrap.fill(KNOWN, 100, break_on_hyphens=False)}

answers that exist already: records of FILE with a response are not asked; one forward pass runs
over prompt and response. With it may come label (1 = hallucination, 0 = right), score (higher is
better), spans (a list of [start, end]: the hallucinated characters of the response) and trace_id.
Of RAGTruth, FILE is response.jsonl, with source_info.jsonl beside it; its answers are by six models
(--generator), its official split is the field split.

A record that is wrong (no question, an id twice, a response that is empty, too long or mislabelled)
is left out and named, the others go on, and the exit status is 1.

columns (T tokens of prompt and answer, L layers, H heads, d = hidden size, K = --top-k):
"""
FURTHER = """\
--columns default,lens_entropy keeps the default columns and one more; default,-attn all but those
that begin with attn_. Without any attn_ column and icr, no attention maps are computed. Columns of
attention on the context, attn_c..., need questions with a context; where a prompt lacks it they are
NaN. Layer 0, the embedding, is kept only if --layers names it.

labels: score and label are of the first rule of --labels; label 1 = hallucination, 0 = right, -1 =
unlabelled. Several rules also give a column label_RULE each.
  exact      the answer equals a reference. Case, accents, articles and punctuation do not count,
             but 3.14 is not 31.4, nor -12 the same as 12
  contains   the first statement of the answer (its first line, up to the first full stop) has the
             words of a reference, and does not deny them directly ("not Paris", "isn't Paris")
  f1         the words that answer and reference have in common
  judge      --judge-model is asked; -1 where it says neither of two words, or contradicts exact
Without references an answer is -1 under all of them, but for a judge that is not shown any.

Stopped, the same command continues where it stopped, also with another --batch-size, which may
change rounding. Out of memory, batches are halved. A trace with a hidden state beyond float16 is
left out and named; --dtype bf16 keeps it. Exit status 0: all is done; 1: some questions or traces
were left out; 75: a part (--part) failed that may succeed if it is tried again, e.g. on a full
disk.

examples:
  python -m store extract traces.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions triviaqa.jsonl --chat-template
  python -m store extract chat.zarr --model mistralai/Mistral-7B-Instruct-v0.3 \\
      --questions triviaqa.jsonl --chat-template --dtype bf16 --device cuda --batch-size 8
  python -m store extract small.zarr --model mistralai/Mistral-7B-Instruct-v0.3 \\
      --questions triviaqa.jsonl --chat-template --dtype bf16 --quantize 4bit
  python -m store extract probes.zarr --model ./model --questions nq.jsonl --layers 8,16,24 \\
      --columns hs_last,label
  python -m store extract base.zarr --model gpt2 --questions nq.jsonl \\
      --prompt-template 'Q: {question}\\nA:' --stop '\\n'
  python -m store extract judged.zarr --model ./model --questions nq.jsonl --chat-template \\
      --labels contains,judge --judge-model Qwen/Qwen2.5-7B-Instruct
  python -m store extract samples.zarr --model ./model --questions q.csv --num-samples 10 \\
      --temperature 0.7
  python -m store extract ragtruth.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions RAGTruth/dataset/response.jsonl --chat-template \\
      --columns hs_last,hidden_states,prompt_len,answer_len,token_label,label
  python -m store extract llama.zarr --model meta-llama/Llama-2-7b-chat-hf \\
      --questions RAGTruth/dataset/response.jsonl --generator llama-2-7b-chat --chat-template \\
      --fields task_type,split
  python -m store extract part1.zarr --model ./model --questions q.csv --part 1/4
"""


def _listed(names: Iterable[str]) -> str:
    """A paragraph for each column: its name, its shape and what it is."""
    lines = []
    for name in names:
        column = TRACE_COLUMNS[name]
        head = f"  {name} {column.shape if column.axes else ''}"
        lines.append(textwrap.fill(f"{head:<33} {column.doc}", 100, subsequent_indent=" " * 34))
    return "\n".join(lines) + "\n"


EXAMPLES = (
    f"{FILES}{_listed(columns_of(command='extract', by_default=True))}"
    f"and only if they are named:\n{_listed(columns_of(command=BY_HAND))}{FURTHER}"
)


class ExtractOptions(Command):
    """What is asked, and of which model: options of `extract`, which `plan` has as well."""

    model: str = option(
        "directory of a model, or its name on the Hugging Face Hub",
        "NAME_OR_PATH",
        expand,
        required=True,
    )
    questions: Path = option("questions to ask, see below", "FILE", path, required=True)
    limit: int | None = option("ask only the first N questions (default: all)", "N", positive)
    part: tuple[int, int] = shared_options.parts_of("question")

    _prompt = Heading("prompt")
    prompt_template: str | None = option(
        r"text with {question} in it, where \n is a new line; {context} and every other field of "
        r"the records may stand in it as well (default: 'Question: {question}\nAnswer:', or with "
        r"--chat-template {question}, and a request for a short answer unless the answers are "
        "given; behind the context if there is one)",
        "TEXT",
    )
    chat_template: bool = flag("ask in the tokenizer's own chat template")
    system: str | None = option(
        "the system's message in a chat; '' for an empty one (default: the template's own, if any)",
        "TEXT",
    )
    few_shot: Path | None = option(
        "questions with answers to put before each question, in a chat as turns; a file as for "
        "--questions, each question once and only right answers (default: none)",
        "FILE",
        path,
    )

    _model = Heading("model")
    dtype: str = shared_options.dtype("the weights")
    quantize: str | None = option(
        "round the weights with bitsandbytes: LLM.int8, or NF4 (default: as in the checkpoint)",
        choices=("8bit", "4bit"),
    )
    device: str | None = shared_options.device("torch device", either="place")
    device_map: str | None = option(
        "auto: spread the layers over all GPUs, then the CPU's memory, with accelerate (default: "
        "all on one device)",
        either="place",
        choices=("auto",),
    )
    batch_size: int = option(
        "traces in one forward pass; less where memory does not suffice, and it may change when a "
        "stopped extraction goes on",
        "N",
        positive,
        16,
    )

    _answers = Heading("answers")
    generate: bool = flag("let the model answer even if FILE holds responses (default: take those)")
    generator: str | None = option(
        "of responses by several models, keep those by this one, as the file names it, e.g. "
        "llama-2-7b-chat of RAGTruth (default: all)",
        "NAME",
    )
    max_new_tokens: int = option("longest answer, in tokens", "N", positive, 64)
    stop: str | None = option(
        r"text that ends an answer, e.g. '\n' for a base model; none: the end-of-sequence token "
        r"alone (default: '\n' with the default template and no --chat-template, else none)",
        "TEXT",
    )
    num_beams: int = option("beams of beam search; 1: greedy, or samples", "N", positive, 1)
    num_samples: int = option(
        "answers per question: samples, or the K best beams", "K", positive, 1
    )
    temperature: float | None = option("softmax temperature for sampling (default: 1)", "T", finite)
    top_p: float = option(
        "sample from the most probable tokens that together have probability P", "P", finite, 1.0
    )
    seed: int = option("seed of the samples", "N", int, 0)

    _kept = Heading("what is kept")
    layers: str | None = option(
        "layers to keep, as the model numbers them from 1: 8,16,24 or 8-16; -1 is the last, 0 the "
        "embedding (default: all from 1)",
        None,
        layers,
    )
    columns: list[str] | None = shared_options.columns(
        "all but those that are made only if they are named, see below"
    )
    fields: list[str] | None = shared_options.FIELDS
    keep_attention: bool = flag("keep the full attention maps (large) beside the other columns")
    top_k: int = option("most probable candidates to keep for each token", "K", positive, 10)
    labels: list[str] | None = option(
        "what makes an answer right, one or several of exact (it is a reference), contains (its "
        "first statement says a reference), f1 (words in common), judge (a model says so) and "
        "none, separated by commas; see below (default: contains with --chat-template and for "
        "answers that exist already, else exact)",
        "RULES",
        rules,
    )
    judge_model: str | None = shared_options.JUDGE_MODEL
    judge_template: str | None = shared_options.JUDGE_TEMPLATE
    score_threshold: float = shared_options.SCORE_THRESHOLD


class Extract(ExtractOptions):
    """Ask a causal language model of transformers, and store the traces of its answers."""

    epilog = EXAMPLES
    store: Path = shared_options.OUT

    def run(self) -> int:
        """Ask; return 1 if a question or a trace was left out."""
        from store.write.build import build_store, check_new, open_begun

        check_new(self.store)  # before a model is loaded for nothing
        begun = open_begun(self.store)
        asked = read_asked(self)
        source, encoded = load_source(self, asked, begun)
        from torch import OutOfMemoryError

        from store.sources.huggingface.report import extraction_report

        def share(n_rows: int) -> float:
            return (n_rows + source.left_out.n) / max(1, len(source))

        background = BackgroundWriter(self.batch_size)
        try:
            with Progress(share) as progress:
                store = build_store(
                    self.store,
                    source,
                    progress,
                    command=self.typed,
                    background=background,
                )
        except OutOfMemoryError as error:
            raise SchemaError(
                f"out of memory: one trace does not fit on {source.model.device}; what is done is "
                "kept; free memory and repeat the command"
            ) from error
        n_left_out = encoded.skipped.n + source.left_out.n
        n_of_file = asked.left_out.n  # every part reads all of it: they count in the first
        n_of_part = n_left_out + (n_of_file if self.part[0] == 1 else 0)
        shared_options.publish_part(self, store, n_of_part)
        report = extraction_report(self.store, store, source, encoded.skipped)
        say(as_called(report))
        say(*_remarks(asked), sep="\n", end="")
        return int(n_left_out + n_of_file > 0)


class Asked(NamedTuple):
    """What is asked for, with what stands for options that were left out."""

    questions: list[Question]
    template: str
    few_shot: list[Question]  # examples that come first
    stop: str | None
    rules: list[str]
    columns: list[str] | None
    fields: Fields  # of all records, whichever are asked
    has_context: bool
    left_out: LeftOut
    remarks: list[str]


def read_asked(args: ExtractOptions) -> Asked:
    """Read what is asked; raise SchemaError for what contradicts another, or a part without any."""
    template = args.prompt_template and args.prompt_template.replace(r"\n", "\n")
    try:
        if template is not None:
            check_prompt_template(template)
        needed = list(further_fields(template or ""))
    except ValueError as error:
        raise SchemaError(str(error)) from error
    file = read_question_file(args.questions, needed)
    found = file.questions
    if args.generator is not None:
        found = keep_generator(found, args.generator)
    remarks = [*file.remarks, *_others(args, found)]
    found = without_responses(found) if args.generate else found
    given = ((one.get("trace_id", ""), one.get("score"), one.get("label")) for one in found)
    check_agreement(given, args.score_threshold)
    k, n = args.part
    questions = _first_questions(found, args.limit)[k - 1 :: n]
    if not questions:
        raise SchemaError(f"{args.questions}: part {k}/{n} has no question; choose fewer parts")
    is_given = any("response" in question for question in found)
    fields = find_fields([question.get("fields", {}) for question in found], args.fields)
    has_context = any("context" in question for question in found)
    if template is None:
        template = default_template(
            file.form, has_context=has_context, chat=args.chat_template, briefly=not is_given
        )
    columns = args.columns
    if args.keep_attention:
        columns = [*(columns or ["default"]), "attentions"]
    rules = _rules_of(args, is_given=is_given)
    shared_options.check_judge_options(args, rules)
    return Asked(
        questions,
        template,
        few_shot=read_questions(args.few_shot, needed) if args.few_shot else [],
        stop=_stop_of(args, template),
        rules=rules,
        columns=columns,
        fields=fields,
        has_context=has_context,
        left_out=file.left_out,
        remarks=[*remarks, *fields.remarks()],
    )


def _others(args: ExtractOptions, found: list[Question]) -> list[str]:
    """A warning about responses of others than the model, unless one was asked for."""
    names = generators_of(found)
    if args.generate or args.generator is not None or not names or names == [args.model]:
        return []
    shown = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
    return [
        f"warning: states are of {args.model}, the answers by {count(len(names), 'model')}: "
        f"{shown}; --generator NAME keeps those by one"
    ]


def _first_questions(found: list[Question], limit: int | None) -> list[Question]:
    """The records of the first questions: one may have several answers."""
    names = dict.fromkeys(one["question_id"] for one in found)
    first = set(islice(names, limit))
    return [one for one in found if one["question_id"] in first]


def _remarks(asked: Asked) -> list[str]:
    """Lines about the file of questions; each ends in a new line."""
    lines = [f"  {remark}" for remark in asked.remarks]
    if asked.left_out.n:
        lines.append(f"  {count(asked.left_out.n, 'record')} left out")
        lines += asked.left_out.lines()
    return [*lines, ""] if lines else []


def _stop_of(args: ExtractOptions, template: str) -> str | None:
    """The text that ends an answer: a new line with the plain templates, by default; else None."""
    if args.stop is not None:
        return None if args.stop in NO_STOP else str(args.stop).replace(r"\n", "\n")
    is_plain = template in PLAIN_TEMPLATES and not args.chat_template
    return NEW_LINE if is_plain else None


def _rules_of(args: ExtractOptions, *, is_given: bool) -> list[str]:
    """The rules that label the answers: `contains` for chats and given answers, else `exact`."""
    if args.labels is not None:
        return list(args.labels)
    return ["contains"] if args.chat_template or is_given else ["exact"]


def load_source(
    args: ExtractOptions, asked: Asked, begun: "TraceStore | None"
) -> "tuple[HuggingFaceSource, EncodedQuestions]":
    """Load the model; raise SchemaError for arguments that contradict it or one another.

    With the source comes what became of the questions.
    """
    with needs_extra("extract"):
        from store.labels.grading import Case, Grader
        from store.sources.huggingface import load
        from store.sources.huggingface.prompts import encode_questions
        from store.sources.huggingface.source import HuggingFaceSource
    try:
        decoding, kept = settings(args, asked)
        model, tokenizer = load.load_model(
            args.model,
            args.dtype,
            load.choose_device(args.device),
            maps=kept.needs_maps,
            quantize=args.quantize,
            device_map=args.device_map,
        )
        prompts = make_prompts(args, asked, model, tokenizer)
        encoded = encode_questions(asked.questions, prompts)
        # the judge may be the model itself; a template of the user's is tried first
        judge = shared_options.load_judge(args, asked.rules, {args.model: (model, tokenizer)})
        if judge and args.judge_template is not None:
            asks = (one.question for one in encoded.questions)
            cases = (Case(one["question"], one["answers"], "") for one in asks)
            shared_options.try_judge(judge, cases)
        source = HuggingFaceSource(
            model,
            prompts,
            encoded.questions,
            decoding,
            kept,
            Grader(asked.rules, args.score_threshold, judge),
            batch_size=args.batch_size,
            name=args.model,
            begun=begun,
        )
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return source, encoded


def settings(args: ExtractOptions, asked: Asked) -> "tuple[Decoding, Kept]":
    """How answers are generated, and what is kept; raises ValueError for what contradicts."""
    from store.sources.huggingface.generation import Decoding
    from store.sources.huggingface.kept import Kept

    decoding = Decoding(
        args.num_beams,
        args.num_samples,
        args.temperature,
        args.top_p,
        args.seed,
        args.max_new_tokens,
        asked.stop,
    )
    return decoding, Kept(args.layers, asked.columns, args.top_k, asked.fields, asked.has_context)


def make_prompts(
    args: ExtractOptions,
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
    )
