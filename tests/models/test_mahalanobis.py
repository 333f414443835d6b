"""Mahalanobis distances against the inverse of a covariance, and what is saved of them."""

import io

import numpy as np
import pytest
import torch

from models import PROBES
from models import mahalanobis as module
from models.mahalanobis import all_of_train, right_against_all
from models.quadratic import score_states


def plain_distances(states, of):
    """sqrt((x - m)' S^-1 (x - m)), state by state."""
    inverse = np.linalg.inv(np.cov(of.T))
    return np.array([np.sqrt((x - of.mean(0)) @ inverse @ (x - of.mean(0))) for x in states])


@pytest.fixture
def states():
    """Correlated states (60, 2, 5), float64, and labels."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(60, 2, 5)) @ rng.normal(size=(5, 5)) + 3.0
    return mixed, rng.integers(2, size=60)


def test_the_distance_to_all_of_train(states):
    train, labels = states[0][:, 0], states[1]
    forms = all_of_train(train, labels, train, labels)
    others = np.random.default_rng(1).normal(size=(4, 5))
    np.testing.assert_allclose(score_states(others, forms), plain_distances(others, train))


def test_the_distance_to_the_right_answers_less_that_to_all(states):
    train, labels = states[0][:, 0], states[1]
    forms = right_against_all(train, labels, train, labels)
    expected = plain_distances(train, train[labels == 0]) - plain_distances(train, train)
    np.testing.assert_allclose(score_states(train, forms), expected, atol=1e-9)


def test_beyond_the_axes_all_others_share_their_mean_variance(states, monkeypatch):
    """With two axes of five: the covariance of probabilistic principal components."""
    monkeypatch.setattr(module, "RANK", 2)
    train, labels = states[0][:, 0], states[1]
    variances, axes = np.linalg.eigh(np.cov(train.T))  # rising
    variances[:3] = variances[:3].mean()
    away = (train - train.mean(0)) @ axes
    expected = np.sqrt((away**2 / variances).sum(1))
    forms = all_of_train(train, labels, train, labels)
    np.testing.assert_allclose(score_states(train, forms), expected)


@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis"])
def test_fitted_and_saved(name, states):
    """The layer that tells the labels is found; what is loaded gives the same scores, also where a
    number is missing."""
    features, labels = torch.from_numpy(states[0].copy()), states[1]
    features[:, 1] = 3 + (features[:, 1] - 3) * torch.from_numpy(1 + 5 * labels)[:, None]
    features[3, :, 2] = torch.nan
    probe = PROBES[name]
    fitted = probe.fit(features, labels, features, labels)
    assert fitted.alternative == 1
    assert len(fitted.val_auroc) == 2
    file = io.BytesIO()
    torch.save(fitted.to_dict(), file)
    file.seek(0)
    loaded = probe.load(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(loaded.logits(features), fitted.logits(features))
    assert np.isfinite(fitted.logits(features)).all()
    with pytest.raises(ValueError, match=r"expected shape \(n, 2, 5\)"):
        fitted.logits(features[:, :, 1:])


def test_a_state_that_never_varied(states):
    """It is not infinitely far."""
    train, labels = states[0][:, 0], states[1]
    train[:, 2] = 7.0
    assert np.isfinite(score_states(train, all_of_train(train, labels, train, labels))).all()
