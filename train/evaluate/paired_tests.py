"""Paired tests of two AUROCs on the same rows, corrected for the number of pairs.

NumPy arrays in, records out. Since the tests are paired, a row that is hard for both detectors
counts for neither, and a difference can be clear although the two intervals overlap.
"""

import math
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from models import CONTROLS
from train.evaluate.intervals import clustered_variance, mean_placement_values
from train.evaluate.metrics import Labels, QuestionNumbers, Scores, auroc, auroc_samples, mean_auroc
from train.evaluate.results import (
    Contrast,
    Entries,
    Interval,
    PairedTest,
    Verdict,
    best_on_validation,
)

__all__ = [
    "OF_QUESTION",
    "compare_pairs",
    "delong_test",
    "error_of_trainings",
    "find_verdict",
    "hardest_control",
    "holm",
    "holm_of_rivals",
    "t_interval",
]

OF_QUESTION = ("question", "prompt")  # what a control sees that reads what was asked

Key = TypeVar("Key", bound=Hashable)


class DeLongTest(NamedTuple):
    """Difference of two AUROCs, and its variance over questions; None where that is unknown."""

    difference: float
    variance: float | None

    @property
    def z(self) -> float:
        """The number of standard errors; infinite where the variance is 0."""
        if self.difference == 0 or self.variance is None:
            return 0.0
        error = math.sqrt(self.variance)
        return self.difference / error if error else math.copysign(math.inf, self.difference)

    @property
    def p(self) -> float:
        """Two-sided; 1 where the difference is 0, and where there is no variance."""
        return float(2 * norm.sf(abs(self.z)))


def delong_test(
    labels: Labels, a: Scores, b: Scores, questions: QuestionNumbers | None = None
) -> DeLongTest:
    """Test AUROC(a) - AUROC(b) on the same rows by the variance of their placement values.

    After DeLong et al. (1988, doi:10.2307/2531595), the placement values from midranks as in Sun
    and Xu (2014, doi:10.1109/LSP.2014.2337313). Rows of one question are not independent, so the
    values are summed within a question (Obuchowski, 1997, doi:10.2307/2533958), see
    `clustered_variance`; of one row a question this is DeLong's test itself. The normal
    distribution of z holds for many questions: with 12, p is below 0.05 in some 8 to 9% of
    simulated samples where the truth is 0.

    Of several runs the difference is that of their mean AUROCs. By default all questions differ.
    There is no variance where the rows of a class are of a single question.
    """
    if questions is None:
        questions = np.arange(len(labels))
    positive_a, negative_a = mean_placement_values(labels, a)
    positive_b, negative_b = mean_placement_values(labels, b)
    by_positive, by_negative = positive_a - positive_b, negative_a - negative_b
    difference = float(by_positive.mean())
    deviations = by_positive - difference, by_negative - difference
    return DeLongTest(difference, clustered_variance(labels, *deviations, questions))


def holm(p_values: dict[Key, float]) -> dict[Key, float]:
    """P values corrected for their number by Holm's step-down method, in the same order.

    The k-th smallest of m becomes (m - k + 1) * p, but no less than the (k - 1)-th and at most 1.
    If the corrected values below 0.05 are called different, the probability of any false claim is
    below 0.05, however the tests depend on each other (Scand. J. Statist. 6:65-70, 1979).
    """
    corrected = dict(p_values)
    largest = 0.0
    for k, key in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - k) * p_values[key])
        corrected[key] = min(1.0, largest)
    return corrected


def holm_of_rivals(
    p_values: dict[tuple[Key, Key], float], controls: Collection[Key]
) -> dict[tuple[Key, Key], float]:
    """Holm's correction of pairs (a, b), apart for those where b is a control.

    They are two families: which method is better is one question, what a detector knows beyond the
    controls another. So a further control makes no comparison with a baseline stricter.
    """
    with_control = {pair: p for pair, p in p_values.items() if pair[1] in controls}
    others = {pair: p for pair, p in p_values.items() if pair not in with_control}
    return holm(others) | holm(with_control)


def compare_pairs(
    labels: Labels,
    scores: dict[Key, Scores],
    pairs: Sequence[tuple[Key, Key]],
    questions: QuestionNumbers,
    seed: int,
    controls: Collection[Key] = (),
) -> list[PairedTest[Key]]:
    """Both tests for each pair of names, with Holm's correction.

    The difference of a pair (a, b) is AUROC(a) - AUROC(b), of several runs that of the means of
    their AUROCs. Its interval is that of new questions and new trainings (`error_of_trainings`),
    the tests are of new questions alone. Pairs of `controls` are corrected apart, see
    `holm_of_rivals`. No p of the bootstrap is below a least one, which its number of resamples
    sets; `p_holm` corrects `p_delong`, which has no such limit.
    """
    areas = {name: mean_auroc(labels, runs) for name, runs in scores.items()}
    samples = {name: auroc_samples(labels, runs, questions, seed) for name, runs in scores.items()}
    found = {(a, b): delong_test(labels, scores[a], scores[b], questions) for a, b in pairs}
    p_holm = holm_of_rivals({pair: test.p for pair, test in found.items()}, controls)
    errors = {
        (a, b): error_of_trainings(test.variance, labels, scores[a], scores[b], questions)
        for (a, b), test in found.items()
    }
    return [
        PairedTest(
            a=a,
            b=b,
            difference=areas[a] - areas[b],
            ci=t_interval(areas[a] - areas[b], *errors[a, b]),
            p_bootstrap=bootstrap_p(samples[a] - samples[b]),
            p_bootstrap_least=2 / (len(samples[a]) + 1),
            p_delong=found[a, b].p,
            p_holm=p_holm[a, b],
            control=b in controls,
            error=errors[a, b][0],
            df=errors[a, b][1],
        )
        for a, b in pairs
    ]


