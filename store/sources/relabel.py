"""New labels for a store that is there: what would change is planned first, then committed as one;
and taken back.

Labels that are replaced are kept in a CSV file beside the store, `STORE.labels-ID-GENERATION.csv`,
and the store's provenance records its name and checksum, so that the last change can be undone.
They are not kept as columns of the store, because then rows could no longer be appended without
them, nor the store be merged with its like.
"""

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.errors import CorruptError, FormatError, LockedError, NotFoundError, SchemaError
from store.format.schema import TRACE_ID, Column, Schema
from store.read.store import TraceStore
from store.sources.labels import SCORE_THRESHOLD
from store.sources.scores import ScoreTable
from store.write.source import LABEL_KEYS, LABELS_BEFORE
from store.write.writer import StoreWriter

__all__ = [
    "LabelChanges",
    "LabelPlan",
    "Labels",
    "commit_labels",
    "plan_labels",
    "plan_undo",
    "read_labels",
    "set_labels",
    "undo_labels",
]

UNLABELLED = -1
QUESTION_ID = "question_id"
BACKUP_HEADER = ["trace_id", "score", "label"]
N_SHOWN = 3


class Labels(NamedTuple):
    """The scores and labels of all rows of a store.

    Attributes
    ----------
    scores
        float64 `(n_rows,)`, NaN where there is none.
    labels
        int64 `(n_rows,)`: 1 = hallucination, 0 = right, -1 = unlabelled.
    """

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]


class Backup(NamedTuple):
    """What a store's provenance records of the labels that were replaced last.

    Attributes
    ----------
    file
        Name of the file beside the store that keeps them.
    sha256
        Its checksum.
    provenance
        What the provenance said of those labels: some of `LABEL_KEYS`.
    """

    file: str
    sha256: str
    provenance: dict[str, Any]

    @classmethod
    def of(cls, store: TraceStore) -> "Backup | None":
        """The record in a store's provenance; None if there is none that `commit_labels` wrote."""
        record = store.provenance.get(LABELS_BEFORE)
        if not isinstance(record, dict) or record.keys() != set(cls._fields):
            return None
        is_name = isinstance(record["file"], str) and Path(record["file"]).name == record["file"]
        is_record = (
            is_name and isinstance(record["sha256"], str) and isinstance(record["provenance"], dict)
        )
        return cls(**record) if is_record else None

    def path(self, store: TraceStore) -> Path:
        """Where the file is, however the store's path was typed."""
        return store.path.resolve().with_name(self.file)


class LabelChanges(NamedTuple):
    """How many labels are set where there was none, become another, are removed, and stay."""

    new: int
    changed: int
    removed: int
    same: int


@dataclass(frozen=True)
class LabelPlan:
    """The labels of a store as they are, and as they are to be.

    Attributes
    ----------
    store
        The store as it was when this was planned.
    ids
        Its trace ids, by row.
    old, new
        What it has, and what it is to have.
    listed
        bool `(n_rows,)`: the rows that were given a value.
    replace_all
        Whether the other rows lose score and label.
    provenance
        What the store's provenance is to be, but for the record of the labels before.
    examples
        A line each for the first ids of the file that fit, and what became of their values.
    unmatched
        Ids of the file that fit no trace.
    undone
        The record of the labels that are brought back, if this takes back a change.
    """

    store: TraceStore
    ids: Sequence[str]
    old: Labels
    new: Labels
    listed: NDArray[np.bool_]
    replace_all: bool
    provenance: Mapping[str, Any]
    examples: Sequence[str] = ()
    unmatched: Sequence[str] = ()
    undone: "Backup | None" = None

    @property
    def changes(self) -> LabelChanges:
        """What becomes of the labels."""
        was = self.old.labels != UNLABELLED
        will_be = self.new.labels != UNLABELLED
        equal = self.old.labels == self.new.labels
        return LabelChanges(
            new=int((~was & will_be).sum()),
            changed=int((was & will_be & ~equal).sum()),
            removed=int((was & ~will_be).sum()),
            same=int((was & equal).sum()),
        )

    @property
    def n_scores_removed(self) -> int:
        """Traces that have a score and are to have none."""
        return int((~np.isnan(self.old.scores) & np.isnan(self.new.scores)).sum())

    @property
    def is_needed(self) -> bool:
        """Whether anything differs from what the store has."""
        columns = label_columns(self.store.schema)
        missing = columns.keys() - self.store.schema.columns.keys()
        dtype = columns["score"].dtype
        same_scores = np.array_equal(
            self.old.scores.astype(dtype), self.new.scores.astype(dtype), equal_nan=True
        )
        same_labels = np.array_equal(self.old.labels, self.new.labels)
        same_rule = _rule(self.provenance) == _rule(self.store.provenance)
        return bool(missing) or not (same_scores and same_labels and same_rule)

    @property
    def n_right(self) -> int:
        """Traces that are to be labelled right."""
        return int((self.new.labels == 0).sum())

    @property
    def n_wrong(self) -> int:
        """Traces that are to be labelled hallucinations."""
        return int((self.new.labels == 1).sum())

    @property
    def n_unlabelled(self) -> int:
        """Traces that are to have no label."""
        return int((self.new.labels == UNLABELLED).sum())


