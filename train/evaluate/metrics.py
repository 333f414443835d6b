"""Metrics of scores: NumPy arrays in, numbers out, without models, files or torch.

Labels (n,) are 0 and 1, both present; scores (n,), or (n_runs, n) of several trainings, are finite,
and where a threshold is read probabilities of the positive class, 1 = hallucination. Questions (n,)
are equal for rows of the same question. So it is in all of `train.evaluate`. A threshold is applied
as it was chosen: positive iff score >= threshold.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit, logit
from scipy.stats import rankdata
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    precision_recall_curve,
    roc_curve,
)

from train.evaluate.results import Metrics

__all__ = [
    "N_BINS",
    "auprc",
    "aurc",
    "auroc",
    "auroc_samples",
    "brier",
    "calibration_bins",
    "calibration_sums",
    "check_scores",
    "confidence",
    "confidence_error",
    "counts_above",
    "draw_folds",
    "drawn_counts",
    "expected_calibration_error",
    "mean_auroc",
    "measure",
    "percentile_interval",
    "pr_points",
    "prediction_rejection_ratio",
    "rank_rows",
    "ranking",
    "rates",
    "refined_losses",
    "risk_coverage",
    "roc_points",
    "unmeasured_rates",
    "youden_threshold",
]

Labels = NDArray[np.int64]
Scores = NDArray[np.float64]
Areas = dict[str, float]  # a number of each detector or baseline, by name
Curve = tuple[NDArray, NDArray]  # x, y
QuestionNumbers = NDArray[np.int64]  # equal for rows of the same question

BLOCK = 1 << 18  # numbers of resamples that are drawn at once
EPSILON = np.finfo(np.float64).eps
STEEPEST = 50.0  # slope of standardised log-odds: labels that are told apart would ask for infinity
N_BINS = 15  # equal-width bins of Guo et al., arXiv:1706.04599
FALSE_RATES = {"recall_at_1": 0.01, "recall_at_5": 0.05, "recall_at_10": 0.1}
TRUE_RATE = 0.95


def ranking(scores: Scores) -> bytes:
    """Equal for scores (n,) that put the rows in the same order, ties included."""
    return rankdata(scores).tobytes()


def refined_losses(labels: Labels, scores: Scores) -> Scores:
    """Cross-entropy of each row (n,), in nats, once scores are recalibrated on the same rows.

    How well scores tell labels apart: as smooth as a loss and, like an AUROC, the same whether they
    are too confident or not (Berta et al., 2025, arXiv:2501.19195; two parameters as in Platt
    scaling, of which the slope is never negative).
    """
    log_odds = logit(scores.clip(EPSILON, 1 - EPSILON))
    scaled = (log_odds - log_odds.mean()) / (log_odds.std() or 1.0)
    signs = np.where(labels == 1, -1.0, 1.0)

    def mean_and_gradient(line: NDArray) -> tuple[float, NDArray]:
        wrong = signs * (line[0] * scaled + line[1])
        slopes = signs * expit(wrong)
        return np.logaddexp(0.0, wrong).mean(), np.array([slopes @ scaled, slopes.sum()]) / len(
            signs
        )

    bounds = [(0.0, STEEPEST), (-STEEPEST, STEEPEST)]
    fitted = minimize(mean_and_gradient, [1.0, 0.0], jac=True, bounds=bounds, method="L-BFGS-B")
    return np.logaddexp(0.0, signs * (fitted.x[0] * scaled + fitted.x[1]))


def auroc(labels: Labels, scores: Scores) -> float:
    """Probability that a positive outranks a negative, a tie counting one half (Mann-Whitney)."""
    check_scores(labels, scores)
    ranked = rank_rows(labels, scores, np.zeros(len(labels), np.int64))
    return float(ranked.areas(np.ones((1, 1)))[0])


@dataclass(frozen=True)
class Ranked:
    """Rows in groups of equal score: strata one after another, each from its lowest score."""

    # sparse (n_groups, n_questions): rows of each class
    positives: csr_array
    negatives: csr_array
    begins: NDArray[np.int64]  # int64 (n_strata,): the first group of each stratum

    def areas(self, counts: NDArray) -> Scores:
        """AUROC where questions count `counts` (r, n_questions) times, (r,); NaN for one class.

        With several strata it is the share of the pairs of one stratum whose positive outranks its
        negative. Of whole numbers all sums are exact, in whatever order they are made.
        """
        by_question = np.ascontiguousarray(counts.T, np.float64)
        positives = self.positives @ by_question  # (n_groups, r)
        negatives = self.negatives @ by_question
        n_positives, n_negatives = (
            np.add.reduceat(numbers, self.begins, axis=0) for numbers in (positives, negatives)
        )  # (n_strata, r)
        outranked = np.cumsum(negatives, axis=0) - negatives / 2
        if len(self.begins) > 1:
            before = np.cumsum(n_negatives, axis=0) - n_negatives  # negatives of earlier strata
            sizes = np.diff(self.begins, append=len(negatives))
            outranked -= np.repeat(before, sizes, axis=0)
        n_pairs = (n_positives * n_negatives).sum(axis=0)
        areas = np.full(len(counts), np.nan)
        return np.divide((positives * outranked).sum(axis=0), n_pairs, out=areas, where=n_pairs > 0)


def rank_rows(
    labels: Labels, scores: Scores, question: QuestionNumbers, stratum: NDArray | None = None
) -> Ranked:
    """Rank rows (n,) within their strata, one by default; `question` numbers questions from 0."""
    stratum = np.zeros_like(question) if stratum is None else stratum
    permutation = np.lexsort((scores, stratum))
    begins_stratum = np.append(True, np.diff(stratum[permutation]) != 0)
    begins_group = begins_stratum | np.append(True, np.diff(scores[permutation]) != 0)
    group = np.empty(len(labels), np.int64)
    group[permutation] = np.cumsum(begins_group) - 1
    shape = int(begins_group.sum()), int(question.max()) + 1
    positives, negatives = (
        csr_array((of_class.astype(np.float64), (group, question)), shape=shape)
        for of_class in (labels == 1, labels == 0)
    )
    return Ranked(positives, negatives, np.flatnonzero(begins_stratum[begins_group]))


def mean_auroc(labels: Labels, scores: Scores) -> float:
    """Mean AUROC of several runs (n_runs, n), or the AUROC of one (n,)."""
    return float(np.mean([auroc(labels, run) for run in np.atleast_2d(scores)]))


def auroc_samples(
    labels: Labels, scores: Scores, questions: QuestionNumbers, seed: int, n_resamples: int = 1000
) -> Scores:
    """Mean AUROC of the runs in each resample of questions that has both classes, (n_kept,).

    Questions are resampled because rows of the same question are not independent. Which resamples
    are drawn and kept depends on labels, questions and seed alone: the samples of two detectors are
    paired.
    """
    _, question = np.unique(questions, return_inverse=True)
    ranked = [rank_rows(labels, run, question) for run in np.atleast_2d(scores)]
    samples = [
        np.mean(np.stack([one.areas(counts) for one in ranked], axis=1), axis=1)
        for counts in drawn_counts(int(question.max()) + 1, seed, n_resamples)
    ]
    areas = np.concatenate(samples)
    return areas[~np.isnan(areas)]


def drawn_counts(n_questions: int, seed: int, n_resamples: int = 1000) -> Iterator[Labels]:
    """How often each question is drawn in each resample of as many, in blocks (r, n_questions).

    What is drawn does not depend on the blocks, which are short enough for memory.
    """
    rng = np.random.default_rng(seed)
    n_at_once = max(1, BLOCK // n_questions)
    for first in range(0, n_resamples, n_at_once):
        n = min(n_at_once, n_resamples - first)
        drawn = rng.integers(n_questions, size=(n, n_questions))
        drawn += n_questions * np.arange(n)[:, None]
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)


def draw_folds(questions: QuestionNumbers, n_folds: int, seed: int) -> Labels:
    """Fold (n,) of each row, from 0: that of its question."""
    distinct, question = np.unique(questions, return_inverse=True)
    fold_by_question = np.arange(len(distinct)) % n_folds
    return np.random.default_rng([seed, n_folds]).permutation(fold_by_question)[question]


def percentile_interval(samples: Scores) -> list[float]:
    """The range of the middle 95% of bootstrap samples (n_samples,)."""
    return np.percentile(samples, [2.5, 97.5]).tolist()


def auprc(labels: Labels, scores: Scores) -> float:
    """Average precision, the sum over thresholds of (recall step) * precision."""
    return rates(labels, scores)["auprc"]


def counts_above(labels: Labels, scores: Scores) -> tuple[Labels, Labels, Labels]:
    """Positives and negatives at or above each distinct score, from the highest (n_distinct,).

    Last is the place of each row's score among those, (n,).
    """
    _, place = np.unique(-scores, return_inverse=True)
    positives = np.bincount(place, labels).astype(np.int64)
    return positives.cumsum(), (np.bincount(place) - positives).cumsum(), place


def rates(labels: Labels, scores: Scores) -> Areas:
    """What the thresholds of a score give for rows (n,) of both classes.

    They are "auprc", as in `auprc`; "recall_at_1", "recall_at_5" and "recall_at_10", the largest
    recall of a rule `score >= t` with at most 1, 5 or 10% false positives; and "fpr_at_95", the
    smallest false positive rate with a recall of at least 95%.
    """
    check_scores(labels, scores)
    true, false, _ = counts_above(labels, scores)
    recall, false_rate = true / true[-1], false / false[-1]
    area = float(np.diff(recall, prepend=0) @ (true / (true + false)))
    numbers = {"auprc": min(1.0, area)}  # a rounded sum may be above
    slack = 1e-9  # 0.05 of 20 rows is one row, whatever the rounding
    for name, most in FALSE_RATES.items():
        numbers[name] = float(recall[false_rate <= most + slack].max(initial=0))
    return numbers | {"fpr_at_95": float(false_rate[recall >= TRUE_RATE - slack].min())}


def roc_points(labels: Labels, scores: Scores) -> Curve:
    """False and true positive rates (n_thresholds + 1,), from (0, 0) to (1, 1)."""
    return roc_curve(labels, scores, drop_intermediate=False)[:2]


def pr_points(labels: Labels, scores: Scores) -> Curve:
    """Recall and precision (n_thresholds + 1,), from recall 0 to 1.

    Drawn as steps, where the precision of a point holds from the recall before it, the area below
    the curve is `auprc`. The first point, of recall 0, repeats the precision of the second.
    """
    precision, recall, _ = precision_recall_curve(labels, scores)
    return recall[::-1], np.append(precision[-2], precision[-2::-1])


def confidence(scores: Scores, threshold: float) -> Scores:
    """How far each prediction `score >= threshold` is from its opposite, (n,) from 0 to 0.5.

    It is |p - 0.5| of the score read against its threshold t, p = s(1 - t) / (s(1 - t) + (1 - s)t):
    the odds of s over those of t. For t = 0.5 p is s; for any t, s = t is undecided, and s = 0 and
    s = 1 are certain.
    """
    for_positive = scores * (1 - threshold)
    for_negative = (1 - scores) * threshold
    total = for_positive + for_negative
    p = np.full(len(scores), 0.5)  # undecided where score and threshold are both 0 or both 1
    np.divide(for_positive, total, out=p, where=total > 0)
    return np.abs(p - 0.5)


def risk_coverage(labels: Labels, scores: Scores, threshold: float) -> Curve:
    """Error rate of the k most confident predictions `score >= threshold`, for k = 1 to n.

    Selective prediction (Geifman and El-Yaniv, arXiv:1705.08500): the rows of least `confidence`
    are left out first. Rows of equal confidence are left out in random order, so each of them
    counts as their mean error.

    Returns k / n (n,), up to 1, and the error rate (n,) of those k; the last is 1 - accuracy.
    """
    wrong = ((scores >= threshold) != labels).astype(np.float64)
    k = np.arange(1, len(labels) + 1)
    return k / len(labels), _means_of_first(wrong, -confidence(scores, threshold))


def _means_of_first(values: NDArray, keys: NDArray) -> Scores:
    """Mean value of the k lowest keys, for k = 1 to n; equal keys count as their mean."""
    _, rank = np.unique(keys, return_inverse=True)
    counts = np.bincount(rank)
    expected = np.repeat(np.bincount(rank, values) / counts, counts)
    return np.cumsum(expected) / np.arange(1, len(values) + 1)


def aurc(labels: Labels, scores: Scores, threshold: float) -> float:
    """Area under the risk-coverage curve: its mean risk (Geifman et al., arXiv:1805.08206)."""
    _, risk = risk_coverage(labels, scores, threshold)
    return float(np.mean(risk))


def prediction_rejection_ratio(labels: Labels, scores: Scores, most: float = 1.0) -> float:
    """PRR: what leaving out the highest scores gains, 0 for random scores and 1 for perfect ones.

    The area is that of the share of right answers among the k lowest scores over k = 1 to n; the
    ratio is its gain over random scores, divided by the gain of perfect ones (Malinin and Gales,
    arXiv:2002.07650, with the quality of an answer as LM-Polygraph has it, arXiv:2406.15627, here 1
    for right and 0 for a hallucination). At most a share `most` of the answers is left out: k runs
    over the last floor(most * n) numbers up to n, as LM-Polygraph has it with `max_rejection`.

    Unlike `aurc` it reads no threshold: the right answers are the language model's, not those of a
    detector. Equal scores count as their mean. Where so few may be left out that not even perfect
    scores gain, it is 0.
    """
    check_scores(labels, scores)
    if np.ptp(scores) == 0:
        return 0.0  # without the rounding that would show as -.000
    right = 1.0 - labels
    n_last = max(1, int(most * len(labels)))
    gain, ideal = (
        _means_of_first(right, keys)[-n_last:].mean() - right.mean() for keys in (scores, labels)
    )
    return 0.0 if np.isclose(ideal, 0) else float(gain / ideal)


def youden_threshold(labels: Labels, scores: Scores) -> float:
    """The score t whose rule `score >= t` has the largest J = true - false positive rate.

    It is one of the scores, hence finite (Youden, 1950). Of several with the same J it is the one
    of the most right predictions, and then the lowest. If all scores are equal it is 0.5, so that a
    constant probability predicts the majority.
    """
    check_scores(labels, scores)
    true, false, _ = counts_above(labels, scores)
    if len(true) == 1:
        return 0.5
    by_j = true * false[-1] - false * true[-1]  # J times both classes: equal where J is
    best = np.lexsort((true - false, by_j))[-1]
    return float(np.unique(scores)[::-1][best])


def calibration_bins(labels: Labels, scores: Scores) -> tuple[NDArray, NDArray, NDArray]:
    """Mean score, base rate and count of each non-empty bin, each (n_non_empty,)."""
    _, rank = np.unique(_bin_of(scores), return_inverse=True)  # numbers the non-empty bins
    count = np.bincount(rank)
    mean_score = np.bincount(rank, scores) / count
    base_rate = np.bincount(rank, labels) / count
    return mean_score, base_rate, count


def _bin_of(scores: Scores) -> Labels:
    """The bin of each score, from 0; a score of 1 belongs to the last."""
    return np.minimum((scores * N_BINS).astype(int), N_BINS - 1)


def calibration_sums(labels: Labels, scores: Scores, question: QuestionNumbers) -> Scores:
    """The sum of label less score of each question in each bin, (n_questions, 15).

    `question` (n,) numbers questions from 0.
    """
    n_questions = int(question.max()) + 1
    sums = np.zeros((n_questions, N_BINS))
    np.add.at(sums, (question, _bin_of(scores)), labels - scores)
    return sums


def expected_calibration_error(labels: Labels, scores: Scores) -> float:
    """Mean over rows of |base rate - mean score| of the row's bin, of 15 equal bins on [0, 1].

    It is of the probability of hallucination; `confidence_error` is Guo's.
    """
    mean_score, base_rate, count = calibration_bins(labels, scores)
    return float(np.abs(base_rate - mean_score) @ count / len(labels))


def confidence_error(labels: Labels, scores: Scores) -> float:
    """ECE of Guo et al. (arXiv:1706.04599): |accuracy - confidence| of 15 equal bins on [0, 1].

    The prediction is the likelier class, its confidence the probability of that class, at least
    0.5; so it does not see whether the two classes err in opposite directions.
    """
    right = ((scores >= 0.5) == labels).astype(np.int64)
    return expected_calibration_error(right, np.maximum(scores, 1 - scores))


def brier(labels: Labels, scores: Scores) -> float:
    """Mean squared difference of score and label."""
    return float(np.mean((scores - labels) ** 2))


def measure(labels: Labels, scores: Scores, threshold: float) -> Metrics:
    """Every metric, those of predictions of `score >= threshold`.

    MCC, Matthews' correlation, is 0 where it is undefined; `base_rate` is the AUPRC of random
    scores. A recall at a rate of false positives is None where one negative is more than that rate,
    and `fpr_at_95` where one positive is more than 5%.
    """
    predicted = scores >= threshold
    numbers: dict[str, float | None] = dict(rates(labels, scores))
    return Metrics(
        auroc=auroc(labels, scores),
        **(numbers | dict.fromkeys(unmeasured_rates(labels))),
        base_rate=float(np.mean(labels)),
        ece=expected_calibration_error(labels, scores),
        confidence_ece=confidence_error(labels, scores),
        brier=brier(labels, scores),
        prr=prediction_rejection_ratio(labels, scores),
        prr_half=prediction_rejection_ratio(labels, scores, most=0.5),
        f1=float(f1_score(labels, predicted, zero_division=0)),
        mcc=float(matthews_corrcoef(labels, predicted)),
        accuracy=float(accuracy_score(labels, predicted)),
        aurc=aurc(labels, scores, threshold),
        threshold=threshold,
    )


def unmeasured_rates(labels: Labels) -> list[str]:
    """Names of those of `rates` that so few rows have not: one of them is more than the rate."""
    n_positives, n_negatives = np.sum(labels == 1), np.sum(labels == 0)
    names = [name for name, rate in FALSE_RATES.items() if n_negatives * rate < 1]
    return names + ["fpr_at_95"] * bool(n_positives * (1 - TRUE_RATE) < 1 - 1e-9)


def check_scores(labels: Labels, scores: Scores) -> None:
    """Raise ValueError unless the scores (n,) are finite and the labels (n,) hold both classes."""
    n_not_finite = np.sum(~np.isfinite(scores))
    if n_not_finite:
        raise ValueError(f"scores: expected finite numbers, found {n_not_finite} that are not")
    classes = np.unique(labels).tolist()
    if classes != [0, 1]:
        raise ValueError(f"labels: expected both 0 and 1, found {classes}")