def error_of_trainings(
    variance: float | None, labels: Labels, a: Scores, b: Scores, questions: QuestionNumbers
) -> tuple[float | None, float | None]:
    """How far the difference of mean AUROCs would vary with new questions and new trainings.

    The variance is the sum of that over questions, of `delong_test`, and for each method that was
    trained several times, of the sample variance of its runs' AUROCs over their number. To the
    first 1/(2n)^2 is added, half an answer of the n questions in the smaller class: near 1 DeLong's
    variance is too small, and equality would be claimed of few answers 5 times too often. The
    degrees of freedom are those of Welch and Satterthwaite (doi:10.2307/3002019), of n - 1 and of
    the trainings less 1: few trainings that differ make a wide interval.

    Returns the standard error and its degrees of freedom; None where the variance is unknown.
    """
    if variance is None:
        return None, None
    n = min(len(np.unique(questions[labels == label])) for label in (0, 1))
    parts = [(variance + 1 / (2 * n) ** 2, n - 1)]
    for runs in (a, b):
        if len(runs) > 1:
            spread = float(np.var([auroc(labels, run) for run in runs], ddof=1))
            parts.append((spread / len(runs), len(runs) - 1))
    total = sum(part for part, _ in parts)
    return math.sqrt(total), total**2 / sum(part**2 / df for part, df in parts)


def find_verdict(
    comparisons: Sequence[PairedTest[str]], detectors: Entries, baselines: Entries, margin: float
) -> Verdict | None:
    """What is found of the best detector and the best baseline; None without one of them.

    Every (detector, baseline) is among the comparisons; the AUROC on validation chooses, and Holm's
    correction is over all pairs that it chooses from. Controls are no rivals: the detector is to
    beat each of them, so their p needs no correction (an intersection-union test).
    """
    rivals = {name: entry for name, entry in baselines.items() if not entry.control}
    if not rivals or not detectors:
        return None
    best = best_on_validation(detectors), best_on_validation(rivals)
    family = {(test.a, test.b): test for test in comparisons if test.b in rivals}
    p_holm = holm({pair: margin_p(test, margin) for pair, test in family.items()})
    hardest = hardest_control(comparisons, best[0], margin)
    control = None
    if hardest is not None:
        control = find_contrast(hardest, margin, margin_p(hardest, margin))
    return Verdict(
        detector=best[0],
        margin=margin,
        baseline=find_contrast(family[best], margin, p_holm[best]),
        control=control,
    )


def hardest_control(
    comparisons: Sequence[PairedTest[str]], detector: str, margin: float
) -> PairedTest[str] | None:
    """The test of a detector against the control that is hardest to beat on test; None without one.

    That is the control whose interval reaches lowest: who beats it beats every control. That test
    chooses it can only make the claim harder. Among those that are not beaten by more than the
    margin, one that sees no answer comes first: it says more of the data.
    """
    tests = [test for test in comparisons if test.a == detector and test.control]
    unbeaten = [test for test in tests if test.ci[0] <= margin and sees_no_answer(test.b)]
    return min(unbeaten or tests, key=lambda test: test.ci[0], default=None)


def sees_no_answer(control: str) -> bool:
    return control in CONTROLS and CONTROLS[control].sees in OF_QUESTION


def margin_p(test: PairedTest[str], margin: float) -> float:
    """Two-sided p of a difference that is as far from the margin, on its other side.

    A difference beyond the margin is tested against the margin, one within it by two one-sided
    tests (Schuirmann, 1987, doi:10.1007/BF01068419). It is below 0.05 where the 95% interval does
    not reach the margin.
    """
    distance = abs(abs(test.difference) - margin)
    if test.error is None or not distance:
        return 1.0
    if not test.error:
        return 0.0
    return min(1.0, 2 * float(student.sf(distance / test.error, test.df)))


def find_contrast(test: PairedTest[str], margin: float, p: float) -> Contrast:
    """The finding at the level of 0.05, with the 95% interval of the t distribution.

    It has 0 in it for a fifth of the samples whose true difference is `detectable`.
    """
    beyond = "better" if test.difference > 0 else "worse"
    finding = "equal" if abs(test.difference) < margin else beyond
    detectable = None
    if test.error is not None:
        detectable = float(student.ppf([0.975, 0.8], test.df).sum()) * test.error
    finding = finding if p < 0.05 else "undecided"
    return Contrast(test.b, test.difference, test.ci, p, finding, detectable)


def t_interval(difference: float, error: float | None, df: float | None) -> Interval:
    """The 95% interval of a difference of AUROCs by its standard error, within -1 and 1.

    It is the only kind of interval of a difference: of one split, where the error is that of
    `error_of_trainings`, and of several. It is [-1, 1] where the error is unknown.
    """
    if error is None:
        return [-1.0, 1.0]
    half = float(student.ppf(0.975, df)) * error
    return [max(-1.0, difference - half), min(1.0, difference + half)]


def bootstrap_p(differences: Scores) -> float:
    """Two-sided p of a difference, from those of the resamples (n_kept,).

    It is the largest level at which a percentile interval would contain 0 (Efron and Tibshirani,
    1993). With the observed data counted as one more sample (Davison and Hinkley, 1997) it is at
    least 2 / (n_kept + 1).
    """
    n_beyond = min(np.sum(differences <= 0), np.sum(differences >= 0))
    return min(1.0, 2 * float(n_beyond + 1) / (len(differences) + 1))
