"""Tests of two AUROCs against their definitions; benchmarks/coverage has them on simulated data
whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from runs import paired_bootstrap
from scipy.stats import norm

from train.evaluate.metrics import auroc, mean_auroc
from train.evaluate.paired_tests import compare_pairs, delong_test, holm

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 150)
QUESTIONS = np.arange(150) // 2
GOOD = 1.2 * LABELS + RNG.normal(size=150)
FAIR = 0.5 * GOOD + 0.2 * LABELS + RNG.normal(size=150)


def direct_delong(labels, a, b):
    """DeLong's test by its definition: each positive against each negative, a 2 x 2 covariance."""
    gaps = [np.subtract.outer(scores[labels == 1], scores[labels == 0]) for scores in (a, b)]
    kernels = [(gap > 0) + 0.5 * (gap == 0) for gap in gaps]  # (n_positive, n_negative)
    n_positive, n_negative = kernels[0].shape
    by_positive, by_negative = (
        np.cov([kernel.mean(axis) for kernel in kernels]) for axis in (1, 0)
    )
    covariance = by_positive / n_positive + by_negative / n_negative
    difference = kernels[0].mean() - kernels[1].mean()
    z = difference / math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    return difference, z, 2 * norm.sf(abs(z))


def delong(labels, a, b):
    """Difference, z and p."""
    found = delong_test(labels, a, b)
    return found.difference, found.z, found.p


CONSTANT = np.full(150, 0.3)


@pytest.mark.parametrize(
    "a, b",
    [(GOOD, FAIR), (np.round(GOOD), np.round(FAIR)), (GOOD, np.round(FAIR)), (FAIR, CONSTANT)],
    ids=["smooth", "tied", "mixed", "constant"],
)
def test_delong_equals_its_definition(a, b):
    """Midranks give what all pairs of rows give, ties one half."""
    assert delong(LABELS, a, b) == pytest.approx(direct_delong(LABELS, a, b))


