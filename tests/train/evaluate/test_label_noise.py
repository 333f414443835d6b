"""How far AUROCs move: against flipped labels, all of them or drawn at random."""

from itertools import combinations

import numpy as np
import pytest
from runs import make_frame

from train.evaluate.label_noise import (
    agreement_of,
    auroc_bounds,
    auroc_without_noise,
    error_of_graders,
    measure_label_noise,
)
from train.evaluate.metrics import auroc


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n_wrong", [1, 2, 3])
def test_bounds_are_those_of_all_flips(n_wrong, ties):
    rng = np.random.default_rng(0)
    labels, scores = np.array([0, 1] * 5), rng.random(10)
    scores = np.round(scores, 1) if ties else scores
    areas = []
    for wrong in combinations(range(10), n_wrong):
        flipped = labels.copy()
        flipped[list(wrong)] ^= 1
        areas.append(auroc(flipped, scores))
    assert auroc_bounds(labels, scores, n_wrong) == pytest.approx((min(areas), max(areas)))


def test_the_area_of_true_labels_is_found_again():
    """Of 100,000 rows with a fifth of the labels wrong; no area of labels that may be noise."""
    rng = np.random.default_rng(1)
    labels = (rng.random(100_000) < 0.3).astype(int)
    scores = rng.normal(size=100_000) + 1.2 * labels
    noisy = np.where(rng.random(100_000) < 0.2, 1 - labels, labels)
    found = auroc_without_noise(auroc(noisy, scores), noisy.mean(), 0.2)
    assert found == pytest.approx(auroc(labels, scores), abs=0.01)
    assert auroc_without_noise(0.8, 0.2, 0.3) is None


def test_true_labels_are_within_the_bounds():
    """Of 13 hallucinations among 299, with 9 wrong labels; the formula alone gives 1."""
    rng = np.random.default_rng(0)
    labels = np.arange(299) < 13
    frame = make_frame(labels.astype(int), rng.normal(size=299) + 2 * labels)
    area = measure_label_noise(frame, 0.03).auroc["x"]
    assert area.low <= area.corrected <= area.high < 1


def test_two_graders():
    """Kappa by its definition; the error of both from how often they agree."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 50_000)
    first, second = (np.where(rng.random(50_000) < 0.1, 1 - labels, labels) for _ in range(2))
    agreement, kappa = agreement_of(first, second)
    assert kappa == pytest.approx((agreement - 0.5) / 0.5, abs=0.01)
    assert error_of_graders(agreement) == pytest.approx(0.1, abs=0.01)
    scores = rng.normal(size=50_000) + labels
    noise = measure_label_noise(make_frame(first, scores), None, second)
    area = noise.auroc["x"]
    assert (noise.agreement, noise.kappa) == (agreement, kappa)
    assert area.corrected == pytest.approx(auroc(labels, scores), abs=0.01)
    assert area.low < auroc(first, scores) < area.corrected < area.high
    assert area.second == auroc(second, scores)
