"""95% intervals of metrics of scores, over questions: NumPy arrays in, numbers out.

Rows of one question are not independent, so it is questions that vary. The interval of the AUROC
follows from a formula, those of other metrics from a bootstrap; `benchmarks/coverage.py` says how
often each holds the truth.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binomtest, norm, rankdata
from scipy.stats import t as student

from train.evaluate.metrics import (
    N_BINS,
    Labels,
    Questions,
    Scores,
    calibration_errors,
    calibration_sums,
    check_scores,
    drawn_counts,
    rank_rows,
    rates,
)
from train.evaluate.results import Interval

__all__ = [
    "auroc_interval",
    "bootstrap_calibration",
    "bootstrap_rates",
    "clustered_variance",
    "mean_components",
]

Z = float(norm.ppf(0.975))
PRIOR = 7  # questions of the class with fewer, that weigh as much as what is usual
ALIKE = 0.5  # correlation of the rows of a question that is usual


def auroc_interval(labels: Labels, scores: Scores, questions: Questions) -> Interval:
    """The 95% interval of the AUROC; of several runs (n_runs, n) that of their mean AUROC.

    It is the score interval of Newcombe (2006, method 5, doi:10.1002/sim.2324): those areas from
    which the found one is less than 1.96 standard errors away, the error being that of a model at
    *that* area. So it lies within 0 and 1, and has a width where the found area is 1.

    The model knows neither the shape of the scores nor questions. Its variance is therefore
    multiplied by the ratio of the variance that the rows show (DeLong's, of questions: see
    `clustered_variance`) to its own. Where a class has few questions that ratio is uncertain, and
    is pulled to the design effect: how much larger the variance is for rows of a question being
    alike. That is pulled in turn, to what it is if their scores correlate by `ALIKE`.
    Both ends are .5 for constant scores.
    """
    positive, negative = mean_components(labels, scores)
    area = float(positive.mean())
    variance = clustered_variance(labels, positive, negative, questions)
    if variance == 0 and area == 0.5:
        return [0.5, 0.5]
    sizes = len(positive), len(negative)
    n_questions = [len(np.unique(questions[labels == label])) for label in (1, 0)]
    n_few = min(n_questions)
    most = sizes[n_questions.index(n_few)] / n_few
    apart = clustered_variance(labels, positive, negative, np.arange(len(labels)))
    ratio = design = most
    if variance is not None:
        if apart:
            design = pulled(max(1, variance / apart), 1 + ALIKE * (most - 1), n_few)
        half_a_pair = 0.5 / (sizes[0] * sizes[1])
        within = min(max(area, half_a_pair), 1 - half_a_pair)  # at 0 and 1 the model has no error
        ratio = pulled(variance / model_variance(within, *sizes), design, n_few)
    return [lower_end(area, ratio, *sizes), 1 - lower_end(1 - area, ratio, *sizes)]


def pulled(found: float, usual: float, n_questions: int) -> float:
    """What so many questions show, pulled to what is usual, which weighs as much as `PRIOR`."""
    return (n_questions * found + PRIOR * usual) / (n_questions + PRIOR)


def model_variance(area: float, n_positive: int, n_negative: int) -> float:
    """Newcombe's variance of an AUROC: Hanley and McNeil's, the same for both classes."""
    n = (n_positive + n_negative) / 2
    spread = 1 + (n - 1) * ((1 - area) / (2 - area) + area / (1 + area))
    return area * (1 - area) * spread / (n_positive * n_negative)


def lower_end(area: float, ratio: float, n_positive: int, n_negative: int) -> float:
    """The least area from which the found one is at most 1.96 standard errors away."""

    def excess(other: float) -> float:
        error = math.sqrt(ratio * model_variance(other, n_positive, n_negative))
        return area - other - Z * error

    if area == 0:
        return 0.0
    return float(brentq(excess, 0, area * (1 - 1e-9)))  # at 1 the error is 0: no end


def bootstrap_rates(
    labels: Labels, scores: Scores, questions: Questions, seed: int
) -> dict[str, Interval]:
    """95% intervals of the numbers of `rates`, by name, by a bootstrap over questions.

    Of several runs they are those of the means; resamples with a single class are left out.
    """
    _, question = np.unique(questions, return_inverse=True)
    n_questions = int(question.max()) + 1
    n_with = [len(np.unique(question[labels == label])) for label in (0, 1)]
    ranked = [rank_rows(labels, run, question) for run in np.atleast_2d(scores)]

    def numbers(counts: NDArray) -> dict[str, Scores]:
        of_runs = [rates(one, counts) for one in ranked]
        return {name: np.mean([one[name] for one in of_runs], axis=0) for name in of_runs[0]}

    drawn = [*map(numbers, drawn_counts(n_questions, seed, n_rows=len(labels)))]
    intervals = {}
    for name, (found,) in numbers(np.ones((1, n_questions))).items():
        samples = np.concatenate([one[name] for one in drawn])
        samples = samples[~np.isnan(samples)]
        if name == "auprc":
            intervals[name] = bias_corrected(samples, found, min(n_with))
        else:
            n_of_class = n_with[name != "fpr_at_95"]
            intervals[name] = rate_interval(samples, found, n_of_class, n_questions)
    return intervals


def bootstrap_calibration(
    labels: Labels, scores: Scores, questions: Questions, seed: int
) -> dict[str, Interval]:
    """95% intervals of "ece" and "brier" of probabilities, as in `bootstrap_rates`.

    That of the ECE reaches up to the one that was found, which mostly is too large.
    """
    _, question = np.unique(questions, return_inverse=True)
    by_question = [calibration_sums(labels, run, question) for run in np.atleast_2d(scores)]
    n_questions = int(question.max()) + 1
    blocks = drawn_counts(n_questions, seed)
    totals = [[counts @ sums for sums in by_question] for counts in blocks]
    drawn = np.concatenate(totals, axis=1)  # (n_runs, r, 15 + 2)
    found = np.array([sums.sum(axis=0, keepdims=True) for sums in by_question])
    intervals = {}
    for name, samples in mean_errors(drawn).items():
        intervals[name] = bias_corrected(samples, mean_errors(found)[name][0], n_questions)
    inverted = invert_ece(found[..., :N_BINS], drawn[..., :N_BINS], len(labels))
    (ece,) = mean_errors(found)["ece"]
    intervals["ece"] = hull(intervals["ece"], inverted, [ece, ece])
    return intervals


def mean_errors(sums: Scores) -> dict[str, Scores]:
    """Those of `calibration_errors`, (r,), the means over runs (n_runs, r, 15 + 2)."""
    of_runs = [calibration_errors(run) for run in sums]
    return {name: np.mean([one[name] for one in of_runs], axis=0) for name in of_runs[0]}


def student_z(n_questions: int) -> float:
    """What takes the place of 1.96, since few questions vary too little (Hesterberg, 2015)."""
    n = max(2, n_questions)
    return float(student.ppf(0.975, n - 1)) * math.sqrt(n / (n - 1))


def rate_interval(samples: Scores, found: float, n_of_class: int, n_questions: int) -> Interval:
    """Percentiles of samples (n_kept,), and at least the interval of Wilson (1927).

    A bootstrap of a rate of 0 or 1 has no width; Wilson's is of as many questions as have rows of
    the class.
    """
    z = student_z(n_questions)
    wilson = binomtest(round(found * n_of_class), n_of_class).proportion_ci(method="wilson")
    return hull(np.quantile(samples, norm.cdf([-z, z])), wilson)


def bias_corrected(samples: Scores, found: float, n_questions: int) -> Interval:
    """Percentiles of samples (n_kept,), moved by twice the bias of their median (Efron, 1987)."""
    z = student_z(n_questions)
    below = np.mean(samples < found) + np.mean(samples == found) / 2
    z0 = norm.ppf(np.clip(below, 1 / len(samples), 1 - 1 / len(samples)))
    return np.quantile(samples, norm.cdf([2 * z0 - z, 2 * z0 + z])).tolist()


def hull(*intervals: Sequence[float]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return [float(min(lows)), float(max(highs))]


def invert_ece(found: Scores, drawn: Scores, n_rows: int) -> Interval:
    """Those calibration errors for which the one that was found is no surprise.

    A found ECE is too large, since chance alone moves every bin, and a resampled one is so twice:
    percentiles would lie above the truth. So all errors are tried that are c times the found ones
    of the bins, with the noise of the resamples around them: c from 0, which is perfectly
    calibrated, to 1.5.

    `found` (n_runs, 1, 15) and `drawn` (n_runs, r, 15) are the sums of labels less scores in each
    bin, of all rows and of resamples.
    """
    shares = np.linspace(0, 1.5, 61)
    noise = drawn - found
    errors = np.array([ece_of(share * found + noise, n_rows) for share in shares])
    low, high = np.quantile(errors, norm.cdf([-Z, Z]), axis=1)  # (n_shares,)
    (error,) = ece_of(found, n_rows)
    possible = error * shares[(low <= error) & (error <= high)]
    return [float(possible.min()), float(possible.max())] if len(possible) else [error, error]


def ece_of(bins: Scores, n_rows: int) -> Scores:
    """(n_runs, r, 15) -> the mean ECE of the runs, (r,)."""
    return np.abs(bins).sum(axis=2).mean(axis=0) / n_rows


def mean_components(labels: Labels, scores: Scores) -> tuple[Scores, Scores]:
    """Placement values of one run (n,), or their means over several (n_runs, n).

    They are the share of negatives below each positive, (n_positives,), and of positives above each
    negative, (n_negatives,); the mean of each is the AUROC (DeLong et al., 1988).
    """
    runs = [_structural_components(labels, run) for run in np.atleast_2d(scores)]
    positive, negative = zip(*runs, strict=True)
    return np.mean(positive, axis=0), np.mean(negative, axis=0)


def clustered_variance(
    labels: Labels, by_positive: Scores, by_negative: Scores, questions: Questions
) -> float | None:
    """Variance of the mean of placement values, (n_positives,) and (n_negatives,).

    By Obuchowski (1997, doi:10.2307/2533958) they are summed within a question; of one row a
    question it is DeLong's. None where the rows of a class are of a single question.
    """
    _, question = np.unique(questions, return_inverse=True)
    n_questions = int(question.max()) + 1
    sums, variance = [], 0.0
    for label, values in ((1, by_positive), (0, by_negative)):
        of_class = question[labels == label]
        n_with = len(np.unique(of_class))  # questions that have rows of this class
        if n_with == 1:
            return None
        deviations = (values - values.mean()) / len(values)
        sums.append(np.bincount(of_class, deviations, minlength=n_questions))
        variance += n_with / (n_with - 1) * float(sums[-1] @ sums[-1])
    variance += 2 * n_questions / (n_questions - 1) * float(sums[0] @ sums[1])
    # the three factors differ, so their sum may fall below what it estimates without them
    total = sums[0] + sums[1]
    return max(variance, float(total @ total))


def _structural_components(labels: Labels, scores: Scores) -> tuple[Scores, Scores]:
    """Those of one run (n,); ties count one half."""
    check_scores(labels, scores)
    positive = labels == 1
    negative = ~positive
    midranks = rankdata(scores)
    n_below_positive = midranks[positive] - rankdata(scores[positive])
    n_below_negative = midranks[negative] - rankdata(scores[negative])
    return n_below_positive / np.sum(negative), 1 - n_below_negative / np.sum(positive)
