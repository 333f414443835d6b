"""New labels for a store: what a file of scores changes, and what an undo brings back.

They are planned, which writes nothing, then committed; what is replaced is saved first, see
`backup`.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.errors import FormatError, LockedError, NotFoundError, SchemaError
from store.format.schema import TRACE_ID, Column, Schema
from store.labels.backup import Backup, read_backup, write_backup
from store.labels.grading import LABEL_OF_RULE, label_column_name
from store.labels.report import LabelCounts
from store.labels.rule import UNLABELLED, Labels, ScoreTable, is_given
from store.read.questions import QUESTION_ID, read_texts
from store.read.store import TraceStore
from store.reports import first_ids
from store.traces.label_keys import (
    LABEL_KEYS,
    LABEL_NAMES_KEY,
    LABEL_RULES_KEY,
    LABELS_BEFORE,
    RULE_BEFORE_KEY,
    RULE_KEY,
    THRESHOLD_KEY,
)
from store.traces.origin import records_of
from store.write.writer import StoreWriter

__all__ = ["LabelPlan", "commit_labels", "plan_labels", "plan_undo", "read_labels"]

WIDE = ("float64", "int32", "int64", "uint32", "uint64")  # have values that float32 rounds
SIGNED = ("int8", "int16", "int32", "int64")


@dataclass
class LabelPlan:
    """The labels of a store as they are, and as they are to be."""

    store: TraceStore  # as it was when this was planned
    ids: Sequence[str]
    old: Labels
    new: Labels
    n_listed: int  # traces that were given a value
    provenance: Mapping[str, Any]  # after the change, without the record of the backup
    examples: Sequence[str] = ()  # a line each of the first ids that fit: what their values make
    unmatched: Sequence[str] = ()  # ids of the file that fit no trace
    undone: Backup | None = None  # the labels that are brought back, if this undoes a change
    # rule -> labels int64 (n_rows,), where several made them: each gets a column `label_RULE`
    by_rule: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    verdicts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        old, new = self.old, self.new
        was_labelled, is_labelled = old.labels != UNLABELLED, new.labels != UNLABELLED
        is_equal = old.labels == new.labels
        kinds = [
            ~was_labelled & is_labelled,
            was_labelled & is_labelled & ~is_equal,
            was_labelled & ~is_labelled,
            was_labelled & is_equal,
        ]
        # how many labels are new, become another, are removed, and stay
        self.changes = [int(kind.sum()) for kind in kinds]
        self.counts = LabelCounts.of(new.labels)
        self.n_scores_removed = int((~np.isnan(old.scores) & np.isnan(new.scores)).sum())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """What is written: the values `(n_rows,)` of each column; scores as the store has them."""
        score = self.new.scores.astype(label_columns(self.store.schema)["score"].dtype)
        of_rules = {label_column_name(rule): labels for rule, labels in self.by_rule.items()}
        return {"score": score, "label": self.new.labels, **of_rules}

    @property
    def is_needed(self) -> bool:
        """Whether anything differs from what the store has."""
        store = self.store
        keys = (
            RULE_KEY,
            THRESHOLD_KEY,
            LABEL_RULES_KEY,
            LABEL_NAMES_KEY,
        )  # not the rule of earlier labels
        if any(self.provenance.get(key) != store.provenance.get(key) for key in keys):
            return True
        columns = self.columns
        if not columns.keys() <= store.schema.columns.keys():
            return True
        before = {name: store.column_array(name) for name in columns}
        before |= {"score": self.old.scores, "label": self.old.labels}
        return any(
            not np.array_equal(before[name], values, equal_nan=True)
            for name, values in columns.items()
        )


def plan_labels(
    store: TraceStore,
    table: ScoreTable,
    *,
    replace_all: bool = False,
) -> LabelPlan:
    """Plan the labels that a file of scores or labels gives a store; nothing is written.

    In a store without a column `question_id`, the file's question ids are compared with trace ids.
    With `replace_all`, rows that the file does not list lose score and label; else they keep both.

    Raises NotFoundError: no id of the file is one of the store; FormatError: the file holds no
    value; SchemaError: it has a trace under another question, or another scale than the scores that
    stay.
    """
    ids = read_texts(store, TRACE_ID)
    questions = read_texts(store, QUESTION_ID) if QUESTION_ID in store.schema.columns else ids
    fitting = table.restrict(set(ids), set(questions))
    _check_match(store, table, fitting, ids, questions)
    _check_questions(table, ids, questions)
    old = read_labels(store)
    new = old.copy()
    if replace_all:
        new.scores.fill(math.nan)
        new.labels.fill(UNLABELLED)
    values = list(map(table.value_of, ids, questions))
    others = np.array([value is None for value in values], np.bool_)
    given = [value for value in values if value is not None]
    new.scores[~others], new.labels[~others] = table.label(given)
    _check_scale(store, table, new.scores[others])
    unmatched = [name for name in table.by_trace if name not in fitting.by_trace]
    unmatched += [name for name in table.by_question if name not in fitting.by_question]
    provenance = _new_provenance(store.provenance, table, new.labels[others], len(ids))
    return LabelPlan(store, ids, old, new, len(given), provenance, fitting.examples, unmatched)


def _check_match(
    store: TraceStore,
    table: ScoreTable,
    fitting: ScoreTable,
    ids: Sequence[str],
    questions: Sequence[str],
) -> None:
    """Raise unless an id of the file is one of the store; the message shows the first of each."""
    if not len(table):
        raise FormatError(f"{table.source}: expected values in column {table.column!r}, found none")
    if len(fitting):
        return
    shown = [
        f"{name} {first_ids(given)} in the file, {first_ids(dict.fromkeys(stored))} in the store"
        for name, given, stored in (
            (TRACE_ID, table.by_trace, ids),
            (QUESTION_ID, table.by_question, questions),
        )
        if given
    ]
    raise NotFoundError(
        f"{table.source}: none of its {len(table):,} ids is in {store.path}: "
        f"{'; '.join(shown)}; nothing was changed"
    )


def _check_questions(table: ScoreTable, ids: Sequence[str], questions: Sequence[str]) -> None:
    """Raise SchemaError if the file has a trace under another question: its lines are shifted."""
    for trace_id, question_id in zip(ids, questions, strict=True):
        given = table.questions.get(trace_id)
        if given and given != question_id:
            raise SchemaError(
                f"{table.source}: trace {trace_id!r:.60} is of question {question_id!r:.60} in the "
                f"store, and of {given!r:.60} in the file: its lines are shifted; correct them, or "
                "leave the column question_id out"
            )


def _check_scale(store: TraceStore, table: ScoreTable, kept: NDArray[np.float64]) -> None:
    """Raise SchemaError if scores that stay have another threshold: a column has one scale."""
    after = table.stored_threshold
    others = sorted(_thresholds(store.provenance) - {after})
    n_kept = int((~np.isnan(kept)).sum())
    if table.kind == "score" and n_kept and others:
        before = " and ".join(f"{threshold:g}" for threshold in others)
        raise SchemaError(
            f"{store.path}: {n_kept:,} traces that the file does not list keep scores whose "
            f"threshold is {before}, and these are stored with {after:g}: one column cannot hold "
            "both; give the same --score-threshold, scores of all traces, or --replace-all"
        )


def _thresholds(provenance: Mapping[str, object]) -> set[float]:
    """The thresholds of a store's scores: several of a merged store's, where its parts differ."""
    found = (record.get(THRESHOLD_KEY) for record in records_of(provenance))
    return {threshold for threshold in found if isinstance(threshold, int | float)}


def _new_provenance(
    old: Mapping[str, Any],
    table: ScoreTable,
    other_labels: NDArray[np.int64],
    n_rows: int,
) -> dict[str, Any]:
    """The provenance with the rule of the new labels, and of those that other rows keep."""
    new = {key: value for key, value in old.items() if key not in LABEL_KEYS}
    new[RULE_KEY] = table.rule
    if np.any(other_labels != UNLABELLED):
        n_listed = n_rows - len(other_labels)
        new[RULE_KEY] += f"; of {n_listed:,} of {n_rows:,} traces, the others keep their labels"
        thresholds = _thresholds(old)
        if len(thresholds) == 1:
            [new[THRESHOLD_KEY]] = thresholds
        new[RULE_BEFORE_KEY] = _rule_before(old)
    if table.kind == "score":
        new[THRESHOLD_KEY] = table.stored_threshold
    return new


def _rule_before(old: Mapping[str, object]) -> str:
    """The rule of labels that stay; if any of them came with the answers, that."""
    keys = (RULE_KEY, RULE_BEFORE_KEY)
    rules = [str(record[key]) for record in records_of(old) for key in keys if key in record]
    return next(filter(is_given, rules), rules[0] if rules else "not recorded")


def plan_undo(store: TraceStore) -> LabelPlan:
    """Plan to bring back the labels before the last change; done twice, it changes nothing.

    Rows that were appended since keep what they have. A store that had no such columns before gets
    NaN and -1.

    Raises NotFoundError if no labels were replaced, or as `read_backup` does.
    """
    backup = Backup.of(store)
    if backup is None:
        raise NotFoundError(
            f"{store.path}: nothing to undo: python -m store label has not changed its labels"
        )
    saved = read_backup(store, backup)
    ids = read_texts(store, TRACE_ID)
    old = read_labels(store)
    new = old.copy()
    for row, trace_id in enumerate(ids):
        if trace_id in saved:
            new.scores[row], new.labels[row] = saved[trace_id]
    kept = {key: value for key, value in store.provenance.items() if key not in LABEL_KEYS}
    provenance = kept | backup.provenance
    n_listed = len(saved.keys() & ids)
    return LabelPlan(store, ids, old, new, n_listed, provenance, undone=backup)


def label_columns(schema: Schema) -> dict[str, Column]:
    """The columns `score` and `label` to write: wide enough for what a store has in them."""
    score = schema.columns.get("score")
    label = schema.columns.get("label")
    return {
        "score": Column("float64" if score and score.dtype in WIDE else "float32"),
        "label": Column(label.dtype if label and label.dtype in SIGNED else "int8"),
    }


def read_labels(store: TraceStore) -> Labels:
    """Read scores and labels; NaN and -1 where a store has no such column.

    Raises SchemaError if a column is not one number a row, or a label is not a whole number.
    """
    scores = _read_numbers(store, "score")
    labels = _read_numbers(store, "label")
    labels[np.isnan(labels)] = UNLABELLED
    broken = np.flatnonzero(labels != np.rint(labels))
    if len(broken):
        row = int(broken[0])
        raise SchemaError(
            f"{store.path}: column 'label', trace {store.ids[row]!r}: expected a whole number, "
            f"found {labels[row]:g}; write it again as 1, 0 or -1"
        )
    return Labels(scores, labels.astype(np.int64))


def _read_numbers(store: TraceStore, name: str) -> NDArray[np.float64]:
    """A column of single numbers, a copy; NaN in all rows if there is none."""
    column = store.schema.columns.get(name)
    if column is None:
        return np.full(len(store), math.nan)
    if column.is_text or not column.is_single:
        raise SchemaError(
            f"{store.path}: column {name!r}: expected one number in each row, found {column}; "
            f"{name} is the column that store label writes: give yours another name"
        )
    return np.array(store.column_array(name), np.float64)


def commit_labels(writer: StoreWriter, plan: LabelPlan) -> Path | None:
    """Write the planned labels as one commit that touches nothing else.

    The labels that are replaced are made durable beside the store first, so that a crash at any
    point leaves labels that can be undone. Files of earlier changes stay, since they may be the
    only copy of what is in them; but the file whose labels are brought back is removed.

    The writer was opened before the plan was made, so that nothing was committed in between.
    Returns the file with the earlier labels; None if nothing had to be changed, and nothing was.
    """
    store = plan.store
    if writer.generation != store.generation:
        raise LockedError(
            f"{store.path}: something was committed since these labels were planned; plan them "
            "again"
        )
    if not plan.is_needed:
        return None
    backup = write_backup(store, plan.ids, plan.old, writer.files)
    path = backup.path(store)
    own = label_columns(store.schema)
    values = plan.columns
    columns = dict.fromkeys(values, LABEL_OF_RULE) | own
    rows = (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
    try:
        writer.set_columns(columns, rows, {**plan.provenance, LABELS_BEFORE: backup._asdict()})
    except SchemaError:  # nothing was committed
        _remove(writer, path)
        raise
    if plan.undone is not None and plan.undone.is_of(store):
        _remove(writer, plan.undone.path(store))
    return path


def _remove(writer: StoreWriter, path: Path) -> None:
    with suppress(OSError):
        writer.files.remove(path)
