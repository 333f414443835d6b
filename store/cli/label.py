"""`python -m store label`: new labels for the traces of a store, or back to the earlier ones."""

import argparse
from pathlib import Path

from store.cli.scores import column_options, read_given_scores, understood_lines
from store.errors import SchemaError
from store.read.store import TraceStore
from store.reports import count, count_lines
from store.sources.answer_scores import SCORE_THRESHOLD
from store.sources.label_plan import LabelPlan, plan_labels, plan_undo
from store.sources.labels import one_class_warning
from store.sources.relabel import commit_labels
from store.sources.score_table import ScoreTable
from store.write.build import command_line, is_partial
from store.write.writer import StoreWriter

__all__ = ["run_label"]

N_SHOWN = 3  # ids that are named of those that fit no trace


def run_label(args: argparse.Namespace) -> int:
    """Label, or undo; with --dry-run print what that would do."""
    if is_partial(args.store):
        raise SchemaError(
            f"{args.store}: it is not finished, and its build makes its labels; finish it with "
            f"{command_line(TraceStore.open(args.store))}, then label it"
        )
    table = _read_table(args)
    if args.dry_run:
        plan = _plan(args, table, TraceStore.open(args.store))
        print("\n".join(_plan_lines(args, table, plan)))
        print("dry run: nothing was written")
        return 0
    with StoreWriter.open(args.store) as writer:
        store = TraceStore.open(args.store)  # under the writer's lock: no commit in between
        plan = _plan(args, table, store)
        print("\n".join(_plan_lines(args, table, plan)), flush=True)
        backup = commit_labels(writer, plan)
    print(_result_text(args.store, backup))
    return 0


def _read_table(args: argparse.Namespace) -> ScoreTable | None:
    """Read the file of scores or labels; None for --undo. Refuses options without effect."""
    if args.undo:
        if column_options(args) or args.score_threshold is not None or args.replace_all:
            raise SchemaError(
                "--undo brings labels back as they were: the only option it takes is --dry-run"
            )
        return None
    table = read_given_scores(args)
    if table is not None and table.kind == "label" and args.score_threshold is not None:
        raise SchemaError(
            f"{args.scores}: column {table.column!r} holds labels, for which --score-threshold "
            f"means nothing; leave it out, or add --score-column {table.column} if it holds scores"
        )
    return table


def _threshold(args: argparse.Namespace) -> float:
    """The threshold that was given, or the default."""
    return SCORE_THRESHOLD if args.score_threshold is None else args.score_threshold


def _plan(args: argparse.Namespace, table: ScoreTable | None, store: TraceStore) -> LabelPlan:
    """The change that the command makes."""
    if table is None:
        return plan_undo(store)
    return plan_labels(store, table, _threshold(args), replace_all=args.replace_all)


def _plan_lines(args: argparse.Namespace, table: ScoreTable | None, plan: LabelPlan) -> list[str]:
    """How the file was read, what changes, and the labels after the change."""
    if table is None:
        lines = [f"{args.store}: back to the labels before the last change"]
    else:
        lines = understood_lines(table, plan.examples, _threshold(args))
        lines.append(f"  {count(len(table), 'value')} for {count(plan.n_listed, 'trace')}")
        lines += _counted(
            table.n_empty, "line of the file has no value", "lines of the file have no value"
        )
    lines += _change_lines(args, plan)
    counts = plan.counts
    lines.append(f"{args.store}: {count(len(plan.ids), 'trace')}, {counts.text}")
    lines += count_lines([(counts.n_unlabelled, "without a label")])
    return lines + one_class_warning(counts)


def _change_lines(args: argparse.Namespace, plan: LabelPlan) -> list[str]:
    """How many labels change, and which traces and ids have no counterpart."""
    new, changed, removed, same = plan.changes
    lines = [
        f"  labels: {new:,} new, {changed:,} changed, {removed:,} removed, {same:,} stay",
    ]
    lines += _counted(plan.n_scores_removed, "trace loses its score", "traces lose their score")
    n_others = len(plan.ids) - plan.n_listed
    if args.replace_all:
        lines += _counted(
            n_others,
            "trace is not listed: its label is removed",
            "traces are not listed: their labels are removed",
        )
    else:
        lines += _counted(
            n_others,
            "trace is not listed and keeps its label",
            "traces are not listed and keep their labels",
        )
    shown = ", ".join(f"{name!r:.60}" for name in plan.unmatched[:N_SHOWN])
    lines += _counted(
        len(plan.unmatched),
        f"id of the file fits no trace: {shown}",
        f"ids of the file fit no trace: {shown}",
    )
    return lines


def _counted(n: int, singular: str, plural: str) -> list[str]:
    """A line with a count and the words for one or for several; none for 0."""
    return count_lines([(n, singular if n == 1 else plural)])


def _result_text(store: Path, backup: Path | None) -> str:
    """What was written, and how to undo it."""
    if backup is None:
        return "nothing changes: nothing was written"
    undo = f"python -m store label {store} --undo"
    return f"the earlier labels are kept in {backup.name}: {undo} brings them back"
