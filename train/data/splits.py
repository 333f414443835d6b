"""Which rows a run learns from, and which ones judge it.

The split of a row is a pure function of (question_id, seed), unless the user gives one: rows of one
question stay together, and rows that are appended later change no split. Unlabelled rows (label -1)
are in no split; they are never counted as right answers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from store import TraceStore
from store.labels.rule import UNLABELLED, label_scores
from store.traces.question_split import SPLITS, split_of_question
from train.config import Config
from train.data.own_split import describe_own_split, own_split
from train.errors import DataError

__all__ = [
    "BY_QUESTION",
    "Splits",
    "all_as_test",
    "check_batch",
    "label_column",
    "read_splits",
    "split_rows",
]

Integers = NDArray[np.int64]
BY_QUESTION = "question_id"


@dataclass(frozen=True)
class Splits:
    """The rows of each split, and label and question of every row.

    Attributes
    ----------
    train, val, test : int64 (n_split,)
        Labelled rows of the store, ascending.
    labels : int64 (n_rows,)
        1, 0, or -1 where unlabelled.
    questions : int64 (n_rows,)
        Equal for rows of the same question.
    seed : int
        The seed that the splits follow from.
    by : str
        What the splits follow from besides: "question_id", or what the user gave.
    n_outside : int
        Labelled rows that are in no split.
    n_unmatched : int
        Ids of a file of splits that no row has.
    """

    train: Integers
    val: Integers
    test: Integers
    labels: Integers
    questions: Integers
    seed: int
    by: str = BY_QUESTION
    n_outside: int = 0
    n_unmatched: int = 0

    def rows(self, split: str) -> Integers:
        return getattr(self, split)

    def labels_of(self, split: str) -> Integers:
        return self.labels[self.rows(split)]

    def n_shared_questions(self) -> int:
        """Number of questions that have rows in more than one split."""
        questions = [np.unique(self.questions[self.rows(split)]) for split in SPLITS]
        _, counts = np.unique(np.concatenate(questions), return_counts=True)
        return int(np.sum(counts > 1))

    def digest(self) -> str:
        """Equal for the same rows in the same splits."""
        digest = hashlib.sha256()
        for split in SPLITS:
            rows = self.rows(split).astype("<i8")
            digest.update(len(rows).to_bytes(8, "little") + rows.tobytes())
        return digest.hexdigest()


def split_rows(
    question_ids: Sequence[str], labels: Integers, seed: int, max_traces: int | None = None
) -> Splits:
    """Split the labelled rows by question; with `max_traces` that many of them, drawn by `seed`."""
    distinct, questions = np.unique(np.asarray(question_ids, dtype=object), return_inverse=True)
    split_by_question = [split_of_question(question_id, seed) for question_id in distinct]
    split_by_row = np.array(split_by_question, dtype=object)[questions]
    return place_rows(split_by_row, labels, questions, seed, max_traces)


def place_rows(
    split_by_row: NDArray[np.object_],
    labels: Integers,
    questions: Integers,
    seed: int,
    max_traces: int | None = None,
    by: str = BY_QUESTION,
) -> Splits:
    """Put the labelled rows, or `max_traces` of them, into the splits that are named for them.

    Rows that are in no split are not drawn.
    """
    is_labelled = labels != UNLABELLED
    is_inside = np.isin(split_by_row, SPLITS)
    inside = np.flatnonzero(is_labelled & is_inside)
    drawn = np.sort(np.random.default_rng(seed).permutation(inside)[:max_traces])
    train, val, test = (drawn[split_by_row[drawn] == split] for split in SPLITS)
    n_outside = int(np.sum(is_labelled & ~is_inside))
    return Splits(train, val, test, labels, questions, seed, by, n_outside)


def all_as_test(store: TraceStore, seed: int = 0) -> Splits:
    """Every row in the test split, and no labels: what is needed to score a store."""
    none = np.zeros(0, np.int64)
    every = np.arange(len(store))
    labels = np.full(len(store), UNLABELLED)
    return Splits(none, none, every, labels, questions=every, seed=seed)


def label_column(config: Config) -> str:
    """The column that labels are read or made from."""
    return "label" if config.score_threshold is None else "score"


def read_splits(store: TraceStore, config: Config) -> Splits:
    """Read questions and labels and split; raises DataError where a split lacks a class."""
    values = np.asarray(store.column(label_column(config)))
    if config.score_threshold is None:
        labels = check_labels(values, store)
    else:
        labels = label_scores(values, config.score_threshold)
    question_ids = cast(list[str], store.column("question_id"))
    if config.split is None:
        splits = split_rows(question_ids, labels, config.seed, config.max_traces)
    else:
        splits = split_as_given(store, config, question_ids, labels)
    check_splits(splits, store)
    return splits


def split_as_given(
    store: TraceStore, config: Config, question_ids: Sequence[str], labels: Integers
) -> Splits:
    """The splits of --split and --hold-out."""
    given = cast(str, config.split)
    ids = np.asarray(question_ids, dtype=object)
    is_used = labels != UNLABELLED
    own = own_split(store, given, config.hold_out, config.seed, ids, is_used)
    questions = np.unique(ids, return_inverse=True)[1]
    by = describe_own_split(given, config.hold_out)
    splits = place_rows(own.by_row, labels, questions, config.seed, config.max_traces, by)
    return replace(splits, n_unmatched=own.n_unmatched)


def check_labels(labels: NDArray, store: TraceStore) -> Integers:
    """The labels as int64; raises DataError for any but 1, 0 and -1."""
    wrong = np.flatnonzero(~np.isin(labels, (0, 1, UNLABELLED)))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{store.path}: column 'label', trace {store.ids[row]!r}: expected 1, 0 or -1, "
            f"found {labels[row]}; correct the {len(wrong)} labels like it"
        )
    return labels.astype(np.int64)


def check_splits(splits: Splits, store: TraceStore) -> None:
    if not np.any(splits.labels != UNLABELLED):
        raise DataError(
            f"{store.path}: expected labelled traces, found all {len(splits.labels)} unlabelled; "
            "add scores to the store, then train again"
        )
    for split in SPLITS:
        labels = splits.labels_of(split)
        n_positive = int(labels.sum())
        if not 0 < n_positive < len(labels):
            raise DataError(
                f"{store.path}: {split} split: expected both classes, found {n_positive} "
                f"hallucinations among {len(labels)} labelled traces; add traces, or try another "
                f"{'--seed' if splits.by == BY_QUESTION else '--split'} or --score-threshold"
            )


def check_batch(splits: Splits, store: TraceStore, batch_size: int) -> None:
    """Raise DataError unless train fills a batch."""
    n_train = len(splits.train)
    if n_train < batch_size:
        raise DataError(
            f"{store.path}: train split: expected at least one batch of {batch_size} traces, "
            f"found {n_train}; lower --batch-size, to {n_train} at most"
        )
