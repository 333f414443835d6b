"""Labels from scores: 1 = hallucination (a wrong answer), 0 = right, -1 = unlabelled.

This module owns the rule `label = 1 iff score < threshold`. Pure: nothing here reads a file or
knows a model.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from store.errors import SchemaError
from store.labels.answer_scores import SCORE_THRESHOLD
from store.reports import count, first_ids

__all__ = ["AS_GIVEN", "UNLABELLED", "Labels", "check_agreement", "label_scores"]

UNLABELLED = -1
AS_GIVEN = "as given with the responses"  # begins the rule of labels that came with answers


def label_scores(scores: ArrayLike, threshold: float = SCORE_THRESHOLD) -> NDArray[np.int64]:
    """Turn scores `(...)`, higher is better, into labels: 1, hallucination, iff score < threshold.

    Returns int64 `(...)`: 1, 0, or -1 (unlabelled) where the score is not finite: no score is never
    a right answer.
    """
    scores = np.asarray(scores)
    return np.where(np.isfinite(scores), scores < threshold, UNLABELLED).astype(np.int64)


def check_agreement(given: Iterable[tuple[str, object, object]], threshold: float) -> None:
    """Raise SchemaError for given labels that say another than the given scores.

    `given` has the name, score and label of each trace; only numbers are compared.
    """
    names, scores, labels = [], [], []
    for name, score, label in given:
        names.append(name)
        scores.append(_number(score))
        labels.append(_number(label))
    by_score = label_scores(np.array(scores, np.float32), threshold)
    both = (by_score != UNLABELLED) & np.isin(labels, (0, 1))
    apart = np.flatnonzero(both & (by_score != labels))
    if len(apart):
        n = count(int(both.sum()), "trace")
        raise SchemaError(
            f"label and score contradict each other in {len(apart):,} of {n} "
            f"({first_ids(names[row] for row in apart)}): label 1 is a hallucination, a score of "
            f"{threshold:g} or more is right; give the --score-threshold at which they agree, or "
            "one of the two alone, as a score where 1 is right"
        )


def _number(value: Any) -> float:
    """One number, however it is wrapped; NaN for anything else."""
    array = np.asarray(math.nan if value is None else value).reshape(-1)
    return float(array[0]) if len(array) == 1 and array.dtype.kind in "biuf" else math.nan


class Labels(NamedTuple):
    """Scores and labels `(n_rows,)`, by row."""

    scores: NDArray[np.float64]  # NaN where there is none
    labels: NDArray[np.int64]  # 1 = hallucination, 0 = right, -1 = unlabelled

    def copy(self) -> "Labels":
        return Labels(self.scores.copy(), self.labels.copy())
