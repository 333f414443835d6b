"""95% intervals of metrics of scores, over questions: NumPy arrays in, numbers out.

Rows of one question are not independent, so it is questions that vary; of several trainings
(n_runs, n) an interval is that of the mean, and the trainings vary, too. All but that of the ECE,
which has a bootstrap, follow from formulas; `benchmarks/coverage.py` says how often each holds the
truth.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from train.evaluate.metrics import (
    EPSILON,
    FALSE_RATES,
    TRUE_RATE,
    Labels,
    QuestionNumbers,
    Scores,
    auroc,
    calibration_sums,
    check_scores,
    counts_above,
    drawn_counts,
    rates,
)
from train.evaluate.results import Interval

__all__ = [
    "auprc_interval",
    "auroc_interval",
    "clustered_variance",
    "mean_placement_values",
    "metric_intervals",
    "share_interval",
]

Z = float(norm.ppf(0.975))
PRIOR = 7  # questions of the class with fewer, that weigh as much as what is usual
ROUNDED = 1e-11  # an area so close to 0 or 1 is that; wider than the steps of `brentq`
ALIKE = 0.5  # correlation of the rows of a question that is usual


def metric_intervals(
    labels: Labels, scores: Scores, questions: QuestionNumbers, seed: int
) -> dict[str, Interval]:
    """The intervals of this module, by the name of the metric."""
    rows = labels, scores, questions
    return rate_intervals(*rows) | {
        "auroc": auroc_interval(*rows),
        "auprc": auprc_interval(*rows),
        "ece": ece_interval(*rows, seed),
        "brier": brier_interval(*rows),
    }


def auroc_interval(labels: Labels, scores: Scores, questions: QuestionNumbers) -> Interval:
    """The 95% interval of the AUROC.

    It is Newcombe's score interval (2006, method 5, doi:10.1002/sim.2324), see `score_interval`,
    with DeLong's variance of questions. It is .5 to .5 for constant scores.
    """
    positive, negative = mean_placement_values(labels, scores)
    area = float(positive.mean())
    deviations = positive - area, negative - area
    if area == 0.5 and not np.any(deviations[0]):
        return [0.5, 0.5]
    n_positive, n_negative = len(positive), len(negative)

    def variance(area: float) -> float:
        """Hanley and McNeil's, the same for both classes."""
        n = (n_positive + n_negative) / 2
        spread = 1 + (n - 1) * ((1 - area) / (2 - area) + area / (1 + area))
        return area * (1 - area) * spread / (n_positive * n_negative)

    within = clip(area, 0.5 / (n_positive * n_negative))
    ratio = variance_ratio(labels, *deviations, questions, variance(within))
    interval = score_interval(area, lambda other: ratio * variance(other))
    return add_trainings(interval, [auroc(labels, run) for run in np.atleast_2d(scores)])


def auprc_interval(labels: Labels, scores: Scores, questions: QuestionNumbers) -> Interval:
    """The 95% interval of the AUPRC.

    It is a score interval whose model is a share of the positives, which is binomial (as of Boyd et
    al., 2013, doi:10.1007/978-3-642-40994-3_55), with Student's t of the questions of the smaller
    class.
    """
    found, positive, negative = zip(
        *[precision_deviations(labels, run) for run in np.atleast_2d(scores)], strict=True
    )
    area = float(np.mean(found))
    deviations: tuple[Scores, Scores] = np.mean(positive, axis=0), np.mean(negative, axis=0)
    n_positive = len(deviations[0])
    within = clip(area, 0.5 / n_positive)
    ratio = variance_ratio(labels, *deviations, questions, within * (1 - within) / n_positive)
    z = student.ppf(0.975, max(1, min(questions_of_classes(labels, questions)) - 1))
    return add_trainings(wilson(area, n_positive / ratio, float(z)), found)


def brier_interval(labels: Labels, scores: Scores, questions: QuestionNumbers) -> Interval:
    """The 95% interval of the Brier score: a score interval with the variance of questions."""
    errors = (np.atleast_2d(scores) - labels) ** 2  # (n_runs, n)
    found = float(errors.mean())
    names, question = np.unique(questions, return_inverse=True)
    moved = without_each(errors.mean(axis=0) - found, question, len(names))
    variance = float(moved @ moved)
    if variance < EPSILON:
        return [found, found]
    z = student.ppf(0.975, max(1, equal_questions(questions) - 1))
    interval = wilson(found, found * (1 - found) / variance, float(z))
    return add_trainings(interval, errors.mean(axis=1).tolist())


