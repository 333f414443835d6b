"""Mahalanobis distances against the inverse of a covariance, and what is saved of them."""

import numpy as np
import pytest
import torch
from plain import reload

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


def test_the_distances(states):
    """To all of train, and to its right answers less that to all."""
    train, labels = states[0][:, 0], states[1]
    others = np.random.default_rng(1).normal(size=(4, 5))
    to_all, to_right = plain_distances(others, train), plain_distances(others, train[labels == 0])
    for fit, expected in ((all_of_train, to_all), (right_against_all, to_right - to_all)):
        forms = fit(train, labels, train, labels)
        np.testing.assert_allclose(score_states(others, forms), expected, atol=1e-9)


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
    loaded = probe.load(reload(fitted.to_dict()))
    np.testing.assert_array_equal(loaded.logits(features), fitted.logits(features))
    assert np.isfinite(fitted.logits(features)).all()
    with pytest.raises(ValueError, match=r"expected shape \(n, 2, 5\)"):
        fitted.logits(features[:, :, 1:])


def test_a_state_that_never_varied(states):
    """It is not infinitely far."""
    train, labels = states[0][:, 0], states[1]
    train[:, 2] = 7.0
    assert np.isfinite(score_states(train, all_of_train(train, labels, train, labels))).all()
