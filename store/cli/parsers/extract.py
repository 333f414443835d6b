"""Arguments of `python -m store extract`."""

import textwrap
from collections.abc import Iterable

from store.cli.arguments import (
    Commands,
    Group,
    Parser,
    add_columns,
    add_ignore_space,
    add_judge,
    add_out,
    add_part,
    add_score_threshold,
    expand,
    finite,
    layers,
    path,
    positive,
    rules,
)
from store.traces.columns import BY_HAND, TRACE_COLUMNS, columns_of

__all__ = ["add_extract", "add_extract_options"]

FILES = """\
FILE of --questions is JSON lines, a JSON array or CSV with question_id, question and answers (a
list or one text; in CSV a JSON list, or texts separated by |), and perhaps context. The files of
TriviaQA, NQ-open, SQuAD, RAGTruth, HaluEval, TruthfulQA and Mu-SHROOM are understood as they are.
--limit counts before --part. With --num-samples, the answers to question Q are the traces Q, Q#2,
Q#3, ...

answers that exist already: records of FILE with a response are not asked; one forward pass runs
over prompt and response. With it may come label (1 = hallucination, 0 = right), score (higher is
better), spans (a list of [start, end]: the hallucinated characters of the response) and trace_id.
Of RAGTruth, FILE is response.jsonl, with source_info.jsonl beside it.

A record that is wrong (no question, an id twice, a response that is empty, too long or mislabelled)
is left out and named, the others go on, and the exit status is 1.

columns (T tokens of prompt and answer, L layers, H heads, d = hidden size, K = --top-k):
"""
FURTHER = """\
--columns default,lens_entropy keeps the default columns and one more; default,-attn all but those
that begin with attn_. Without any attn_ column, no attention maps are computed. Layer 0, the
embedding, is kept only if --layers names it.

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


def add_extract(commands: Commands) -> None:
    parser = commands.add_parser(
        "extract",
        help="make a store of a model's answers",
        description="Ask a causal language model of transformers, and store the traces of its "
        "answers.",
        epilog=EXAMPLES,
    )
    add_out(parser)
    add_extract_options(parser, required=True)


def add_extract_options(parser: Parser, *, required: bool) -> None:
    """The options of `extract`, which `plan` has as well: there a training needs no model."""
    parser.add_argument(
        "--model",
        metavar="NAME_OR_PATH",
        type=expand,
        required=required,
        help="directory of a model, or its name on the Hugging Face Hub",
    )
    parser.add_argument(
        "--questions",
        metavar="FILE",
        type=path,
        required=required,
        help="questions to ask, see below",
    )
    parser.add_argument(
        "--limit", metavar="N", type=positive, help="ask only the first N questions (default: all)"
    )
    add_part(parser, "question")
    _add_prompt(parser.add_argument_group("prompt"))
    _add_model(parser.add_argument_group("model"))
    _add_answers(parser.add_argument_group("answers"))
    _add_kept(parser.add_argument_group("what is kept"))


def _add_prompt(group: Group) -> None:
    group.add_argument(
        "--prompt-template",
        metavar="TEXT",
        help=r"text with {question} in it, where \n is a new line; {context} and every other field "
        r"of the records may stand in it as well (default: 'Question: {question}\nAnswer:', or "
        r"with --chat-template {question}, and a request for a short answer unless the answers are "
        "given; behind the context if there is one)",
    )
    group.add_argument(
        "--chat-template", action="store_true", help="ask in the tokenizer's own chat template"
    )
    group.add_argument(
        "--system", metavar="TEXT", help="the system's message in a chat (default: none)"
    )
    group.add_argument(
        "--few-shot",
        metavar="FILE",
        type=path,
        help="questions with answers to put before each question, in a chat as turns; a file as "
        "for --questions, each question once and only right answers (default: none)",
    )
    group.add_argument(
        "--max-context-tokens",
        metavar="N",
        type=positive,
        help="cut longer contexts at their end, and say how many (default: leave out and name what "
        "the model cannot take)",
    )


def _add_model(group: Group) -> None:
    group.add_argument(
        "--dtype",
        choices=("bf16", "fp16", "fp32", "auto"),
        default="auto",
        help="dtype of the weights; auto: as in the checkpoint (default: %(default)s)",
    )
    group.add_argument(
        "--quantize",
        choices=("8bit", "4bit"),
        help="round the weights with bitsandbytes: LLM.int8, or NF4 (default: as in the "
        "checkpoint)",
    )
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--device", help="torch device, e.g. cuda:1 (default: cuda if there is one, else cpu)"
    )
    where.add_argument(
        "--device-map",
        choices=("auto",),
        help="auto: spread the layers over all GPUs, then the CPU's memory, with accelerate "
        "(default: all on one device)",
    )
    group.add_argument(
        "--batch-size",
        metavar="N",
        type=positive,
        default=16,
        help="traces in one forward pass; less where memory does not suffice, and it may change "
        "when a stopped extraction goes on (default: %(default)s)",
    )


def _add_answers(group: Group) -> None:
    group.add_argument(
        "--generate",
        action="store_true",
        help="let the model answer even if FILE holds responses (default: take those)",
    )
    group.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=positive,
        default=64,
        help="longest answer, in tokens (default: %(default)s)",
    )
    group.add_argument(
        "--stop",
        metavar="TEXT",
        help=r"text that ends an answer, e.g. '\n' for a base model; none: the end-of-sequence "
        r"token alone (default: '\n' with the default template and no --chat-template, else none)",
    )
    group.add_argument(
        "--num-beams",
        metavar="N",
        type=positive,
        default=1,
        help="beams of beam search; 1: greedy, or samples (default: %(default)s)",
    )
    group.add_argument(
        "--num-samples",
        metavar="K",
        type=positive,
        default=1,
        help="answers per question: samples, or the K best beams (default: %(default)s)",
    )
    group.add_argument(
        "--temperature",
        metavar="T",
        type=finite,
        help="softmax temperature for sampling (default: 1)",
    )
    group.add_argument(
        "--top-p",
        metavar="P",
        type=finite,
        default=1.0,
        help="sample from the most probable tokens that together have probability P "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="seed of the samples (default: %(default)s)",
    )


def _add_kept(group: Group) -> None:
    group.add_argument(
        "--layers",
        type=layers,
        help="layers to keep, as the model numbers them from 1: 8,16,24 or 8-16; -1 is the last, 0 "
        "the embedding (default: all from 1)",
    )
    add_columns(group, "all but the lens_ columns, attn_edges, attn_edge_ends and attentions")
    group.add_argument(
        "--keep-attention",
        action="store_true",
        help="keep the full attention maps (large) beside the other columns",
    )
    group.add_argument(
        "--top-k",
        metavar="K",
        type=positive,
        default=10,
        help="most probable candidates to keep for each token (default: %(default)s)",
    )
    group.add_argument(
        "--labels",
        metavar="RULES",
        type=rules,
        help="what makes an answer right, one or several of exact (it is a reference), contains "
        "(its first statement says a reference), f1 (words in common), judge (a model says so) "
        "and none, separated by commas; see below (default: contains with --chat-template and "
        "for answers that exist already, else exact)",
    )
    add_judge(group)
    add_score_threshold(group)
    add_ignore_space(group)
