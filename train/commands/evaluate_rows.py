"""Which rows of a store are a test of a run: those that it has learned nothing from. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.labels.rule import UNLABELLED
from store.reports import count
from train.run.results import FinishedRun, Texts

__all__ = ["Rows", "Rules", "choose_rows", "describe_choice"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rules:
    """Which rows and stores count.

    Attributes
    ----------
    force : bool
        Also test on traces of another model, other layers or other prompts.
    only_new : bool
        Leave out rows whose question is one of the run's train or validation split.
    unrelated_ids : bool
        Equal ids of a run and of another store are a coincidence, and say nothing.
    """

    force: bool = False
    only_new: bool = False
    unrelated_ids: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of a store that judge a run, and why others do not.

    Attributes
    ----------
    rows : int64 (n,)
        Ascending.
    is_own : bool
        Whether the store is the run's own: the rows are its test split.
    n_unlabelled, n_seen, n_added : int
        Rows that are left out: without a label; of the run's train or validation split; of the
        run's own store, but added after it or not drawn by it.
    n_shared : int
        Other rows whose question is in the run's train or validation split.
    shared_left_out : bool
        Whether those are left out.
    """

    rows: Integers
    is_own: bool
    n_unlabelled: int
    n_seen: int = 0
    n_added: int = 0
    n_shared: int = 0
    shared_left_out: bool = False


def choose_rows(
    run: FinishedRun,
    trace_ids: Texts,
    questions: Texts,
    labels: Integers,
    is_own: bool,
    rules: Rules,
) -> Rows:
    """The labelled rows of a store that a run has not learned from, nor chosen anything by. Pure.

    Of the run's own store they are its test split. Of another store a row with the trace id and
    the question id of one of the run's train or validation split is that row, and is left out;
    rows that share the question alone are counted, and left out if the rules say so.

    `trace_ids`, `questions` and `labels`, int64, -1 where unlabelled, are of all rows of the store,
    and `is_own` says whether the run was trained on it.
    """
    is_labelled = labels != UNLABELLED
    n_unlabelled = int(np.sum(~is_labelled))
    if is_own:
        split_by_id = dict(zip(run.trace_ids, run.row_splits, strict=True))
        splits = np.array([split_by_id.get(trace_id, "") for trace_id in trace_ids], dtype=object)
        is_seen = is_labelled & np.isin(splits, ("train", "val"))
        is_added = is_labelled & (splits == "")
        rows = np.flatnonzero(is_labelled & (splits == "test"))
        return Rows(rows, True, n_unlabelled, int(is_seen.sum()), int(is_added.sum()))
    if rules.unrelated_ids:
        return Rows(np.flatnonzero(is_labelled), False, n_unlabelled)
    was_used = run.row_splits != "test"
    used_rows = set(zip(run.trace_ids[was_used], run.questions[was_used], strict=True))
    used_questions = set(run.questions[was_used])
    pairs = zip(trace_ids, questions, strict=True)
    is_seen = is_labelled & np.array([pair in used_rows for pair in pairs], dtype=bool)
    is_known = np.array([question in used_questions for question in questions], dtype=bool)
    is_shared = is_labelled & ~is_seen & is_known
    is_kept = is_labelled & ~is_seen
    if rules.only_new:
        is_kept &= ~is_shared
    return Rows(
        rows=np.flatnonzero(is_kept),
        is_own=False,
        n_unlabelled=n_unlabelled,
        n_seen=int(is_seen.sum()),
        n_shared=int(is_shared.sum()),
        shared_left_out=rules.only_new,
    )


def describe_choice(chosen: Rows) -> list[str]:
    """Sentences on the rows that count, and on those that do not."""
    remarks = []
    if chosen.is_own:
        remarks.append(
            "the run's own store: its test split; left out "
            f"{count(chosen.n_seen, 'trace')} of its train and validation splits"
        )
        if chosen.n_added:
            remarks.append(
                f"left out {count(chosen.n_added, 'trace')} that the run did not use: added or "
                "labelled later, or not drawn by --max-traces"
            )
    elif chosen.n_seen:
        remarks.append(
            f"left out {count(chosen.n_seen, 'trace')} with the ids of a trace of the run's train "
            "or validation split (--unrelated-ids if the ids are equal by chance)"
        )
    if chosen.n_shared and chosen.shared_left_out:
        remarks.append(
            f"left out {count(chosen.n_shared, 'trace')} of questions that the run was trained or "
            "tuned on"
        )
    elif chosen.n_shared:
        remarks.append(
            f"warning: {count(chosen.n_shared, 'trace')} of questions that the run was trained or "
            "tuned on are among the judged (--only-new leaves them out)"
        )
    if chosen.n_unlabelled:
        remarks.append(f"left out {count(chosen.n_unlabelled, 'trace')} without a label")
    return remarks
