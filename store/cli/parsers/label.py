"""Arguments of `python -m store label` and `export`."""

from store.cli.arguments import (
    Commands,
    add_judge,
    add_score_columns,
    add_store,
    finite,
    names,
    path,
    positive,
    rules,
)
from store.labels.answer_scores import SCORE_THRESHOLD

__all__ = ["add_export", "add_label"]

READING = """\
FILE is CSV with a header (comma, semicolon or tab) or JSON lines. Columns are found by name:
  trace_id      the value is of this trace
  question_id   the value is of all traces of this question; a line that has a trace_id as well
                is of that trace alone
  score, bleurt_score, bleurt, rouge_l, rougel
                a score, higher is better: label 1 (hallucination) below --score-threshold, else 0
  label, is_hallucination, hallucination
                a label: 1 or true = hallucination, 0 or false = right, -1 = unlabelled
FILE must have exactly one column of scores or labels; if it has more, choose one with
--score-column or --label-column. A column where 1 means right is a score: --score-column correct.
Empty values are skipped. If the store has no question ids, those of FILE are compared with its
trace ids."""

LABEL_EXAMPLES = f"""\
{READING}

Traces that FILE does not list keep score and label, unless --replace-all. A trace that is given a
label loses its score, so that python -m train --score-threshold leaves it unlabelled. Scores of
which lower is better are stored negated: in every store label = 1 iff score < threshold. As
python -m train --score-threshold is compared with the stored scores, negate it too. If no id of
FILE is in the store, nothing is changed.

--labels compares the columns answer and references of the store; the rules are those of
python -m store extract --help. score and label are of the first rule, and several rules also give
a column label_RULE each, in which traces without references are -1. --undo brings score and label
back; the columns of the rules stay. A judge is a causal model of Hugging Face, which reads
question, references and answer and is asked for one of two words. The more probable word is the
verdict; -1 where both have little probability, or where it calls an exact match wrong. The
provenance keeps its prompt, its checksums and how often it said what. A judge that is stopped
leaves the store as it was.

How FILE was understood, and how many labels change, is printed before anything is written. The
scores and labels that are replaced are kept beside the store, in
STORE.labels-ID-GENERATION.csv; --undo restores those before the last change, and a second --undo
takes that back.

examples:
  python -m store label traces.zarr --scores ground_truth_scores.csv
  python -m store label traces.zarr --scores bleurt.csv --score-threshold 0.4 --dry-run
  python -m store label traces.zarr --scores judged.csv --label-column wrong
  python -m store label traces.zarr --scores ppl.csv --score-column ppl --lower-is-better \\
      --score-threshold 20
  python -m store label traces.zarr --labels contains --dry-run
  python -m store label traces.zarr --labels contains,judge --judge-model Qwen/Qwen2.5-7B-Instruct
  python -m store label traces.zarr --undo
"""

EXPORT_EXAMPLES = """\
trace_id is always written, and question_id if the store has it. Columns of one number or one text
in each row can be exported; arrays (hidden states, attention) cannot. A missing score (NaN) is an
empty cell in CSV and null in JSON lines. references is a JSON list: as text in CSV and Parquet, as
a list in JSON lines. FILE is written whole or not at all. Parquet needs pyarrow.

To have the answers judged: export them, add a column "score" (higher is better) or "label"
(1 = hallucination) to the file, and give it to python -m store label. By its trace_id each sample
of a question is scored by itself.

examples:
  python -m store export traces.zarr --columns question,answer,references --to answers.csv
  python -m store export traces.zarr --columns answer,score --ids ids.txt --to few.jsonl
  python -m store label traces.zarr --scores answers_judged.csv
"""


def add_label(commands: Commands) -> None:
    parser = commands.add_parser(
        "label",
        help="score and label the traces of a store, or undo that",
        description="Give traces of a store scores and labels, from a file or by rules, in one "
        "commit.",
        epilog=LABEL_EXAMPLES,
    )
    add_store(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--scores", metavar="FILE", type=path, help="scores or labels by trace_id or question_id"
    )
    source.add_argument(
        "--labels",
        metavar="RULES",
        type=rules,
        help="compare the stored answers with the stored references by exact, contains, f1, judge "
        "or none, several separated by commas; see below",
    )
    source.add_argument(
        "--undo", action="store_true", help="restore the scores and labels before the last change"
    )
    add_score_columns(parser)
    add_judge(parser)
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=positive,
        default=16,
        help="answers that the judge reads at once (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("bf16", "fp16", "fp32", "auto"),
        default="auto",
        help="dtype of the judge's weights; auto: as in the checkpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        help="torch device of the judge, e.g. cuda:1 (default: cuda if there is one, else cpu)",
    )
    parser.add_argument(
        "--score-threshold",
        metavar="S",
        type=finite,
        help="label 1 (hallucination) below this score, or above it with --lower-is-better "
        f"(default: {SCORE_THRESHOLD})",
    )
    parser.add_argument(
        "--replace-all",
        action="store_true",
        help="traces that FILE does not list, or that have no references to compare with, lose "
        "score and label, and labels that came with the answers are replaced by --labels "
        "(default: they keep both)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would change, and write nothing"
    )


def add_export(commands: Commands) -> None:
    parser = commands.add_parser(
        "export",
        help="write texts and numbers of traces to a CSV, JSON lines or Parquet file",
        description="Write columns of a store to a table, one line for each trace.",
        epilog=EXPORT_EXAMPLES,
    )
    add_store(parser)
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        type=names,
        help="columns to write, separated by commas, e.g. question,answer,references "
        "(default: all that can be exported)",
    )
    parser.add_argument(
        "--to",
        metavar="FILE",
        type=path,
        required=True,
        help="the file to write; its ending chooses the format: .csv, .jsonl or .parquet",
    )
    parser.add_argument(
        "--ids",
        metavar="FILE",
        type=path,
        help="trace ids to write, one a line, in the order wanted (default: all)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace FILE if it exists (default: refuse)"
    )
    parser.add_argument(
        "--escape-formulas",
        action="store_true",
        help="put ' before texts in a CSV that a spreadsheet would run as a formula, those that "
        "begin with = + - @, a tab or a carriage return (default: texts as they are)",
    )
