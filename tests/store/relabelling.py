"""Labels of a store, changed and brought back as `store label` does, without its printing."""

from collections.abc import Mapping
from pathlib import Path

from store import StoreWriter, TraceStore
from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.plan import LabelPlan, commit_labels, plan_labels, plan_undo
from store.labels.rule import ScoreTable


def set_labels(
    path: Path, table: ScoreTable | Mapping[str, float], threshold: float = SCORE_THRESHOLD
) -> LabelPlan:
    """Label the traces of a store by a table, or by question id -> score."""
    given = table
    if not isinstance(table, ScoreTable):
        given = ScoreTable("scores", threshold=threshold, by_question=table)
    with StoreWriter.open(path) as writer:
        plan = plan_labels(TraceStore.open(path), given)
        commit_labels(writer, plan)
    return plan


def undo_labels(path: Path) -> LabelPlan:
    """Bring back the labels before the last change."""
    with StoreWriter.open(path) as writer:
        plan = plan_undo(TraceStore.open(path))
        commit_labels(writer, plan)
    return plan
