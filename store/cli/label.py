"""`python -m store label` and `export`, and how files of scores are read."""

import argparse
from pathlib import Path

from store.cli.progress import Progress
from store.errors import SchemaError
from store.read.store import TraceStore
from store.reports import count, count_lines
from store.sources.copies import read_ids, rows_of_ids
from store.sources.export import export_table
from store.sources.labels import SCORE_THRESHOLD, one_class_warning
from store.sources.relabel import LabelPlan, commit_labels, plan_labels, plan_undo
from store.sources.scores import ScoreTable, read_scores
from store.write.build import command_line, is_partial
from store.write.writer import StoreWriter

__all__ = ["outcome_lines", "read_given_scores", "run_export", "run_label", "understood_lines"]

N_SHOWN = 3  # ids that are named of those that fit nothing


def read_given_scores(args: argparse.Namespace) -> ScoreTable | None:
    """The file of `--scores`, read as `read_scores` says; None if there is none.

    Raises SchemaError if it is said how a file is read that is not given.
    """
    if args.scores is not None:
        return read_scores(
            args.scores,
            score_column=args.score_column,
            label_column=args.label_column,
            lower_is_better=args.lower_is_better,
        )
    given = _given_columns(args)
    if given:
        raise SchemaError(f"{given[0]} says how a file of scores is read: give it with --scores")
    return None


def understood_lines(table: ScoreTable, threshold: float) -> list[str]:
    """How a file of scores was read, with its first values; one line each."""
    by_trace = [("trace_id", *item) for item in table.by_trace.items()]
    by_question = [("question_id", *item) for item in table.by_question.items()]
    examples = [
        table.example(f"{column} {name}", value, threshold)
        for column, name, value in [*by_trace, *by_question][:N_SHOWN]
    ]
    return [f"{table.source}: {table.understood(threshold)}", *(f"  {line}" for line in examples)]


def outcome_lines(store: TraceStore) -> list[str]:
    """How many traces are labelled how, and a warning where nearly all are the same."""
    if "label" not in store.schema.columns:
        return []
    labels = store.column("label")
    n_wrong, n_right = int((labels == 1).sum()), int((labels == 0).sum())
    lines = [f"  labels: {n_wrong:,} of hallucinations, {n_right:,} right"]
    warning = one_class_warning(n_right, n_wrong)
    return lines if warning is None else [*lines, warning]


def _given_columns(args: argparse.Namespace) -> list[str]:
    """The options on how a file of scores is read that were given."""
    direction = "--lower-is-better" if args.lower_is_better else "--higher-is-better"
    values = {
        "--score-column": args.score_column,
        "--label-column": args.label_column,
        direction: args.lower_is_better,
    }
    return [option for option, value in values.items() if value is not None]


def run_label(args: argparse.Namespace) -> int:
    """Label, or undo; with --dry-run say what that would do."""
    if is_partial(args.store):
        raise SchemaError(
            f"{args.store}: it is not finished, and its labels are made with it; label it when it is: "
            f"{command_line(TraceStore.open(args.store))}"
        )
    table = _read_table(args)
    if args.dry_run:
        plan = _plan(args, table, TraceStore.open(args.store))
        print(_plan_text(args, table, plan))
        print("dry run: nothing was written")
        return 0
    with StoreWriter.open(args.store) as writer:
        store = TraceStore.open(args.store)  # under the writer's lock: nothing is committed between
        plan = _plan(args, table, store)
        print(_plan_text(args, table, plan), flush=True)
        backup = commit_labels(writer, plan)
    print(_result_text(args.store, backup))
    return 0


def _read_table(args: argparse.Namespace) -> ScoreTable | None:
    """The file of scores or labels; None for --undo, which takes none. Refuses options without
    effect."""
    if args.undo:
        _check_undo(args)
        return None
    table = read_given_scores(args)
    if table.kind == "label" and args.score_threshold is not None:
        raise SchemaError(
            f"{args.scores}: column {table.column!r} holds labels, for which --score-threshold means nothing; "
            f"leave it out, or add --score-column {table.column} if it holds scores"
        )
    return table


