"""What can be typed: the arguments, help and examples of every command of `python -m store`.

Nothing here takes torch: help comes at once, and so does what is said of a wrong argument.
"""

import argparse
from typing import NoReturn

from store.cli.arguments import (
    Version,
    add_columns,
    add_ignore_space,
    add_part,
    add_score_threshold,
    expand,
    finite,
    layers,
    names,
    path,
    positive,
)
from store.sources.labels import SCORE_THRESHOLD
from store.sources.split import SPLITS

__all__ = ["build_parser"]

EXAMPLES = """examples:
  python -m store import traces.zarr old_traces/ --scores ground_truth_scores.csv
  python -m store extract traces.zarr --model NAME_OR_PATH --questions questions.jsonl
  python -m store info data/example.zarr
  python -m store get data/example.zarr TRACE_ID --columns question,answer,label
  python -m store get data/example.zarr TRACE_ID --json | python -m json.tool
  python -m store label traces.zarr --scores judged.csv --dry-run
  python -m store export traces.zarr --columns question,answer --to answers.csv
  python -m store verify traces.zarr
"""

VERIFY_EXAMPLES = """Every file, table, offset, id and chunk is compared with what was committed; problems that differ
in numbers only are one line. Files that an interrupted write left are counted, and are no problem: nothing of them was
committed. It may run beside readers and a writer. Exit status 0: whole; 1: problems.

examples:
  python -m store verify traces.zarr
  python -m store verify traces.zarr --verbose
  python -m store verify traces.zarr --quick
  python -m store verify traces.zarr --json | python -m json.tool
"""

REPAIR_EXAMPLES = """Clears what a crash left, and writes damaged metadata and a damaged id table again. Traces with
damaged bytes are dropped: the others are copied into a new store (which needs the space), and that takes the place of
STORE; STORE.dropped.txt lists the rows and ids of the dropped ones, and the old store stays as STORE.damaged until you
remove it.

examples:
  python -m store repair traces.zarr          # what would be done
  python -m store repair traces.zarr --yes
  python -m store repair traces.zarr --drop-columns label,score --yes     # then: python -m store label
"""


IMPORT_EXAMPLES = """sources are files, folders or patterns; what is in a file is found from its content:
raw traces (.pkl, .pkl.gz) or preprocessed ones (.pt, for the LSTM and for graphs; both together are joined).

examples:
  python -m store import traces.zarr traces/ --scores ground_truth_scores.csv
  python -m store import graphs.zarr preprocessed_data/gnn preprocessed_data/lstm_solo
  python -m store import part1.zarr 'traces/*.pkl.gz' --part 1/4

Stopped, the same command goes on where it stood. Exit status 0: all read; 1: some files or records were left out.
"""

MERGE_EXAMPLES = """examples:
  python -m store merge traces.zarr part1.zarr part2.zarr part3.zarr
"""
SUBSET_EXAMPLES = """examples:
  python -m store subset few.zarr traces.zarr --ids ids.txt
  python -m store subset test.zarr traces.zarr --split test --seed 0
  python -m store subset asked.zarr traces.zarr --questions questions.txt

The split is that of python -m train with the same seed; unlabelled traces come along.
"""


READING = """FILE is CSV with a header (comma, semicolon or tab) or JSON lines. Columns are found by name:
  trace_id      the value is of this trace
  question_id   the value is of all traces of this question; where a line has a trace_id too,
                that one counts
  score, bleurt_score, bleurt, rouge_l, rougel
                a score, higher is better: label 1 (hallucination) below --score-threshold, else 0
  label, is_hallucination, hallucination
                a label: 1 or true = hallucination, 0 or false = right, -1 = unlabelled
Of the scores and labels exactly one may be there; else choose: --score-column, --label-column.
A column where 1 means right is a score: --score-column correct. Empty values are passed over.
In a store without question ids, those of FILE are compared with its trace ids."""

