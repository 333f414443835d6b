"""Metrics of scores on other rows than the threshold was chosen on, with intervals over questions.

NumPy arrays in, plain numbers out.
"""

import numpy as np
from numpy.typing import NDArray

from train.evaluate.metrics import (
    Labels,
    Questions,
    Scores,
    bootstrap_auroc,
    drawn_counts,
    measure,
    percentile_interval,
)
from train.evaluate.results import Metrics

__all__ = ["bootstrap_predictions", "judge_elsewhere"]

Counts = NDArray[np.int64]


def judge_elsewhere(
    labels: Labels, scores: Scores, threshold: float, questions: Questions, seed: int
) -> Metrics:
    """Every metric of one detector, the threshold being given.

    `labels` (n,) are 0 and 1, both present, `scores` (n,) finite, and `questions` (n,) equal for
    rows of the same question; the threshold was chosen on other rows.

    The 95% intervals of AUROC, F1, MCC and accuracy are of a bootstrap over questions.
    """
    metrics = measure(labels, scores, threshold)
    metrics.auroc_ci = bootstrap_auroc(labels, scores, questions, seed)
    intervals = bootstrap_predictions(labels, scores >= threshold, questions, seed)
    metrics.f1_ci, metrics.mcc_ci, metrics.accuracy_ci = intervals.values()
    return metrics


def bootstrap_predictions(
    labels: Labels,
    predicted: NDArray[np.bool_],
    questions: Questions,
    seed: int,
    n_resamples: int = 1000,
) -> dict[str, list[float]]:
    """95% percentile intervals of F1, MCC and accuracy, by a bootstrap over questions.

    The resamples are those of `bootstrap_auroc` with the same questions and seed; those with a
    single class of labels are left out.

    `labels` (n,) are 0 and 1, both present, `questions` (n,) equal for rows of the same question.
    Returns the low and the high end for "f1", "mcc" and "accuracy".
    """
    cells = count_cells(labels, predicted, questions)  # (n_questions, 4)
    totals = [counts @ cells for counts in drawn_counts(len(cells), seed, n_resamples)]
    metrics = metrics_of_cells(np.array(totals))
    return {name: percentile_interval(samples) for name, samples in metrics.items()}


def count_cells(labels: Labels, predicted: NDArray[np.bool_], questions: Questions) -> Counts:
    """Of each question true negatives, false positives, false negatives, true positives."""
    distinct, question = np.unique(questions, return_inverse=True)
    cell = 2 * labels + predicted
    counts = np.bincount(4 * question + cell, minlength=4 * len(distinct))
    return counts.reshape(-1, 4)


def metrics_of_cells(cells: Counts) -> dict[str, Scores]:
    """F1, MCC (both 0 where undefined) and accuracy of the rows (n, 4) that have both labels."""
    tn, fp, fn, tp = cells.astype(np.float64).T
    has_both = (tn + fp > 0) & (fn + tp > 0)
    tn, fp, fn, tp = (numbers[has_both] for numbers in (tn, fp, fn, tp))
    spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return {
        "f1": 2 * tp / (2 * tp + fp + fn),  # defined: there is a label 1
        "mcc": (tp * tn - fp * fn) / np.where(spread > 0, spread, 1),
        "accuracy": (tp + tn) / (tp + tn + fp + fn),
    }
