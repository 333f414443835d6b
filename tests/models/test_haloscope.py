"""HaloScope's score against a singular value decomposition, and its k."""

import numpy as np
import torch
from sklearn.decomposition import PCA

from models import PROBES
from models.haloscope import best_subspace, subspace
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
    fitted = PROBES["haloscope"].fit(features[:200], labels[:200], features[200:], labels[200:])
    assert fitted.alternative == 1
    assert fitted.val_auroc[1] > 0.6 > fitted.val_auroc[0]