def label_columns(schema: Schema) -> dict[str, Column]:
    """The columns `score` and `label` to write, wide enough for what a store has in them
    already."""
    score, label = schema.columns.get("score"), schema.columns.get("label")
    wide = score is not None and score.dtype in ("float64", "int32", "int64", "uint32", "uint64")
    signed = label is not None and label.dtype in ("int8", "int16", "int32", "int64")
    return {
        "score": Column("float64" if wide else "float32"),
        "label": Column(label.dtype if signed else "int8"),
    }


def read_labels(store: TraceStore) -> Labels:
    """Read scores and labels; where a store has no such column, NaN and -1.

    Raises
    ------
    SchemaError
        The column is no single number, or a label is no whole number.
    """
    scores = _read_numbers(store, "score")
    labels = _read_numbers(store, "label")
    labels = np.where(np.isnan(labels), UNLABELLED, labels)
    odd = np.flatnonzero(labels != np.rint(labels))
    if len(odd):
        trace_id = store.ids[int(odd[0])]
        raise SchemaError(
            f"{store.path}: column 'label', trace {trace_id!r}: expected a whole number, "
            f"found {labels[odd[0]]:g}; write it again as 1, 0 or -1"
        )
    return Labels(scores, labels.astype(np.int64))


def _read_numbers(store: TraceStore, name: str) -> NDArray[np.float64]:
    """A column of single numbers; NaN in all rows if there is none."""
    column = store.schema.columns.get(name)
    if column is None:
        return np.full(len(store), math.nan)
    if column.is_text or not column.is_single:
        raise SchemaError(
            f"{store.path}: column {name!r}: expected one number in each row, found {column}; "
            f"{name} is the column that store label writes: give yours another name"
        )
    return store.column(name).double().numpy()


def plan_labels(
    store: TraceStore,
    table: ScoreTable,
    threshold: float = SCORE_THRESHOLD,
    *,
    replace_all: bool = False,
) -> LabelPlan:
    """Plan the labels that a file of scores or labels gives a store; nothing is written.

    Parameters
    ----------
    store
        The store.
    table
        The file. In a store without a column `question_id`, its question ids are compared with
        trace ids.
    threshold : float
        Scores from here on count as right (up to here, if lower is better).
    replace_all
        Rows that the file does not list lose score and label; otherwise they keep both.

    Raises
    ------
    NotFoundError
        No id of the file is one of the store.
    FormatError
        The file holds no value.
    """
    ids = store.column(TRACE_ID)
    questions = store.column(QUESTION_ID) if QUESTION_ID in store.schema.columns else ids
    known_ids, known_questions = set(ids), set(questions)
    _check_match(store, table, known_ids, known_questions, ids, questions)
    old = read_labels(store)
    new = Labels(old.scores.copy(), old.labels.copy())
    if replace_all:
        new.scores.fill(math.nan)
        new.labels.fill(UNLABELLED)
    listed = np.zeros(len(store), np.bool_)
    for row, (trace_id, question_id) in enumerate(zip(ids, questions, strict=True)):
        value = table.value_of(trace_id, question_id)
        if value is not None:
            _check_question(table, trace_id, question_id)
            listed[row] = True
            new.scores[row], new.labels[row] = table.judge(value, threshold)
    _check_scale(store, table, threshold, new.scores[~listed])
    return LabelPlan(
        store,
        ids,
        old,
        new,
        listed,
        replace_all,
        _new_provenance(store.provenance, table, threshold, new.labels[~listed], int(listed.sum())),
        _examples(table, known_ids, known_questions, threshold),
        _unmatched(table, known_ids, known_questions),
    )