def _check_undo(args: argparse.Namespace) -> None:
    """Raise SchemaError if an option is given that --undo would pass over."""
    if _given_columns(args) or args.score_threshold is not None or args.replace_all:
        raise SchemaError(
            "--undo brings labels back as they were: of the other options it takes --dry-run only"
        )


def _threshold(args: argparse.Namespace) -> float:
    """The threshold that was given, or the default."""
    return SCORE_THRESHOLD if args.score_threshold is None else args.score_threshold


def _plan(args: argparse.Namespace, table: ScoreTable | None, store: TraceStore) -> LabelPlan:
    """What the command makes of the store's labels."""
    if table is None:
        return plan_undo(store)
    return plan_labels(store, table, _threshold(args), replace_all=args.replace_all)


def _plan_text(args: argparse.Namespace, table: ScoreTable | None, plan: LabelPlan) -> str:
    """What was understood, what changes, and what the store holds then."""
    lines = [f"{args.store}: back to the labels before the last change"]
    if table is not None:
        lines = [f"{args.scores}: {table.understood(_threshold(args))}"]
        lines += [f"  {example}" for example in plan.examples]
        lines.append(f"  {count(len(table), 'value')} for {count(int(plan.listed.sum()), 'trace')}")
        lines += _counted(
            table.n_empty, "line of the file has no value", "lines of the file have no value"
        )
    lines += _change_lines(plan)
    n_traces = len(plan.ids)
    lines.append(
        f"{args.store}: {n_traces:,} traces, {plan.n_wrong:,} hallucinations, {plan.n_right:,} right"
    )
    lines += count_lines([(plan.n_unlabelled, "without a label")])
    warning = one_class_warning(plan.n_right, plan.n_wrong)
    if warning is not None:
        lines.append(warning)
    return "\n".join(lines)


def _change_lines(plan: LabelPlan) -> list[str]:
    """How many labels change, and which traces and ids have no counterpart."""
    changes = plan.changes
    lines = [
        f"  labels: {changes.new:,} new, {changes.changed:,} changed, "
        f"{changes.removed:,} removed, {changes.same:,} stay"
    ]
    lines += _counted(plan.n_scores_removed, "trace loses its score", "traces lose their score")
    n_others = len(plan.ids) - int(plan.listed.sum())
    if plan.replace_all:
        one, many = (
            "trace is not listed: its label is removed",
            "traces are not listed: their labels are removed",
        )
    else:
        one, many = (
            "trace is not listed and keeps its label",
            "traces are not listed and keep their labels",
        )
    lines += _counted(n_others, one, many)
    shown = ", ".join(f"{name!r:.60}" for name in plan.unmatched[:N_SHOWN])
    one, many = f"id of the file fits no trace: {shown}", f"ids of the file fit no trace: {shown}"
    lines += _counted(len(plan.unmatched), one, many)
    return lines


def _counted(n: int, one: str, many: str) -> list[str]:
    """A line with a count and the words for one or for many; none for 0."""
    return count_lines([(n, one if n == 1 else many)])


def _result_text(store: Path, backup: Path | None) -> str:
    """What was written, and how to take it back."""
    if backup is None:
        return "nothing changes: nothing was written"
    undo = f"python -m store label {store} --undo"
    return f"the labels before are kept in {backup.name}: {undo} brings them back"


def run_export(args: argparse.Namespace) -> int:
    """Export."""
    store = TraceStore.open(args.store, check=True)
    rows = range(len(store))
    if args.ids is not None:
        rows = rows_of_ids(store, read_ids(args.ids))
    with Progress(lambda done: done / max(1, len(rows))) as progress:
        columns = export_table(
            store, args.to, args.columns, rows, overwrite=args.overwrite, progress=progress
        )
    print(f"{args.to}: {len(rows):,} traces, columns {', '.join(columns)}")
    return 0