LABEL_EXAMPLES = f"""{READING}

Traces that FILE does not list keep score and label, unless --replace-all. A trace that gets a label
has no score then, so that python -m train --score-threshold leaves it unlabelled. Scores of which a
low one is better are stored with their sign turned: in every store label = 1 iff score < threshold.
The threshold of python -m train --score-threshold is compared with the stored scores, so turn its
sign too. If no id of FILE is in the store, nothing is changed.

What FILE was understood to say, and how many labels change, is printed before anything is written.
Scores and labels that are replaced are kept beside the store, in STORE.labels-ID-GENERATION.csv;
--undo brings back those before the last change, and done again takes that back.

examples:
  python -m store label traces.zarr --scores ground_truth_scores.csv
  python -m store label traces.zarr --scores bleurt.csv --score-threshold 0.4 --dry-run
  python -m store label traces.zarr --scores judged.csv --label-column wrong
  python -m store label traces.zarr --scores ppl.csv --score-column ppl --lower-is-better \\
      --score-threshold 20
  python -m store label traces.zarr --undo
"""

EXPORT_EXAMPLES = """Always with trace_id, and with question_id where the store has it. Columns of one number or one
text in each row can be exported; arrays (hidden states, attention) cannot. A score that is not there
(NaN) is an empty cell in CSV and null in JSON lines; references is a JSON list, as text in CSV and
Parquet, as a list in JSON lines. FILE appears whole or not at all. Parquet needs pyarrow.

To have the answers judged: export them, add a column "score" (higher is better) or "label"
(1 = hallucination) to the file, and give it to python -m store label. By the trace_id in it each
sample of a question is scored by itself.

examples:
  python -m store export traces.zarr --columns question,answer,references --to answers.csv
  python -m store export traces.zarr --columns answer,score --ids ids.txt --to few.jsonl
  python -m store label traces.zarr --scores answers_judged.csv
"""


