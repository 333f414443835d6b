"""Intervals: their width, their ends, and questions in place of rows. How often they hold the truth
is simulated by benchmarks/coverage.py."""

import numpy as np
import pytest
from scipy.stats import norm

from train.evaluate.intervals import auroc_interval, metric_intervals
from train.evaluate.metrics import auroc, expected_calibration_error, measure

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


def test_perfect_scores_have_intervals_whatever_is_rounded():
    """Sums of n shares are above or below 1 by 2e-16 for some n; no area and no rate is above."""
    for n in range(276, 300, 2):
        labels = np.repeat([0, 1], n // 2)
        scores = 0.1 + 0.8 * labels + 0.01 * np.linspace(0, 1, n)
        found = measure(labels, scores, 0.5)
        intervals = metric_intervals(labels, scores, np.arange(n), seed=0)
        assert 1 - 1e-12 < found.auprc <= 1
        assert (found.auroc, found.recall_at_5, found.aurc) == (1, 1, 0)
        for name in ("auroc", "auprc", "recall_at_1", "recall_at_5", "recall_at_10"):
            assert intervals[name][1] <= 1


def test_several_runs_have_the_interval_of_their_mean():
    """Of questions as of one run whose scores differ less; equal trainings add nothing, and a
    constant has no width."""
    assert auroc_interval(LABELS, np.full(300, 0.3), np.arange(300)) == [0.5, 0.5]
    noise = np.random.default_rng(1).normal(0, 0.5, (2, 300))
    runs = SCORES + noise
    low, high = auroc_interval(LABELS, runs, np.arange(300))
    assert low < np.mean([auroc(LABELS, run) for run in runs]) < high
    same = auroc_interval(LABELS, runs[[0, 0]], np.arange(300))
    assert same == pytest.approx(auroc_interval(LABELS, runs[0], np.arange(300)))


def test_intervals_are_about_the_percentiles_of_drawn_rows():
    found = metric_intervals(LABELS, SCORES, np.arange(300), seed=0)
    measured = measure(LABELS, SCORES, 0.5)
    rows = np.random.default_rng(1).integers(300, size=(300, 300))
    drawn = [measure(LABELS[i], SCORES[i], 0.5) for i in rows]
    for name, away in {"auprc": 0.02, "brier": 0.01, "recall_at_10": 0.1, "fpr_at_95": 0.1}.items():
        expected = np.percentile([getattr(one, name) for one in drawn], [2.5, 97.5])
        assert found[name] == pytest.approx(expected, abs=away)
        assert found[name][0] < getattr(measured, name) < found[name][1]
    assert found["ece"][0] < expected_calibration_error(LABELS, SCORES) < found["ece"][1]


def test_what_is_at_an_end_is_not_certain():
    """Rates of 0 or 1; the calibration error of calibrated scores may be 0, although chance alone
    moves each bin of them."""
    labels = np.repeat([1, 0], [20, 140])
    found = metric_intervals(labels, labels * 0.8 + 0.1, np.arange(160), seed=0)
    assert found["recall_at_10"] == [pytest.approx(0.839, abs=0.01), 1]
    assert found["fpr_at_95"] == [0, pytest.approx(0.03, abs=0.03)]
    assert found["brier"] == pytest.approx([0.01, 0.01])  # all errors are .1
    labels = (np.random.default_rng(2).random(300) < SCORES).astype(int)
    low, high = metric_intervals(labels, SCORES, np.arange(300), seed=0)["ece"]
    assert low == 0
    assert 0.02 < high < 0.1