def _check_match(
    store: TraceStore,
    table: ScoreTable,
    known_ids: set[str],
    known_questions: set[str],
    ids: Sequence[str],
    questions: Sequence[str],
) -> None:
    """Raise unless an id of the file is one of the store, whose first ids and questions the message
    shows."""
    if not len(table):
        raise FormatError(f"{table.source}: expected values in column {table.column!r}, found none")
    if known_ids & table.by_trace.keys() or known_questions & table.by_question.keys():
        return
    parts = []
    if table.by_trace:
        parts.append(f"trace_id {_first(table.by_trace)} in the file, {_first(ids)} in the store")
    if table.by_question:
        there = _first(dict.fromkeys(questions))
        parts.append(f"question_id {_first(table.by_question)} in the file, {there} in the store")
    crossed = ""
    if known_ids & table.by_question.keys():
        crossed = "; its question ids are trace ids of the store: name that column trace_id"
    elif known_questions & table.by_trace.keys():
        crossed = "; its trace ids are question ids of the store: name that column question_id"
    raise NotFoundError(
        f"{table.source}: none of its {len(table):,} ids is in {store.path}: {'; '.join(parts)}{crossed}; "
        "nothing was changed"
    )


def _check_question(table: ScoreTable, trace_id: str, question_id: str) -> None:
    """Raise SchemaError if the file has a trace under another question: its columns have
    slipped."""
    given = table.questions.get(trace_id)
    if given and given != question_id:
        raise SchemaError(
            f"{table.source}: trace {trace_id!r:.60} is of question {question_id!r:.60} in the store, and of "
            f"{given!r:.60} in the file: its lines have slipped; mend it, or leave the column question_id out"
        )


def _check_scale(
    store: TraceStore, table: ScoreTable, threshold: float, kept: NDArray[np.float64]
) -> None:
    """Raise SchemaError if scores that stay were labelled with another threshold: a column has one
    scale."""
    before = store.provenance.get("score_threshold")
    after = table.stored_threshold(threshold)
    n_kept = int((~np.isnan(kept)).sum())
    if table.kind == "score" and n_kept and isinstance(before, int | float) and before != after:
        raise SchemaError(
            f"{store.path}: {n_kept:,} traces that the file does not list keep scores whose threshold is {before:g}, "
            f"and these are stored with {after:g}: one column cannot hold both; give the same --score-threshold, "
            "scores of all traces, or --replace-all"
        )


def _first(names: Sequence[str] | Mapping[str, float]) -> str:
    """The first three names, shortened, as a message shows them."""
    shown = [f"{name!r:.60}" for name, _ in zip(names, range(N_SHOWN), strict=False)]
    return ", ".join(shown) or "none"


def _examples(table: ScoreTable, ids: set[str], questions: set[str], threshold: float) -> list[str]:
    """What was understood of the first ids that fit."""
    fitting = [("trace_id", name, value) for name, value in table.by_trace.items() if name in ids]
    fitting += [
        ("question_id", name, value)
        for name, value in table.by_question.items()
        if name in questions
    ]
    return [
        table.example(f"{column} {name}", value, threshold)
        for column, name, value in fitting[:N_SHOWN]
    ]


def _unmatched(table: ScoreTable, ids: set[str], questions: set[str]) -> list[str]:
    """The ids of the file that fit no trace."""
    traces = [name for name in table.by_trace if name not in ids]
    return traces + [name for name in table.by_question if name not in questions]


def _new_provenance(
    old: Mapping[str, Any],
    table: ScoreTable,
    threshold: float,
    other_labels: NDArray[np.int64],
    n_listed: int,
) -> dict[str, Any]:
    """The provenance with the rule of the new labels, and of those that other rows keep."""
    kept = bool((other_labels != UNLABELLED).any())
    new = {key: value for key, value in old.items() if key not in LABEL_KEYS}
    new["label_rule"] = table.rule
    if kept:
        n_rows = n_listed + len(other_labels)
        new["label_rule"] += f"; of {n_listed:,} of {n_rows:,} traces, the others keep their labels"
        new |= {key: old[key] for key in ("score_threshold",) if key in old}
        if "label_rule" in old:
            new["label_rule_before"] = old["label_rule"]
    if table.kind == "score":
        new["score_threshold"] = table.stored_threshold(threshold)
    return new


