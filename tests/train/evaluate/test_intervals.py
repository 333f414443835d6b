"""Intervals: their width, their ends, and questions in place of rows. How often they hold the truth
is simulated by benchmarks/coverage.py."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import average_precision_score, brier_score_loss

from train.evaluate.intervals import auroc_interval, bootstrap_calibration, bootstrap_rates
from train.evaluate.metrics import auroc, expected_calibration_error

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 300)
SCORES = np.clip(0.3 * LABELS + 0.7 * RNG.random(300), 0, 1)


def test_of_many_questions_it_is_that_of_delong():
    """1.96 of DeLong's errors to each side, of placement values by their definition."""
    positive, negative = SCORES[LABELS == 1], SCORES[LABELS == 0]
    above = positive[:, None] > negative
    variance = above.mean(1).var(ddof=1) / len(positive) + above.mean(0).var(ddof=1) / len(negative)
    low, high = auroc_interval(LABELS, SCORES, np.arange(300))
    assert high - low == pytest.approx(2 * norm.ppf(0.975) * variance**0.5, rel=0.05)
    assert low < auroc(LABELS, SCORES) < high


def test_it_is_of_questions_not_rows():
    """Repeating every row within its question narrows little or nothing, as new ones would."""
    repeated = np.repeat(LABELS, 3), np.repeat(SCORES, 3)
    once = np.ptp(auroc_interval(LABELS, SCORES, np.arange(300)))
    again = np.ptp(auroc_interval(*repeated, np.repeat(np.arange(300), 3)))
    new = np.ptp(auroc_interval(*repeated, np.arange(900)))
    assert again == pytest.approx(once, rel=0.02)
    assert new == pytest.approx(once / 3**0.5, rel=0.05)


@pytest.mark.parametrize("n", [1, 7, 30])
def test_perfect_scores_are_not_certain(n):
    """The fewer rows, the wider; and as far from 0 as from 1."""
    labels = np.repeat([1, 0], [n, 20 * n])
    low, high = auroc_interval(labels, labels * 1.0, np.arange(21 * n))
    assert high == 1
    assert low == pytest.approx({1: 0.416, 7: 0.926, 30: 0.994}[n], abs=0.001)
    opposite = auroc_interval(labels, -labels * 1.0, np.arange(21 * n))
    assert opposite == pytest.approx([0, 1 - low])


def test_a_constant_has_no_width():
    assert auroc_interval(LABELS, np.full(300, 0.3), np.arange(300)) == [0.5, 0.5]


def test_several_runs_have_the_interval_of_their_mean():
    noise = np.random.default_rng(1).normal(0, 0.5, (2, 300))
    runs = SCORES + noise
    low, high = auroc_interval(LABELS, runs, np.arange(300))
    assert low < np.mean([auroc(LABELS, run) for run in runs]) < high
    assert high - low < np.ptp(auroc_interval(LABELS, runs[0], np.arange(300)))


def test_bootstrap_intervals_hold_what_was_found():
    """Those of AUPRC and Brier score are about the percentiles of scikit-learn's of drawn rows."""
    rows_of = LABELS, SCORES, np.arange(300), 0
    found = bootstrap_rates(*rows_of) | bootstrap_calibration(*rows_of)
    rows = np.random.default_rng(1).integers(300, size=(300, 300))
    for name, metric in (("auprc", average_precision_score), ("brier", brier_score_loss)):
        expected = np.percentile([metric(LABELS[i], SCORES[i]) for i in rows], [2.5, 97.5])
        assert found[name] == pytest.approx(expected, abs=0.02)
        assert found[name][0] < metric(LABELS, SCORES) < found[name][1]
    low, high = found["ece"]
    assert low < expected_calibration_error(LABELS, SCORES) < high
    assert found["recall_at_1"][0] <= np.mean(SCORES[LABELS == 1] > 0.7) <= found["recall_at_1"][1]


def test_the_calibration_error_of_calibrated_scores_may_be_0():
    """Although chance alone moves each bin of them."""
    labels = (np.random.default_rng(2).random(300) < SCORES).astype(int)
    low, high = bootstrap_calibration(labels, SCORES, np.arange(300), seed=0)["ece"]
    assert low == 0
    assert 0.02 < high < 0.1
