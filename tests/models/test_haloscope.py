"""HaloScope's score against a singular value decomposition, its k, and its classifier."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from models import PROBES
from models.haloscope import best_subspace, classify, subspace, train_classifier
from models.quadratic import score_states


def test_the_formula():
    """The mean of squared projections, weighted by singular values; its square root."""
    states = np.random.default_rng(0).normal(size=(40, 6)) * np.arange(1, 7) + 2
    centred = states - states.mean(0)
    _, values, vectors = np.linalg.svd(centred, full_matrices=False)
    for k in (1, 3, 6):
        plain = [sum(values[j] * (vectors[j] @ x) ** 2 for j in range(k)) / k for x in centred]
        found = score_states(states, subspace(PCA(6).fit(states), k))
        np.testing.assert_allclose(found**2, plain)


def test_validation_chooses_k_and_layer():
    """What tells the labels is the length along the second axis of the second layer."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=400)
    states = rng.normal(size=(400, 2, 6)) * [9, 6, 1, 1, 1, 1]
    states[:, 1, 1] *= np.where(labels, 1.5, 0.3)
    forms = best_subspace(states[:200, 1], labels[:200], states[200:, 1], labels[200:])
    assert forms.axes.shape[1] > 1
    features = torch.from_numpy(states)
    probe = PROBES["haloscope_projection"]
    fitted = probe.fit(features[:200], labels[:200], features[200:], labels[200:])
    assert fitted.alternative == 1
    assert fitted.val_auroc[1] > 0.6 > fitted.val_auroc[0]


@pytest.fixture
def rows():
    """States (600, 2, 6) and labels: hallucinations are of two kinds, to both sides of the others
    along the first axis of the second layer; a third of them lie among the others."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    states = rng.normal(size=(600, 2, 6))
    away = labels * (rng.random(600) < 2 / 3)
    states[:, 1, 0] += 4 * away * rng.choice([-1, 1], 600)
    return torch.from_numpy(states), labels


def test_the_classifier_is_an_mlp_of_standardised_states():
    """Its weights are for states as they are; what it learns is the same every time."""
    states = np.random.default_rng(0).normal(size=(300, 3)) * [1, 50, 0] + 7
    is_member = np.abs(states[:, 1] - 7) > 40
    hidden, hidden_bias, output = classifier = train_classifier(states, is_member)
    plain = [output @ np.maximum(hidden @ x + hidden_bias, 0) for x in states]
    found = classify(states, *classifier)
    np.testing.assert_allclose(found[:, 0], plain, atol=1e-9)
    assert ((found[:, 0] > 0) == is_member).mean() > 0.95
    assert np.array_equal(train_classifier(states, is_member).hidden, hidden)


def test_it_learns_from_the_score_and_not_from_labels(rows, monkeypatch):
    """Other labels of training traces, also all the opposite, give the same classifier."""
    monkeypatch.setattr("models.haloscope.N_EPOCHS", 10)
    features, labels = rows
    probe = PROBES["haloscope"]
    val, val_labels = features[400:], labels[400:]
    fitted = probe.fit(features[:400], labels[:400], val, val_labels)
    assert fitted.alternative == 1
    assert roc_auc_score(val_labels, fitted.predict(val)) > 0.75
    assert len(fitted.val_auroc) == 2
    assert fitted.n_parameters() == 1024 * 6 + 2 * 1024 + 2
    loaded = probe.load(fitted.to_dict())
    np.testing.assert_array_equal(loaded.logits(val), fitted.logits(val))
    for n_right in (350, 0):
        some = np.r_[labels[:n_right], 1 - labels[n_right:400]]
        again = probe.fit(features[:400], some, val, val_labels)
        assert again.alternative == fitted.alternative
        assert again.val_auroc == fitted.val_auroc
        for name in ("hidden", "hidden_bias", "output"):
            np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))
