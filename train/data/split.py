"""Which rows a run learns from and which it is judged by.

The side of a row is a pure function of (question_id, seed): rows of one question stay together, and
rows appended later move nobody. Unlabelled rows (label -1) are on no side; they are counted, never
taken for right answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store import TraceStore
from store.sources.labels import UNLABELLED, label_scores
from store.sources.split import SPLITS, split_of_question
from train.config import Config
from train.errors import DataError

__all__ = [
    "Split",
    "check_batch",
    "no_split",
    "read_split",
    "split_rows",
]


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
        sides = {side: self._count(getattr(self, side)) for side in SPLITS}
        return {
            "seed": self.seed,
            "by": "question_id",
            **sides,
            "unlabelled": int(np.sum(self.labels == UNLABELLED)),
        }

    def _count(self, rows: NDArray[np.int64]) -> dict[str, int]:
        n_questions = len(np.unique(self.questions[rows]))
        return {
            "rows": len(rows),
            "questions": n_questions,
            "hallucinations": int(self.labels[rows].sum()),
        }


def split_rows(
    question_ids: Sequence[str], labels: NDArray[np.int64], seed: int, max_traces: int | None = None
) -> Split:
    """Split the labelled rows by question; with `max_traces`, only that many of them, drawn by
    `seed`."""
    distinct, questions = np.unique(np.asarray(question_ids, dtype=object), return_inverse=True)
    sides = np.array(
        [split_of_question(question_id, seed) for question_id in distinct], dtype=object
    )[questions]
    labelled = np.flatnonzero(labels != UNLABELLED)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[np.random.default_rng(seed).permutation(labelled)[:max_traces]] = True
    train, val, test = (np.flatnonzero(chosen & (sides == side)) for side in SPLITS)
    return Split(train, val, test, labels, questions, seed)


def no_split(store: TraceStore, seed: int = 0) -> Split:
    """Every row on the test side, and no labels: what is needed to score a store."""
    none, every = np.zeros(0, np.int64), np.arange(len(store))
    return Split(none, none, every, np.full(len(store), UNLABELLED), every, seed)


def read_split(store: TraceStore, config: Config) -> Split:
    """Read questions and labels and split; raises DataError where a side lacks a class."""
    label_column = "label" if config.score_threshold is None else "score"
    values = store.column(label_column).numpy()
    if config.score_threshold is None:
        labels = check_labels(values, store)
    else:
        labels = label_scores(values, config.score_threshold)
    split = split_rows(store.column("question_id"), labels, config.seed, config.max_traces)
    check_split(split, store)
    return split


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
    for side in SPLITS:
        labels = split.labels[getattr(split, side)]
        n_positive = int(labels.sum())
        if not 0 < n_positive < len(labels):
            raise DataError(
                f"{store.path}: {side} side: expected both classes, found {n_positive} hallucinations among "
                f"{len(labels)} labelled traces; add traces, or try another --seed or --score-threshold"
            )


def check_batch(split: Split, store: TraceStore, batch_size: int) -> None:
    """Raise DataError unless train fills a batch."""
    if len(split.train) < batch_size:
        raise DataError(
            f"{store.path}: train side: expected at least one batch of {batch_size} traces, found {len(split.train)}; "
            f"lower --batch-size, to {len(split.train)} at most"
        )
