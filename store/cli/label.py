"""`python -m store label`: new labels for the traces of a store, or back to the earlier ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from store.cli import shared_options
from store.cli.arguments import as_called, class_names, finite, path, positive, program, rules
from store.cli.command import Command, flag, option
from store.cli.progress import Progress
from store.errors import SchemaError
from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.grading import Grader
from store.labels.report import one_class_warning, rule_table, verdict_lines
from store.labels.rule import ScoreTable
from store.read.store import TraceStore
from store.reports import count, count_lines, first_ids, say
from store.traces.label_keys import LABEL_NAMES_KEY
from store.traces.notes import notes_path, read_notes
from store.write.build import command_line, is_partial
from store.write.writer import StoreWriter

if TYPE_CHECKING:
    from store.labels.plan import LabelPlan

__all__ = ["Label"]

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

EXAMPLES = f"""\
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
  python -m store label traces.zarr --from-notes --dry-run
  python -m store label traces.zarr --undo
"""


class Label(Command):
    """Give traces of a store scores and labels, from a file or by rules, in one commit."""

    epilog = EXAMPLES
    store: Path = shared_options.STORE
    scores: Path | None = option(
        "scores or labels by trace_id or question_id", "FILE", path, either="source", required=True
    )
    labels: list[str] | None = option(
        "compare the stored answers with the stored references by exact, contains, f1, judge or "
        "none, several separated by commas; see below",
        "RULES",
        rules,
        either="source",
    )
    from_notes: bool = flag(
        "take the labels that were noted on the page, in STORE.notes.csv", either="source"
    )
    undo: bool = flag("restore the scores and labels before the last change", either="source")
    score_column: str | None = shared_options.SCORE_COLUMN
    label_column: str | None = shared_options.LABEL_COLUMN
    higher_is_better: bool = shared_options.HIGHER_IS_BETTER
    lower_is_better: bool = shared_options.LOWER_IS_BETTER
    judge_model: str | None = shared_options.JUDGE_MODEL
    judge_template: str | None = shared_options.JUDGE_TEMPLATE
    batch_size: int = option("answers that the judge reads at once", "N", positive, 16)
    dtype: str = shared_options.dtype("the judge's weights")
    device: str | None = shared_options.device("torch device of the judge")
    score_threshold: float | None = option(
        "label 1 (hallucination) below this score, or above it with --lower-is-better (default: "
        f"{SCORE_THRESHOLD})",
        "S",
        finite,
    )
    replace_all: bool = flag(
        "traces that FILE does not list, or that have no references to compare with, lose score "
        "and label, and labels that came with the answers are replaced by --labels (default: they "
        "keep both)"
    )
    class_names: dict[str, str] | None = option(
        "what the labels 0 and 1 are called where traces are shown, e.g. 'faithful,made up' "
        "(default: as before, at first right,hallucination)",
        "NAMES",
        class_names,
    )
    dry_run: bool = flag("print what would change, and write nothing")

    def run(self) -> int:
        from store.labels.plan import commit_labels

        if is_partial(self.store):
            raise SchemaError(
                f"{self.store}: it is not finished, and its build makes its labels; finish it with "
                f"{command_line(TraceStore.open(self.store))}, then label it"
            )
        table = _read_table(self)
        grader = _build_grader(self)
        if self.dry_run:
            _show_plan(self, table, grader)
            say("dry run: nothing was written")
            return 0
        with StoreWriter.open(self.store) as writer:
            # under the writer's lock: no commit in between
            backup = commit_labels(writer, _show_plan(self, table, grader))
        if backup is None:
            say("nothing changes: nothing was written")
        else:
            undo = f"{program('store')} label {self.store} --undo"
            say(f"the earlier labels are kept in {backup.name}: {undo} brings them back")
        return 0


def _read_table(args: Label) -> ScoreTable | None:
    """Read the file of scores or labels; None for --undo and --labels.

    Refuses options without effect.
    """
    if args.undo:
        judge = ("judge_model", "judge_template")
        if args.given(
            *shared_options.COLUMN_OPTIONS, *judge, "score_threshold", "replace_all", "class_names"
        ):
            raise SchemaError(
                "--undo brings labels back as they were: the only option it takes is --dry-run"
            )
        return None
    table = shared_options.read_given_scores(args)
    if args.from_notes:
        file = notes_path(args.store)
        noted = {name: float(note.label) for name, note in read_notes(file).items() if note.label}
        table = ScoreTable(str(file), "label", "label", by_trace=noted)
    if table is not None and table.kind == "label" and args.score_threshold is not None:
        raise SchemaError(
            f"{table.source}: column {table.column!r} holds labels, for which --score-threshold "
            f"means nothing; leave it out, or add --score-column {table.column} if it holds scores"
        )
    return table


def _build_grader(args: Label) -> Grader | None:
    """The rules of --labels, with the judge loaded; None without."""
    shared_options.check_judge_options(args, args.labels or [])
    if args.labels is None:
        return None
    TraceStore.open(args.store)  # before a model is loaded for nothing
    return Grader(
        args.labels,
        shared_options.score_threshold(args),
        shared_options.load_judge(args, args.labels),
    )


def _plan_rules(args: Label, store: TraceStore, grader: Grader) -> "LabelPlan":
    from store.labels.regrade import plan_rules, stored_cases

    if grader.judge and args.judge_template is not None:
        shared_options.try_judge(grader.judge, stored_cases(store))
    with Progress.of_rows(len(store)) as progress:
        return plan_rules(store, grader, replace_all=args.replace_all, progress=progress)


def _show_plan(args: Label, table: ScoreTable | None, grader: Grader | None) -> "LabelPlan":
    """Plan the change; print how the file was read, what changes, and the labels afterwards."""
    from store.labels.plan import plan_labels, plan_undo

    store = TraceStore.open(args.store)
    if grader is not None:
        plan = _plan_rules(args, store, grader)
        lines = [f"{args.store}: {count(plan.n_listed, 'answer')} labelled by {grader.rules[0]}"]
    elif table is None:
        plan = plan_undo(store)
        lines = [f"{args.store}: back to the labels before the last change"]
    else:
        plan = plan_labels(store, table, replace_all=args.replace_all)
        lines = shared_options.understood_lines(table, plan.examples)
        empty = ("line of the file has no value", "lines of the file have no value")
        lines.append(f"  {count(len(table), 'value')} for {count(plan.n_listed, 'trace')}")
        lines += count_lines([(table.n_empty, *empty)])
    if args.class_names is not None:
        named = {**plan.provenance, LABEL_NAMES_KEY: args.class_names}
        plan = replace(plan, provenance=named)
    new, changed, removed, same = plan.changes
    lines.append(f"  labels: {new:,} new, {changed:,} changed, {removed:,} removed, {same:,} stay")
    lines += count_lines(_changes(args, plan))
    counts = plan.counts
    lines.append(f"{args.store}: {count(len(plan.ids), 'trace')}, {counts.text}")
    lines += count_lines([(counts.n_unlabelled, "without a label")])
    lines += one_class_warning(counts, grader.rules[0] if grader else None)
    lines += rule_table(plan.by_rule)
    lines += verdict_lines(plan.verdicts)
    say(as_called("\n".join(lines)), flush=True)
    return plan


def _changes(args: Label, plan: "LabelPlan") -> Iterator[tuple[int, str, str]]:
    """What becomes of traces and ids, in words for one and for several."""
    yield plan.n_scores_removed, "trace loses its score", "traces lose their score"
    is_missing = "is not listed", "are not listed"
    if args.labels is not None:
        is_missing = "is without references", "are without references"
    ends = " and keeps its label", " and keep their labels"
    if args.replace_all:
        ends = ": its label is removed", ": their labels are removed"
    n_others = len(plan.ids) - plan.n_listed
    yield n_others, f"trace {is_missing[0]}{ends[0]}", f"traces {is_missing[1]}{ends[1]}"
    shown = first_ids(plan.unmatched)
    texts = f"id of the file fits no trace: {shown}", f"ids of the file fit no trace: {shown}"
    yield len(plan.unmatched), *texts
