"""HaloScope: how far a state reaches into the subspace of unlabelled states (Du et al. 2024).

arXiv:2409.17504 (NeurIPS). With m the mean of the training states of a layer, v_j the singular
vectors of the centred states and s_j their singular values,

    score(x) = 1/k sum_j s_j (v_j . (x - m))^2        over the k largest

Larger means a hallucination by the paper. Labels of training traces are not used for the score;
those of validation choose the layer and k from 1 to 10, as there. The regression only turns the
square root of the score into a probability, and finds its sign, which the authors' code takes from
validation.

Theirs is the state of the last token behind the question and the answer, or what attention or the
feed-forward part adds. Their second step is left out: a classifier of two layers, trained on the
training states with the score above a threshold as the label; the score alone is what they call
direct projection.
"""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from models.quadratic import Floats, Forms, Labels, of_last_states, score_states

__all__ = ["HALOSCOPE", "best_subspace", "subspace"]

MOST = 10  # singular vectors


def subspace(pca: PCA, k: int) -> Forms:
    """The score by the k largest singular vectors."""
    gains = pca.singular_values_[:k] / k
    zero, one = np.zeros(1), np.ones(1)
    return Forms(pca.mean_[None], pca.components_[None, :k], gains[None], zero, one)


def best_subspace(train: Floats, labels: Labels, val: Floats, val_labels: Labels) -> Forms:
    """The score of the k that is best on validation, in either direction."""
    pca = PCA(min(MOST, *train.shape), random_state=0).fit(train)
    found = [subspace(pca, k) for k in range(1, 1 + len(pca.components_))]
    areas = [roc_auc_score(val_labels, score_states(val, forms)) for forms in found]
    return found[int(np.argmax(np.abs(np.array(areas) - 0.5)))]


HALOSCOPE = of_last_states(best_subspace)
