"""How good scores are: NumPy arrays in, plain floats out; nothing here knows models, files or
torch.

Scores are probabilities of the positive class, 1 = hallucination. A threshold is applied as it was
chosen: positive iff score >= threshold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

__all__ = [
    "auprc",
    "aurc",
    "auroc",
    "auroc_samples",
    "bootstrap_auroc",
    "brier",
    "calibration_bins",
    "check_scores",
    "confidence",
    "expected_calibration_error",
    "mean_auroc",
    "percentile_interval",
    "pr_points",
    "ranking_metrics",
    "risk_coverage",
    "roc_points",
    "threshold_metrics",
    "youden_threshold",
]

Labels = NDArray[np.int64]
Scores = NDArray[np.float64]

N_BINS = 15  # equal-width bins of Guo et al., arXiv:1706.04599


def same_ranking(one: Scores, other: Scores) -> bool:
    """Whether two arrays of scores (n,) put the rows in the same order, ties included: nothing that
    ranks differs."""
    return bool(np.array_equal(rankdata(one), rankdata(other)))


def auroc(labels: Labels, scores: Scores) -> float:
    """Probability that a positive outranks a negative, a tie counting one half (Mann-Whitney).

    Parameters
    ----------
    labels : (n,) of 0 and 1, both present
    scores : (n,) finite
    """
    check_scores(labels, scores)
    _, rank = np.unique(scores, return_inverse=True)
    return _weighted_auroc(labels, rank, np.ones(len(labels)))


def mean_auroc(labels: Labels, scores: Scores) -> float:
    """Mean AUROC of several runs (n_runs, n), or the AUROC of one (n,)."""
    return float(np.mean([auroc(labels, run) for run in np.atleast_2d(scores)]))


def bootstrap_auroc(
    labels: Labels, scores: Scores, questions: NDArray[np.int64], seed: int, n_resamples: int = 1000
) -> tuple[float, float]:
    """95% percentile interval of the AUROC, resampling questions, because rows of one question are
    not independent.

    Parameters
    ----------
    labels : (n,) of 0 and 1, both present
    scores : (n,) finite, or (n_runs, n): the interval is then that of the runs' mean AUROC
    questions : (n,) integers, equal for rows of the same question
    seed : of the resampling
    n_resamples : number of resamples; those that drew one class only are left out

    Returns
    -------
    low, high : float
    """
    return percentile_interval(auroc_samples(labels, scores, questions, seed, n_resamples))


def auroc_samples(
    labels: Labels, scores: Scores, questions: NDArray[np.int64], seed: int, n_resamples: int = 1000
) -> NDArray[np.float64]:
    """Mean AUROC of the runs in each resample of the questions that drew both classes, (n_kept,).

    The parameters are those of `bootstrap_auroc`. Which resamples are drawn and kept depends on
    labels, questions and seed alone: the samples of two detectors are paired.
    """
    rng = np.random.default_rng(seed)
    _, question = np.unique(questions, return_inverse=True)
    n_questions = int(question.max()) + 1
    ranks = [np.unique(run, return_inverse=True)[1] for run in np.atleast_2d(scores)]
    samples = []
    for _ in range(n_resamples):
        counts = np.bincount(rng.integers(n_questions, size=n_questions), minlength=n_questions)
        weights = counts[question].astype(np.float64)  # (n,) times that each row was drawn
        if 0 < (weights * labels).sum() < weights.sum():
            samples.append(np.mean([_weighted_auroc(labels, rank, weights) for rank in ranks]))
    return np.array(samples)


def percentile_interval(samples: NDArray[np.float64]) -> tuple[float, float]:
    """The range of the middle 95% of bootstrap samples (n_samples,)."""
    low, high = np.percentile(samples, [2.5, 97.5])
    return float(low), float(high)


def auprc(labels: Labels, scores: Scores) -> float:
    """Average precision, sum over thresholds of (recall step) * precision; a coin gets the share of
    positives."""
    check_scores(labels, scores)
    positives, negatives = _counts_from_top(labels, scores)
    precision = positives / (positives + negatives)
    return float(np.diff(positives, prepend=0) @ precision / positives[-1])


def roc_points(labels: Labels, scores: Scores) -> tuple[NDArray, NDArray]:
    """False and true positive rates (n_thresholds + 1,), from (0, 0) to (1, 1)."""
    positives, negatives = _counts_from_top(labels, scores)
    return np.append(0, negatives) / negatives[-1], np.append(0, positives) / positives[-1]


def pr_points(labels: Labels, scores: Scores) -> tuple[NDArray, NDArray]:
    """Recall and precision (n_thresholds + 1,), from recall 0 to 1.

    Drawn as steps, each point's precision holding back to the recall before it, the area beneath is
    `auprc`. The first point, of recall 0, repeats the precision of the second.
    """
    positives, negatives = _counts_from_top(labels, scores)
    precision = positives / (positives + negatives)
    return np.append(0, positives) / positives[-1], np.append(precision[0], precision)


def confidence(scores: Scores, threshold: float) -> Scores:
    """How far each prediction `score >= threshold` is from being the other one, (n,) from 0 to 0.5.

    It is |p - 0.5| of the score read against its threshold t, p = s(1 - t) / (s(1 - t) + (1 - s)t):
    the odds of s over those of t. For t = 0.5 p is s; for any t, s = t is undecided, and s = 0 and
    s = 1 are certain.

    Parameters
    ----------
    scores : (n,) from 0 to 1
    threshold : from 0 to 1
    """
    for_positive, for_negative = scores * (1 - threshold), (1 - scores) * threshold
    # 0 where score and threshold are both 0 or both 1: undecided
    either = for_positive + for_negative
    return np.abs(
        np.divide(for_positive, either, out=np.full(len(scores), 0.5), where=either > 0) - 0.5
    )


def risk_coverage(labels: Labels, scores: Scores, threshold: float) -> tuple[NDArray, NDArray]:
    """Share of errors among the k most confident predictions `score >= threshold`, for k = 1 to n.

    Selective prediction (Geifman and El-Yaniv, arXiv:1705.08500): the rows of least `confidence`
    are left out first. Of rows that are equally confident, each is as likely to go as the others:
    their errors are their mean.

    Parameters
    ----------
    labels : (n,) of 0 and 1
    scores : (n,) from 0 to 1
    threshold : from 0 to 1, chosen on other rows

    Returns
    -------
    coverage, risk : float64 (n,)
        k / n, ascending to 1, and the share of errors among those k; the last is 1 - accuracy.
    """
    wrong = ((scores >= threshold) != labels).astype(np.float64)
    # 0 is the most confident
    _, rank = np.unique(-confidence(scores, threshold), return_inverse=True)
    counts = np.bincount(rank)
    # (n,) from the most confident down
    expected = np.repeat(np.bincount(rank, wrong) / counts, counts)
    k = np.arange(1, len(labels) + 1)
    return k / len(labels), np.cumsum(expected) / k


def aurc(labels: Labels, scores: Scores, threshold: float) -> float:
    """Area under the risk-coverage curve, the mean of its n risks (Geifman et al.,
    arXiv:1805.08206)."""
    return float(np.mean(risk_coverage(labels, scores, threshold)[1]))


def youden_threshold(labels: Labels, scores: Scores) -> float:
    """The score t whose rule `score >= t` has the largest J = true - false positive rate (Youden,
    1950).

    It is one of the scores, hence finite. Scores that are all the same separate nothing: then 0.5,
    so that a constant probability predicts the majority.
    """
    check_scores(labels, scores)
    thresholds = np.unique(scores)[::-1]
    if len(thresholds) == 1:
        return 0.5
    false_rate, true_rate = roc_points(labels, scores)
    return float(thresholds[np.argmax((true_rate - false_rate)[1:])])


def threshold_metrics(labels: Labels, scores: Scores, threshold: float) -> dict[str, float]:
    """Give f1, mcc (Matthews' correlation; 0 where undefined) and accuracy of the rule `score >=
    threshold`."""
    predicted = scores >= threshold
    tp = float(np.sum(predicted & (labels == 1)))
    fp = float(np.sum(predicted & (labels == 0)))
    fn = float(np.sum(~predicted & (labels == 1)))
    tn = float(np.sum(~predicted & (labels == 0)))
    spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return {
        "f1": 2 * tp / (2 * tp + fp + fn) if tp else 0.0,
        "mcc": float((tp * tn - fp * fn) / spread) if spread else 0.0,
        "accuracy": (tp + tn) / len(labels),
    }


def calibration_bins(labels: Labels, scores: Scores) -> tuple[NDArray, NDArray, NDArray]:
    """Mean score, share of positives and count of each non-empty bin, each (n_non_empty,)."""
    # a score of 1 belongs to the last bin
    which = np.minimum((scores * N_BINS).astype(int), N_BINS - 1)
    count = np.bincount(which, minlength=N_BINS)
    full = count > 0
    mean_score = np.bincount(which, scores, N_BINS)[full] / count[full]
    share = np.bincount(which, labels, N_BINS)[full] / count[full]
    return mean_score, share, count[full]


def expected_calibration_error(labels: Labels, scores: Scores) -> float:
    """Mean over rows of |share of positives - mean score| of the row's bin, 15 bins of equal width
    on [0, 1]."""
    mean_score, share, count = calibration_bins(labels, scores)
    return float(np.abs(share - mean_score) @ count / len(labels))


def brier(labels: Labels, scores: Scores) -> float:
    """Mean squared difference of score and label."""
    return float(np.mean((scores - labels) ** 2))


def ranking_metrics(labels: Labels, scores: Scores) -> dict[str, float]:
    """Give every metric that needs no threshold; `base_rate` is what a coin gets as auprc."""
    return {
        "auroc": auroc(labels, scores),
        "auprc": auprc(labels, scores),
        "base_rate": float(np.mean(labels)),
        "ece": expected_calibration_error(labels, scores),
        "brier": brier(labels, scores),
    }


def check_scores(labels: Labels, scores: Scores) -> None:
    """Raise ValueError unless the scores (n,) are finite and the labels (n,) hold both classes."""
    if not np.isfinite(scores).all():
        raise ValueError(
            f"scores: expected finite numbers, found {np.sum(~np.isfinite(scores))} that are not"
        )
    if set(np.unique(labels).tolist()) != {0, 1}:
        raise ValueError(f"labels: expected both 0 and 1, found {np.unique(labels).tolist()}")


def _weighted_auroc(labels: Labels, rank: NDArray[np.int64], weights: NDArray) -> float:
    """AUROC of rows drawn `weights` times each; `rank` (n,) numbers the distinct scores from the
    lowest up."""
    positives = np.bincount(rank, weights * labels)  # (n_distinct,)
    negatives = np.bincount(rank, weights * (1 - labels))  # (n_distinct,)
    outranked = np.cumsum(negatives) - negatives / 2
    return float(positives @ outranked / (positives.sum() * negatives.sum()))


def _counts_from_top(labels: Labels, scores: Scores) -> tuple[NDArray, NDArray]:
    """Positives and negatives at or above each distinct score, from the highest down, each
    (n_distinct,)."""
    _, rank = np.unique(-scores, return_inverse=True)
    return np.cumsum(np.bincount(rank, labels)), np.cumsum(np.bincount(rank, 1 - labels))
