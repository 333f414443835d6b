"""`python -m store label`: new labels for the traces of a store, or back to the earlier ones."""

import argparse

from store.cli.arguments import as_called, program
from store.cli.judge import check_judge_options, load_judge
from store.cli.progress import Progress
from store.cli.scores import column_options, read_given_scores, understood_lines
from store.errors import SchemaError
from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.grading import Grader, check_judge
from store.labels.plan import LabelPlan, plan_labels, plan_undo
from store.labels.regrade import plan_rules, stored_cases
from store.labels.relabel import commit_labels
from store.labels.report import one_class_warning, rule_table, verdict_lines
from store.labels.score_table import ScoreTable
from store.read.store import TraceStore
from store.reports import count, count_lines, first_ids, say
from store.write.build import command_line, is_partial
from store.write.writer import StoreWriter

__all__ = ["run_label"]


def run_label(args: argparse.Namespace) -> int:
    """Label, or undo; with --dry-run print what that would do."""
    if is_partial(args.store):
        raise SchemaError(
            f"{args.store}: it is not finished, and its build makes its labels; finish it with "
            f"{command_line(TraceStore.open(args.store))}, then label it"
        )
    table = _read_table(args)
    grader = _build_grader(args)
    if args.dry_run:
        _show_plan(args, table, grader)
        say("dry run: nothing was written")
        return 0
    with StoreWriter.open(args.store) as writer:
        # under the writer's lock: no commit in between
        backup = commit_labels(writer, _show_plan(args, table, grader))
    if backup is None:
        say("nothing changes: nothing was written")
    else:
        undo = f"{program('store')} label {args.store} --undo"
        say(f"the earlier labels are kept in {backup.name}: {undo} brings them back")
    return 0


def _read_table(args: argparse.Namespace) -> ScoreTable | None:
    """Read the file of scores or labels; None for --undo and --labels.

    Refuses options without effect.
    """
    if args.undo:
        judge = args.judge_model or args.judge_template
        others = args.score_threshold is not None or args.replace_all or judge
        if column_options(args) or others:
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


def _build_grader(args: argparse.Namespace) -> Grader | None:
    """The rules of --labels, with the judge loaded; None without."""
    check_judge_options(args, args.labels or [])
    if args.labels is None:
        return None
    TraceStore.open(args.store)  # before a model is loaded for nothing
    return Grader(args.labels, _threshold(args), load_judge(args, args.labels))


def _threshold(args: argparse.Namespace) -> float:
    return SCORE_THRESHOLD if args.score_threshold is None else float(args.score_threshold)


def _plan_rules(args: argparse.Namespace, store: TraceStore, grader: Grader) -> LabelPlan:
    if grader.judge and args.judge_template is not None:
        check_judge(grader.judge, stored_cases(store))
    with Progress(lambda done: done / max(1, len(store))) as progress:
        return plan_rules(store, grader, replace_all=args.replace_all, progress=progress)


def _show_plan(
    args: argparse.Namespace, table: ScoreTable | None, grader: Grader | None
) -> LabelPlan:
    """Plan the change; print how the file was read, what changes, and the labels afterwards."""
    store = TraceStore.open(args.store)
    if grader is not None:
        plan = _plan_rules(args, store, grader)
        lines = [f"{args.store}: {count(plan.n_listed, 'answer')} labelled by {grader.rules[0]}"]
    elif table is None:
        plan = plan_undo(store)
        lines = [f"{args.store}: back to the labels before the last change"]
    else:
        threshold = _threshold(args)
        plan = plan_labels(store, table, threshold, replace_all=args.replace_all)
        lines = understood_lines(table, plan.examples, threshold)
        lines.append(f"  {count(len(table), 'value')} for {count(plan.n_listed, 'trace')}")
        lines += _counted(
            table.n_empty, "line of the file has no value", "lines of the file have no value"
        )
    lines += _change_lines(args, plan)
    counts = plan.counts
    lines.append(f"{args.store}: {count(len(plan.ids), 'trace')}, {counts.text}")
    lines += count_lines([(counts.n_unlabelled, "without a label")])
    lines += one_class_warning(counts, grader.rules[0] if grader else None)
    lines += rule_table(plan.by_rule)
    lines += verdict_lines(plan.verdicts)
    say(as_called("\n".join(lines)), flush=True)
    return plan


def _change_lines(args: argparse.Namespace, plan: LabelPlan) -> list[str]:
    new, changed, removed, same = plan.changes
    lines = [
        f"  labels: {new:,} new, {changed:,} changed, {removed:,} removed, {same:,} stay",
    ]
    lines += _counted(plan.n_scores_removed, "trace loses its score", "traces lose their score")
    n_others = len(plan.ids) - plan.n_listed
    missing = "not listed" if args.labels is None else "without references"
    if args.replace_all:
        one = f"trace is {missing}: its label is removed"
        several = f"traces are {missing}: their labels are removed"
    else:
        one = f"trace is {missing} and keeps its label"
        several = f"traces are {missing} and keep their labels"
    lines += _counted(n_others, one, several)
    shown = first_ids(plan.unmatched)
    lines += _counted(
        len(plan.unmatched),
        f"id of the file fits no trace: {shown}",
        f"ids of the file fit no trace: {shown}",
    )
    return lines


def _counted(n: int, singular: str, plural: str) -> list[str]:
    """A line with a count and the words for one or for several; none for 0."""
    return count_lines([(n, singular if n == 1 else plural)])