EXTRACT_EXAMPLES = """questions are JSON lines, a JSON array or CSV with question_id, question and answers (a list or
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


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage and message."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m store`; `run` of what it gives is "module:function" of this room."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        "python -m store",
        description="Make trace stores and look into them.",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument(
        "--version", action=Version, nargs=0, help="print the version, and that of the format"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    info = commands.add_parser(
        "info", help="columns, shapes, rows, bytes on disk, codecs, provenance"
    )
    info.add_argument("store", metavar="STORE", type=path)
    info.add_argument("--json", action="store_true", help="one JSON object")
    info.set_defaults(run="inspect:run_info")

    get = commands.add_parser("get", help="print one trace")
    get.add_argument("store", metavar="STORE", type=path)
    get.add_argument("trace_id", metavar="TRACE_ID")
    get.add_argument("--columns", type=names, help="only these, e.g. question,answer")
    get.add_argument(
        "--json", action="store_true", help="one JSON object, every value in full (may be large)"
    )
    get.set_defaults(run="inspect:run_get")
    _add_health(commands)
    _add_makers(commands)
    _add_label(commands)
    _add_export(commands)
    _add_extract(commands)
    return parser


def _add_health(commands: argparse._SubParsersAction) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    verify = commands.add_parser(
        "verify", help="is it whole?", epilog=VERIFY_EXAMPLES, formatter_class=raw
    )
    verify.add_argument("store", metavar="STORE", type=path)
    verify.add_argument(
        "--quick",
        action="store_true",
        help="all but the bytes of the chunks and the ids in the index",
    )
    verify.add_argument(
        "--verbose", action="store_true", help="a line for each problem and each file left over"
    )
    verify.add_argument("--json", action="store_true", help="one JSON object")
    verify.set_defaults(run="check:run_verify")

    repair = commands.add_parser(
        "repair", help="make it whole", epilog=REPAIR_EXAMPLES, formatter_class=raw
    )
    repair.add_argument("store", metavar="STORE", type=path)
    repair.add_argument(
        "--drop-columns",
        type=names,
        default=[],
        help="drop these in place of the traces that they are damaged in",
    )
    repair.add_argument(
        "--yes", action="store_true", help="do it; else only tell what would be done"
    )
    repair.set_defaults(run="check:run_repair")


def _add_makers(commands: argparse._SubParsersAction) -> None:
    _add_import(commands)
    raw = argparse.RawDescriptionHelpFormatter
    merge = commands.add_parser(
        "merge", help="make one store of several", epilog=MERGE_EXAMPLES, formatter_class=raw
    )
    merge.add_argument("store", metavar="OUT", type=path, help="the store to make")
    merge.add_argument(
        "sources",
        metavar="STORE",
        nargs="+",
        type=path,
        help="stores of the same columns, no id in two",
    )
    merge.add_argument(
        "--mixed", action="store_true", help="take traces of other models or layers, too"
    )
    add_ignore_space(merge)
    merge.set_defaults(run="make:run_merge")

    subset = commands.add_parser(
        "subset",
        help="make a store of some traces of another",
        epilog=SUBSET_EXAMPLES,
        formatter_class=raw,
    )
    subset.add_argument("store", metavar="OUT", type=path, help="the store to make")
    subset.add_argument("source", metavar="STORE", type=path, help="the store to choose from")
    which = subset.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--ids", metavar="FILE", type=path, help="trace ids, one a line, in the order wanted"
    )
    which.add_argument(
        "--questions", metavar="FILE", type=path, help="question ids, one a line: all their traces"
    )
    which.add_argument("--split", choices=SPLITS, help="the questions of this split")
    subset.add_argument("--seed", type=int, default=0, help="of the split (default %(default)s)")
    add_ignore_space(subset)
    subset.set_defaults(run="make:run_subset")


def _add_import(commands: argparse._SubParsersAction) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    made = commands.add_parser(
        "import",
        help="make a store of pickled or preprocessed traces",
        epilog=IMPORT_EXAMPLES,
        formatter_class=raw,
    )
    made.add_argument("store", metavar="OUT", type=path, help="the store to make")
    made.add_argument(
        "sources", metavar="SOURCE", nargs="+", type=expand, help="files, folders or patterns"
    )
    made.add_argument(
        "--scores",
        metavar="FILE",
        type=path,
        help="scores or labels by question_id or trace_id, which alone decide the labels; read as "
        "python -m store label --help says",
    )
    _add_score_columns(made)
    add_score_threshold(made)
    add_columns(made)
    made.add_argument(
        "--keep-attention", action="store_true", help="keep the full attention maps, too (large)"
    )
    made.add_argument(
        "--attn-threshold",
        type=finite,
        help="what graphs were built with (default: found, on the safe side)",
    )
    add_part(made, "file")
    made.add_argument(
        "--max-file-gb",
        type=finite,
        default=16,
        help="refuse files that unpack to more (default %(default)s)",
    )
    add_ignore_space(made)
    made.set_defaults(run="make:run_import")


def _add_label(commands: argparse._SubParsersAction) -> None:
    label = commands.add_parser(
        "label",
        help="score and label the traces of a store, or take that back",
        description="Give traces of a store scores and labels from a file, in one commit that touches nothing else.",
        epilog=LABEL_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    label.add_argument("store", metavar="STORE", type=path)
    source = label.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--scores", metavar="FILE", type=path, help="scores or labels by trace_id or question_id"
    )
    source.add_argument(
        "--undo", action="store_true", help="bring back the labels before the last change"
    )
    _add_score_columns(label)
    label.add_argument(
        "--score-threshold",
        type=finite,
        help=f"label 1 (hallucination) below it; above it with --lower-is-better (default {SCORE_THRESHOLD})",
    )
    label.add_argument(
        "--replace-all",
        action="store_true",
        help="traces that FILE does not list lose score and label (default: they keep both)",
    )
    label.add_argument(
        "--dry-run", action="store_true", help="print what would change, write nothing"
    )
    label.set_defaults(run="label:run_label")


def _add_export(commands: argparse._SubParsersAction) -> None:
    export = commands.add_parser(
        "export",
        help="write texts and numbers of traces to a CSV, JSON lines or Parquet file",
        description="Write columns of a store to a table, one line for each trace.",
        epilog=EXPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("store", metavar="STORE", type=path)
    export.add_argument(
        "--columns",
        type=names,
        help="names between commas, e.g. question,answer,references (default: all that can be exported)",
    )
    export.add_argument(
        "--to",
        metavar="FILE",
        type=path,
        required=True,
        help="the file to write; its ending chooses the format: .csv, .jsonl or .parquet",
    )
    export.add_argument(
        "--ids",
        metavar="FILE",
        type=path,
        help="only these: trace ids, one a line, in the order wanted",
    )
    export.add_argument(
        "--overwrite", action="store_true", help="replace FILE if it is there (default: refuse)"
    )
    export.set_defaults(run="label:run_export")


def _add_score_columns(parser: argparse.ArgumentParser) -> None:
    """`--score-column`, `--label-column`, `--higher-is-better` and `--lower-is-better`."""
    column = parser.add_mutually_exclusive_group()
    column.add_argument(
        "--score-column",
        metavar="NAME",
        help="the column of the file to read as scores (default: by known names)",
    )
    column.add_argument(
        "--label-column",
        metavar="NAME",
        help="the column of the file to read as labels, 1 = hallucination (default: by known names)",
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--higher-is-better",
        dest="lower_is_better",
        action="store_false",
        default=None,
        help="high scores are right answers (default)",
    )
    direction.add_argument(
        "--lower-is-better",
        dest="lower_is_better",
        action="store_true",
        default=None,
        help="low scores are right answers",
    )


def _add_extract(commands: argparse._SubParsersAction) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    made = commands.add_parser(
        "extract",
        help="make a store of a model's answers",
        epilog=EXTRACT_EXAMPLES,
        formatter_class=raw,
    )
    made.add_argument("store", metavar="OUT", type=path, help="the store to make")
    made.add_argument(
        "--model",
        metavar="NAME_OR_PATH",
        type=expand,
        required=True,
        help="directory, or name on the Hub",
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
    prompt.add_argument(
        "--chat-template", action="store_true", help="ask in the tokenizer's own chat template"
    )
    running = made.add_argument_group("model")
    running.add_argument(
        "--dtype", choices=("bf16", "fp16", "fp32", "auto"), default="auto", help="(default auto)"
    )
    running.add_argument("--device", help="e.g. cuda:1 (default: cuda if there, else cpu)")
    running.add_argument(
        "--batch-size", type=positive, default=16, help="traces at once (default %(default)s)"
    )
    answers = made.add_argument_group("answers")
    answers.add_argument(
        "--max-new-tokens", type=positive, default=64, help="longest (default %(default)s)"
    )
    answers.add_argument(
        "--stop",
        metavar="TEXT",
        help=r"ends an answer, e.g. '\n' for a model that never does itself",
    )
    answers.add_argument(
        "--num-beams", type=positive, default=1, help="beam search (default %(default)s: greedy)"
    )
    answers.add_argument(
        "--num-samples",
        metavar="K",
        type=positive,
        default=1,
        help="to each question; drawn, or the K best beams",
    )
    answers.add_argument("--temperature", type=finite, help="of what is drawn (default 1)")
    answers.add_argument(
        "--top-p", type=finite, default=1.0, help="draw from this much probability (default 1)"
    )
    answers.add_argument(
        "--seed", type=int, default=0, help="of what is drawn (default %(default)s)"
    )
    kept = made.add_argument_group("what is kept")
    kept.add_argument(
        "--layers",
        type=layers,
        help="as the model numbers them: 8,16,24 or 8-16, -1 the last (default: all)",
    )
    add_columns(kept, " (no attn_: no maps computed)")
    kept.add_argument(
        "--top-k", type=positive, default=10, help="candidates for each token (default %(default)s)"
    )
    kept.add_argument(
        "--labels",
        choices=("exact", "f1", "none"),
        default="exact",
        help="score of an answer (default exact match)",
    )
    add_score_threshold(kept)
    add_ignore_space(kept)
    made.set_defaults(run="extract:run_extract")