def rate_intervals(
    labels: Labels, scores: Scores, questions: QuestionNumbers
) -> dict[str, Interval]:
    """95% intervals of recall at fixed false positive rates, and of the latter at 95% recall.

    They are named as in `rates`. Of several runs the ends are means.
    """
    runs = np.atleast_2d(scores)
    found = [rates(labels, run) for run in runs]
    ends = {
        name: [recall_interval(labels, run, questions, most) for run in runs]
        for name, most in FALSE_RATES.items()
    }
    # a false positive is a right answer that is not recalled from below
    below = [recall_interval(1 - labels, -run, questions, 1 - TRUE_RATE) for run in runs]
    ends["fpr_at_95"] = [[1 - high, 1 - low] for low, high in below]
    intervals = {}
    for name, of_runs in ends.items():
        values = [one[name] for one in found]
        ends_and_mean = [*np.mean(of_runs, axis=0).tolist(), float(np.mean(values))]
        intervals[name] = add_trainings([min(ends_and_mean), max(ends_and_mean)], values)
    return intervals


def recall_interval(
    labels: Labels, scores: Scores, questions: QuestionNumbers, most: float
) -> Interval:
    """The 95% interval of the recall of a threshold whose false positive rate is `most`.

    Two things vary: the recall above a threshold, and which threshold has that rate. Of the first
    Wilson's interval (1927), of the second the recalls at the ends of his interval of the rate are
    so far away; the distances are squared and added (MOVER: Zou and Donner, 2008,
    doi:10.1002/sim.3095). The rate of the j-th highest of n right answers is taken as j / (n + 1).
    Where the rows of a question are alike, Wilson's intervals are of fewer.
    """
    is_positive = labels == 1
    negatives = np.sort(scores[~is_positive])[::-1]
    n = len(negatives)
    recalls = 1 - np.searchsorted(np.sort(scores[is_positive]), negatives, side="right") / np.sum(
        is_positive
    )
    rate_of = np.arange(n + 2) / (n + 1)
    beyond = max(0.0, 2 * recalls[0] - recalls[min(1, n - 1)])  # the curve goes on straight
    recall_at = np.concatenate([[beyond], recalls, [1]])
    recall = float(np.interp(most, rate_of, recall_at))
    is_above = scores > np.interp(most, rate_of[1:-1], negatives)
    n_positive, n_negative = (
        independent_rows(is_above[of_class], questions[of_class])
        for of_class in (is_positive, ~is_positive)
    )
    moved = np.interp(wilson(most, n_negative), rate_of, recall_at)
    own = wilson(recall, n_positive)
    down, up = np.hypot(np.subtract(own, recall), moved - recall)
    return [max(0.0, recall - float(down)), min(1.0, recall + float(up))]


def share_interval(is_so: NDArray[np.bool_], questions: QuestionNumbers) -> Interval:
    """The 95% interval of the share of rows (n,) that are so, such as the accuracy: Wilson's, with
    as many rows as are independent, and Student's t of the questions."""
    z = student.ppf(0.975, max(1, equal_questions(questions) - 1))
    return wilson(float(is_so.mean()), independent_rows(is_so, questions), float(z))


def independent_rows(is_above: NDArray[np.bool_], questions: QuestionNumbers) -> float:
    """How many independent rows tell as much of a share as these (n,)."""
    names, question = np.unique(questions, return_inverse=True)
    deviations = is_above - is_above.mean()
    n = len(is_above)
    moved = without_each(deviations, question, len(names))
    apart = float(deviations @ deviations) / (n * max(1, n - 1))
    return n / design_effect(float(moved @ moved), apart, n, equal_questions(questions))


def add_trainings(interval: Interval, values: Sequence[float]) -> Interval:
    """An interval over questions of the mean of several trainings' values, were they trained anew.

    Each side has so many standard errors of questions; to their variance that of a mean over
    trainings is added, and the degrees of freedom are those of Welch and Satterthwaite, as in
    `error_of_trainings`.
    """
    n = len(values)
    spread = float(np.var(values, ddof=1)) / n if n > 1 else 0.0
    if not spread:
        return interval
    mean = float(np.mean(values))

    def reach(distance: float) -> float:
        variance = (distance / Z) ** 2 + spread
        return float(student.ppf(0.975, (n - 1) * (variance / spread) ** 2)) * math.sqrt(variance)

    low, high = interval
    return [max(0.0, mean - reach(mean - low)), min(1.0, mean + reach(high - mean))]