def test_delong_equals_its_definition_on_small_data():
    """Few rows, many ties, uneven classes."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        labels = rng.permutation([1] * int(rng.integers(2, 8)) + [0] * int(rng.integers(2, 30)))
        a, b = rng.integers(0, 6, (2, len(labels))).astype(float)
        assert delong(labels, a, b) == pytest.approx(direct_delong(labels, a, b), abs=1e-12)


def test_the_ends_of_p():
    """No resample of equals is less extreme than the data: p = 1, not NaN. Perfect scores against a
    constant leave no doubt, one positive row every doubt; of 1,000 resamples p is 2 / 1,001."""
    assert delong(LABELS, GOOD, GOOD) == (0, 0, 1)
    found = paired_bootstrap(LABELS, GOOD, GOOD, QUESTIONS, seed=0)
    assert (found.difference, found.p) == (0, 1)
    assert found.low == -found.high < 0
    scores, constant = np.array([1.0, 2, 3, 4]), np.zeros(4)
    assert delong(np.array([0, 0, 1, 1]), scores, constant) == (0.5, math.inf, 0)
    assert delong(np.array([0, 0, 0, 1]), scores, constant) == (0.5, 0, 1)
    found = paired_bootstrap(LABELS, LABELS * 1.0, -FAIR, QUESTIONS, seed=0)
    assert found.p == pytest.approx(2 / 1001)


def test_paired_bootstrap_is_of_questions_and_of_the_mean_of_runs():
    """Repeating every row within its question makes nothing surer; equal runs give what one of them
    gives, unlike ones the difference of the mean AUROCs."""
    one = paired_bootstrap(LABELS, GOOD, FAIR, QUESTIONS, seed=0)
    rows = np.repeat(np.arange(150), 3)
    thrice = paired_bootstrap(LABELS[rows], GOOD[rows], FAIR[rows], QUESTIONS[rows], seed=0)
    two = paired_bootstrap(LABELS, np.stack([GOOD, GOOD]), FAIR, QUESTIONS, seed=0)
    assert thrice == pytest.approx(one)
    assert two == pytest.approx(one)
    found = paired_bootstrap(LABELS, np.stack([GOOD, FAIR]), FAIR, QUESTIONS, seed=0)
    assert (found.difference, found.p) == pytest.approx((one.difference / 2, one.p))
    # the interval has the variance of the trainings, which here are unlike
    assert found.high - found.low > one.high - one.low


def jackknife_variance(labels, scores, questions):
    """Variance of an AUROC by its placement values without each question, in a loop over them."""
    gaps = np.subtract.outer(scores[labels == 1], scores[labels == 0])
    kernel = (gaps > 0) + 0.5 * (gaps == 0)
    area = kernel.mean()
    values = np.zeros(len(labels))
    values[labels == 1], values[labels == 0] = kernel.mean(1) - area, kernel.mean(0) - area
    variance = 0
    for question in np.unique(questions):
        moved = 0
        for label in (1, 0):
            of_class = labels == label
            n_with = len(set(questions[of_class]))
            others = values[of_class & (questions != question)]
            moved += math.sqrt(1 - 1 / n_with) * others.mean()
        variance += moved**2
    return variance


@pytest.mark.parametrize(
    "questions",
    [*(np.arange(150) // n for n in (1, 2, 10)), np.arange(150) ** 2 // 800],
    ids=["single", "pairs", "tens", "unequal"],
)
@pytest.mark.parametrize("scores", [GOOD, np.round(FAIR)], ids=["smooth", "tied"])
def test_clustered_delong_equals_its_definition(scores, questions):
    """Against a constant, whose placement values do not vary, the variance is that of one AUROC."""
    found = delong_test(LABELS, scores, np.zeros(150), questions)
    error = math.sqrt(jackknife_variance(LABELS, scores, questions))
    assert found.z == pytest.approx((auroc(LABELS, scores) - 0.5) / error)


@pytest.mark.parametrize(
    "p_values, corrected",
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        # p.adjust(..., "holm") of R
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.5, 0.4, 1.0], [1.0, 1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([], []),
    ],
)
def test_holm_by_worked_examples(p_values, corrected):
    """Step by step, never falling, at most 1, in the order given."""
    found = holm(dict(enumerate(p_values)))
    assert list(found) == list(range(len(p_values)))
    assert list(found.values()) == pytest.approx(corrected)


def test_pairs_are_compared_as_one_by_one():
    """The shared resamples give what each test gives alone; of several runs both tests are of the
    difference of their mean AUROCs."""
    scores = {"a": np.stack([GOOD, FAIR]), "b": FAIR[None], "c": np.round(FAIR)[None]}
    pairs = [("a", "b"), ("a", "c")]
    found = compare_pairs(LABELS, scores, pairs, QUESTIONS, seed=5)
    assert [(one.a, one.b) for one in found] == pairs
    for one in found:
        a, b = scores[one.a], scores[one.b]
        alone = paired_bootstrap(LABELS, a, b, QUESTIONS, seed=5)
        assert (one.difference, *one.ci, one.p_bootstrap) == alone
        assert one.difference == mean_auroc(LABELS, a) - mean_auroc(LABELS, b)
        assert one.difference == pytest.approx(delong_test(LABELS, a, b).difference)
        assert one.p_delong == delong_test(LABELS, a, b, QUESTIONS).p
    p_holm = holm(dict(enumerate(one.p_delong for one in found)))
    assert [one.p_holm for one in found] == list(p_holm.values())


def test_pairs_with_a_control_are_corrected_apart():
    """Each family by Holm's rule as if the other were not there, and such a pair is marked."""
    scores = {"a": GOOD[None], "b": FAIR[None], "c": np.round(FAIR)[None]}
    scores["d"] = FAIR[None] ** 2 % 0.3
    pairs = [("a", "b"), ("a", "c"), ("b", "c"), ("a", "d"), ("b", "d")]
    found = compare_pairs(LABELS, scores, pairs, QUESTIONS, seed=5, controls=["d"])
    without = compare_pairs(LABELS, scores, pairs[:3], QUESTIONS, seed=5)
    of_control = compare_pairs(LABELS, scores, pairs[3:], QUESTIONS, seed=5)
    assert found == [*without, *(replace(one, control=True) for one in of_control)]
    joint = compare_pairs(LABELS, scores, pairs, QUESTIONS, seed=5)
    assert [one.p_holm for one in joint] != [one.p_holm for one in found]