def _rule(provenance: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a provenance says of the labels, without what it says of earlier ones."""
    return provenance.get("label_rule"), provenance.get("score_threshold")


def commit_labels(writer: StoreWriter, plan: LabelPlan) -> Path | None:
    """Write the planned labels as one commit that touches nothing else.

    The labels that are replaced are made durable beside the store first, so that a crash at any
    point leaves labels that can be undone. Files of earlier changes stay, since nothing else may
    have what is in them; but one whose labels are brought back goes.

    Parameters
    ----------
    writer
        Of the plan's store; opened before the plan was made, so that nothing was committed in
        between.
    plan
        What to write.

    Returns
    -------
    The file with the labels before; None if nothing had to be changed, and nothing was.
    """
    store = plan.store
    if writer.generation != store.generation:
        raise LockedError(
            f"{store.path}: something was committed since these labels were planned; plan them again"
        )
    if not plan.is_needed:
        return None
    content = _backup_content(plan)
    backup = Backup(
        _backup_name(store),
        hashlib.sha256(content).hexdigest(),
        {key: value for key, value in store.provenance.items() if key in LABEL_KEYS},
    )
    path = backup.path(store)
    writer.files.replace_text(path, content, path.with_name(f"{path.name}.new"))
    columns = label_columns(store.schema)
    provenance = dict(plan.provenance) | {LABELS_BEFORE: backup._asdict()}
    try:
        writer.set_columns(columns, _rows(plan.new, columns), provenance)
    except SchemaError:  # nothing was committed
        with suppress(OSError):
            writer.files.remove(path)
        raise
    # a subset has the record of the whole
    if plan.undone is not None and _mark(store) in plan.undone.file:
        with suppress(OSError):
            writer.files.remove(plan.undone.path(store))
    return path


def _rows(labels: Labels, columns: Mapping[str, Column]) -> Iterator[dict[str, object]]:
    """A score and a label for every row."""
    scores = labels.scores.astype(columns["score"].dtype)
    for score, label in zip(scores, labels.labels.tolist(), strict=True):
        yield {"score": score, "label": label}


def _mark(store: TraceStore) -> str:
    """What the names of a store's backups have in common, and those of no other store, whatever its
    path."""
    return f".labels-{store.uuid[:8]}-"


def _backup_name(store: TraceStore) -> str:
    """The name of the file that keeps the labels of this generation."""
    return f"{store.path.resolve().name}{_mark(store)}{store.generation}.csv"


def _backup_content(plan: LabelPlan) -> bytes:
    """The labels of a store as CSV; an empty cell is a score that is not there."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(BACKUP_HEADER)
    for trace_id, score, label in zip(plan.ids, *plan.old, strict=True):
        cell = "" if math.isnan(score) else repr(float(score))
        writer.writerow([trace_id, cell, int(label)])
    return text.getvalue().encode()


def plan_undo(store: TraceStore) -> LabelPlan:
    """Plan to bring back the labels before the last change; done twice, it changes nothing.

    Rows that were appended since keep what they have. A store that had no such columns before gets
    NaN and -1.

    Raises
    ------
    NotFoundError
        No labels were replaced, or the file that keeps them is not beside the store.
    CorruptError
        The file is not as it was written.
    """
    backup = Backup.of(store)
    if backup is None:
        raise NotFoundError(
            f"{store.path}: nothing to undo: python -m store label has not changed its labels"
        )
    saved = _read_backup(backup.path(store), backup.sha256)
    ids, old = store.column(TRACE_ID), read_labels(store)
    new = Labels(old.scores.copy(), old.labels.copy())
    listed = np.zeros(len(store), np.bool_)
    for row, trace_id in enumerate(ids):
        if trace_id in saved:
            listed[row] = True
            new.scores[row], new.labels[row] = saved[trace_id]
    others = {key: value for key, value in store.provenance.items() if key not in LABEL_KEYS}
    return LabelPlan(store, ids, old, new, listed, False, others | backup.provenance, undone=backup)


def _read_backup(path: Path, sha256: str) -> dict[str, tuple[float, int]]:
    """The scores and labels that were saved, by trace id."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{path}: the file that keeps the labels before is not there; if the store was moved or "
            "copied, put that file beside it"
        ) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise CorruptError(
            f"{path}: expected the labels as they were saved, found another content; restore the file from a copy"
        )
    lines = csv.reader(io.StringIO(content.decode(), newline=""))
    next(lines)
    return {
        trace_id: (float(score) if score else math.nan, int(label))
        for trace_id, score, label in lines
    }


def set_labels(
    path: str | Path,
    table: ScoreTable | Mapping[str, float],
    threshold: float = SCORE_THRESHOLD,
    *,
    replace_all: bool = False,
) -> LabelPlan:
    """Label the traces of a store in one commit; see `plan_labels` and `commit_labels`.

    Parameters
    ----------
    path
        The store.
    table
        A file of scores or labels as `read_scores` gives it, or question id -> score.
    threshold : float
        Scores from here on count as right.
    replace_all
        Rows that the table does not list lose score and label.

    Returns
    -------
    What was changed.
    """
    given = table if isinstance(table, ScoreTable) else ScoreTable.of_questions(table)
    with StoreWriter.open(path) as writer:
        plan = plan_labels(TraceStore.open(path), given, threshold, replace_all=replace_all)
        commit_labels(writer, plan)
    return plan


def undo_labels(path: str | Path) -> LabelPlan:
    """Bring back the labels before the last change in one commit; see `plan_undo`."""
    with StoreWriter.open(path) as writer:
        plan = plan_undo(TraceStore.open(path))
        commit_labels(writer, plan)
    return plan