def score_interval(found: float, variance: Callable[[float], float], z: float = Z) -> Interval:
    """Those shares from which the found one is less than z standard errors away.

    The error is that of a model at *that* share, `variance(share)`, the same for 1 - share. So the
    interval lies within 0 and 1, and has a width where the found share is 1.
    """

    def lower(found: float) -> float:
        def excess(other: float) -> float:
            return found - other - z * math.sqrt(variance(other))

        if found < ROUNDED:
            return 0.0
        return float(brentq(excess, 0, found * (1 - 1e-9)))  # at 1 the error is 0: no end

    return [lower(found), 1 - lower(1 - found)]


def wilson(share: float, n: float, z: float = Z) -> Interval:
    """The score interval of a share of n independent rows (Wilson, 1927)."""
    return score_interval(share, lambda other: other * (1 - other) / n, z)


def variance_ratio(
    labels: Labels,
    by_positive: Scores,
    by_negative: Scores,
    questions: QuestionNumbers,
    expected: float,
) -> float:
    """How many times the variance that a model expects is that of a mean of deviations.

    The model knows neither the shape of the scores nor questions; the rows do, see
    `clustered_variance`. Where a class has few questions that ratio is uncertain, and is pulled to
    the design effect, which in turn is pulled to what it is if the scores of a question correlate
    by `ALIKE`.
    """
    n_questions = questions_of_classes(labels, questions)
    n_few = min(n_questions)
    n_rows = (len(by_positive), len(by_negative))[n_questions.index(n_few)]
    variance = clustered_variance(labels, by_positive, by_negative, questions)
    if variance is None:
        return n_rows / n_few
    apart = clustered_variance(labels, by_positive, by_negative, np.arange(len(labels)))
    design = design_effect(variance, apart or 0.0, n_rows, n_few)
    return pulled(variance / expected, design, n_few)


def design_effect(variance: float, apart: float, n_rows: int, n_questions: float) -> float:
    """How much larger a variance is than that of rows each `apart`, for those of a question being
    alike; pulled to what is usual."""
    most = n_rows / n_questions
    if not apart:
        return most
    return pulled(max(1, variance / apart), 1 + ALIKE * (most - 1), n_questions)


def questions_of_classes(labels: Labels, questions: QuestionNumbers) -> list[float]:
    """Number of questions that have a positive, and that have a negative, see `equal_questions`."""
    return [equal_questions(questions[labels == label]) for label in (1, 0)]


def equal_questions(questions: QuestionNumbers) -> float:
    """How many questions of as many rows each tell as much as these (Kish, 1965)."""
    _, n_rows = np.unique(questions, return_counts=True)
    return len(questions) ** 2 / float(n_rows @ n_rows)


def pulled(found: float, usual: float, n_questions: float) -> float:
    """What so many questions show, pulled to what is usual, which weighs as much as `PRIOR`."""
    return (n_questions * found + PRIOR * usual) / (n_questions + PRIOR)


def clip(share: float, least: float) -> float:
    """Away from 0 and 1, where a model has no error."""
    return min(max(share, least), 1 - least)


def ece_interval(labels: Labels, scores: Scores, questions: QuestionNumbers, seed: int) -> Interval:
    """The 95% interval of the ECE, by a bootstrap over questions.

    It has the percentiles, moved by twice the bias of their median (Efron, 1987) and as far apart
    as Student's t of the questions asks for (Hesterberg, 2015), the errors of `invert_ece`, and the
    error that was found.
    """
    _, question = np.unique(questions, return_inverse=True)
    n_rows, n_questions = len(labels), int(question.max()) + 1
    by_question = [calibration_sums(labels, run, question) for run in np.atleast_2d(scores)]
    found = np.array([sums.sum(axis=0, keepdims=True) for sums in by_question])
    blocks = drawn_counts(n_questions, seed)
    totals = [[counts @ sums for sums in by_question] for counts in blocks]
    drawn = np.concatenate(totals, axis=1)  # (n_runs, r, 15)
    samples, (error,) = ece_of(drawn, n_rows), ece_of(found, n_rows)
    n = max(2, n_questions)
    z = student.ppf(0.975, n - 1) * math.sqrt(n / (n - 1))
    below = np.mean(samples < error) + np.mean(samples == error) / 2
    bias = norm.ppf(np.clip(below, 1 / len(samples), 1 - 1 / len(samples)))
    corrected = np.quantile(samples, norm.cdf([2 * bias - z, 2 * bias + z]))
    ends = [*corrected, *invert_ece(found, drawn, n_rows), error]
    of_runs = np.abs(found).sum(axis=(1, 2)) / n_rows
    return add_trainings([float(min(ends)), float(max(ends))], of_runs.tolist())


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


