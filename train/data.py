"""Which rows a run learns from and which it is judged by, and the packed batches of either.

The side of a row is a pure function of (question_id, seed): rows of one question stay together, and rows appended later
move nobody. Unlabelled rows (label -1) are on no side; they are counted, never taken for right answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store import Column, TraceLoader, TraceStore
from store.split import SIDES, side_of_question
from train.config import Config
from train.errors import DataError

__all__ = [
    "Split",
    "TrainingData",
    "check_columns",
    "check_pairs",
    "check_threshold",
    "missing_columns",
    "read_split",
    "split_rows",
]

UNLABELLED = -1
KINDS = {  # of the columns that detectors and the split read
    "question_id": "text",
    "label": "fixed with 0 item axes",
    "score": "fixed with 0 item axes",
    "hs_last": "fixed with 2 item axes",
    "hidden_states": "ragged with 2 item axes",
    "attn_mean": "ragged with 1 item axes",
}


@dataclass(frozen=True)
class Split:
    """The rows of each side, and what is known of every row.

    Attributes
    ----------
    train, val, test : int64 (n_side,)
        Labelled rows of the store, ascending.
    labels : int64 (n_rows,)
        1, 0, or -1 where unlabelled.
    questions : int64 (n_rows,)
        Equal for rows of the same question.
    seed : int
        The seed that made it.
    """

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]
    labels: NDArray[np.int64]
    questions: NDArray[np.int64]
    seed: int

    def summary(self) -> dict:
        """Counts for the report, JSON-able."""
        sides = {side: self._count(getattr(self, side)) for side in SIDES}
        return {"seed": self.seed, "by": "question_id", **sides, "unlabelled": int(np.sum(self.labels == UNLABELLED))}

    def _count(self, rows: NDArray[np.int64]) -> dict[str, int]:
        n_questions = len(np.unique(self.questions[rows]))
        return {"rows": len(rows), "questions": n_questions, "hallucinations": int(self.labels[rows].sum())}


@dataclass(frozen=True)
class TrainingData:
    """A store and its split."""

    store: TraceStore
    split: Split

    def loader(self, side: str, columns: Sequence[str], config: Config, shuffle: bool) -> TraceLoader:
        """Packed batches of one side; in the order of the split unless shuffled by `config.seed`."""
        return TraceLoader(
            self.store,
            columns=list(columns),
            batch_size=config.batch_size,
            shuffle=shuffle,
            seed=config.seed,
            rows=getattr(self.split, side),
            num_workers=config.num_workers,
        )


def split_rows(
    question_ids: Sequence[str], labels: NDArray[np.int64], seed: int, max_traces: int | None = None
) -> Split:
    """Split the labelled rows by question; with `max_traces`, only that many of them, drawn by `seed`."""
    distinct, questions = np.unique(np.asarray(question_ids, dtype=object), return_inverse=True)
    sides = np.array([side_of_question(question_id, seed) for question_id in distinct], dtype=object)[questions]
    labelled = np.flatnonzero(labels != UNLABELLED)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.random.default_rng(seed).permutation(labelled)[:max_traces]] = True
    train, val, test = (np.flatnonzero(chosen & (sides == side)) for side in SIDES)
    return Split(train, val, test, labels, questions, seed)


def read_split(store: TraceStore, config: Config) -> Split:
    """Read questions and labels and split; raises DataError where a side lacks a class."""
    label_column = "label" if config.score_threshold is None else "score"
    check_columns(store, "the split", ["question_id", label_column], "or add it to the store")
    batch = store.read(np.arange(len(store)), columns=["question_id", label_column])
    values = batch[label_column].numpy()
    if config.score_threshold is None:
        labels = check_labels(values, store)
    else:
        labels = label_scores(values, config.score_threshold)
    split = split_rows(batch["question_id"], labels, config.seed, config.max_traces)
    check_split(split, store)
    return split


def label_scores(scores: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    """Label 1 iff score < threshold; -1 where the score is NaN."""
    return np.where(np.isnan(scores), UNLABELLED, scores < threshold).astype(np.int64)


def check_labels(labels: NDArray, store: TraceStore) -> NDArray[np.int64]:
    """The labels as int64; raises DataError for any but 1, 0 and -1."""
    wrong = np.flatnonzero(~np.isin(labels, (0, 1, UNLABELLED)))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.path}: column 'label', trace {store.ids[row]!r}: expected 1, 0 or -1, found {labels[row]}; "
            f"mend the {len(wrong)} labels like it"
        )
    return labels.astype(np.int64)


def check_split(split: Split, store: TraceStore) -> None:
    """Raise DataError unless each side holds both classes."""
    if not np.any(split.labels != UNLABELLED):
        raise DataError(
            f"{store.path}: expected labelled traces, found all {len(split.labels)} unlabelled; "
            "add scores to the store, then train again"
        )
    for side in SIDES:
        labels = split.labels[getattr(split, side)]
        n_positive = int(labels.sum())
        if not 0 < n_positive < len(labels):
            raise DataError(
                f"{store.path}: {side} side: expected both classes, found {n_positive} hallucinations among "
                f"{len(labels)} labelled traces; add traces, or try another --seed or --score-threshold"
            )


def check_columns(store: TraceStore, reader: str, columns: Iterable[str], way_out: str) -> None:
    """Raise DataError unless the store has the columns that `reader` needs, of the kind that it takes them for."""
    missing = missing_columns(store, columns)
    if missing:
        raise DataError(
            f"{store.path}: {reader}: expected column {missing[0]!r}, found only {', '.join(store.schema.columns)}; "
            f"make the traces again with that column, {way_out}"
        )
    for name in columns:
        found = kind_of(store.schema.columns[name])
        if name in KINDS and found != KINDS[name]:
            raise DataError(
                f"{store.path}: {reader}: expected column {name!r} to be {KINDS[name]}, found {found}; "
                f"make the traces again, {way_out}"
            )


def kind_of(column: Column) -> str:
    """What a column is, in the words of `KINDS`."""
    if column.is_text:
        return "text"
    return f"{'ragged' if column.axis else 'fixed'} with {len(column.item_shape)} item axes"


def check_pairs(store: TraceStore) -> None:
    """Raise DataError unless every trace of T tokens has T(T+1)/2 pairs; reads offsets only."""
    n_tokens, n_pairs = store.lengths("hidden_states"), store.lengths("attn_mean")
    wrong = np.flatnonzero(n_pairs != n_tokens * (n_tokens + 1) // 2)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.path}: column 'attn_mean', trace {store.ids[row]!r}: expected T(T+1)/2 = "
            f"{n_tokens[row] * (n_tokens[row] + 1) // 2} pairs for its {n_tokens[row]} tokens, found {n_pairs[row]}; "
            f"make the {len(wrong)} traces like it again"
        )


def check_threshold(store: TraceStore, threshold: float) -> None:
    """Raise DataError if graphs want edges that were dropped before the traces came into the store."""
    kept_from = store.provenance.get("attn_threshold") or 0.0
    if threshold < kept_from:
        raise DataError(
            f"{store.path}: --attn-threshold: expected {kept_from!r} or more, because weaker edges were dropped "
            f"before the import, found {threshold!r}; give --attn-threshold {kept_from!r}"
        )


def missing_columns(store: TraceStore, columns: Iterable[str]) -> list[str]:
    """Those of `columns` that the store lacks."""
    return [name for name in columns if name not in store.schema.columns]