def mean_placement_values(labels: Labels, scores: Scores) -> tuple[Scores, Scores]:
    """Placement values of one run (n,), or their means over several (n_runs, n).

    They are the share of negatives below each positive, (n_positives,), and of positives above each
    negative, (n_negatives,); the mean of each is the AUROC (DeLong et al., 1988).
    """
    runs = [_placement_values(labels, run) for run in np.atleast_2d(scores)]
    positive, negative = zip(*runs, strict=True)
    return np.mean(positive, axis=0), np.mean(negative, axis=0)


def clustered_variance(
    labels: Labels, by_positive: Scores, by_negative: Scores, questions: QuestionNumbers
) -> float | None:
    """Variance of a number whose rows deviate by these, (n_positives,) and (n_negatives,).

    A deviation is what a row more of its kind would change, times the rows of its class: of an
    AUROC that of its placement value. As of Obuchowski (1997, doi:10.2307/2533958) they are summed
    within a question; of one row a question it is DeLong's. A question of many rows draws the
    number to itself, so its sum is how far the others would be without it: the jackknife of
    questions (CR3 of Bell and McCaffrey, 2002). None where the rows of a class are of a single
    question.
    """
    _, question = np.unique(questions, return_inverse=True)
    moved = np.zeros(int(question.max()) + 1)
    for label, values in ((1, by_positive), (0, by_negative)):
        of_class = question[labels == label]
        if len(np.unique(of_class)) == 1:
            return None
        moved += without_each(values, of_class, len(moved))
    return float(moved @ moved)


def without_each(
    deviations: Scores, question: NDArray[np.int64], n_questions: int
) -> NDArray[np.float64]:
    """How far their mean, 0, moves without the rows of each question, (n_questions,).

    Their squares add up to its variance by the jackknife. A question without rows moves nothing.
    """
    sums = np.bincount(question, deviations, minlength=n_questions)
    n_others = len(question) - np.bincount(question, minlength=n_questions)
    n_with = len(np.unique(question))
    return math.sqrt(1 - 1 / n_with) * sums / np.maximum(1, n_others)


def _placement_values(labels: Labels, scores: Scores) -> tuple[Scores, Scores]:
    """Those of one run (n,); ties count one half."""
    check_scores(labels, scores)
    positive = labels == 1
    negative = ~positive
    midranks = rankdata(scores)
    n_below_positive = midranks[positive] - rankdata(scores[positive])
    n_below_negative = midranks[negative] - rankdata(scores[negative])
    return n_below_positive / np.sum(negative), 1 - n_below_negative / np.sum(positive)


def precision_deviations(labels: Labels, scores: Scores) -> tuple[float, Scores, Scores]:
    """AUPRC of one run (n,), and how far each row moves it, as `clustered_variance` has it.

    They are the derivatives by a row's weight, times the number of rows of its class: a positive
    counts itself, and as one more that is found at the thresholds below it; a negative as a false
    one there.
    """
    check_scores(labels, scores)
    true, false, place = counts_above(labels, scores)
    n_positive, n_negative = true[-1], false[-1]
    precision = true / (true + false)
    share = np.diff(true, prepend=0) / n_positive  # of the positives at each score
    slope = share / (true + false)
    by_true = np.cumsum((slope * (1 - precision))[::-1])[::-1]
    by_false = np.cumsum((slope * precision)[::-1])[::-1]
    area = float(share @ precision)
    positive, negative = place[labels == 1], place[labels == 0]
    return (
        area,
        precision[positive] - area + n_positive * by_true[positive],
        -n_negative * by_false[negative],
    )
