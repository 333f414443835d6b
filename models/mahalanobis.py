"""Mahalanobis distances of the last token's state to the training states (LM-Polygraph).

With mean m and covariance S of the training states of a layer, MD(x) = sqrt((x - m)' S^-1 (x - m)):
the further a state is from all of train, the likelier a hallucination (Lee et al., 2018,
arXiv:1807.03888). The relative distance of Ren et al. (2023, arXiv:2209.15558) subtracts MD_0, the
distance to a background; theirs is of squares, here as in LM-Polygraph each distance is a root.
Larger means a hallucination in both.

`mahalanobis` learns from states without labels. The background of LM-Polygraph is a general corpus,
which a store has not: in `relative_mahalanobis` m and S are of the right answers of train, and
those of all of train are the background.

There the states are means over the answer's tokens at one layer, and a multiple of the identity is
added to S until it can be inverted. Here they are of the last token (each token's own where tokens
are scored), validation chooses the layer, and S is like that of probabilistic principal components
(Tipping and Bishop, 1999): r axes have their own variances, and all others share one. Of n states,
in the relative distance the right ones, r is the least of 256, d and n / 2. So S is exact only for
d up to 256 and n of at least 2 d. The shared variance is what the r axes leave, divided by
min(n, d) - r, not by d - r: with n < d that is more than the mean over all other axes. No variance
is below a millionth of the largest.
"""

import numpy as np
from sklearn.decomposition import PCA

from models.quadratic import Floats, Forms, Labels, of_last_states

__all__ = ["MAHALANOBIS", "RELATIVE_MAHALANOBIS", "all_of_train", "right_against_all"]

RANK = 256  # axes
FLOOR = 1e-6  # of the largest variance: directions that never vary are not infinitely far


def distance(states: Floats, sign: float, rank: int) -> tuple[Floats, Floats, Floats, float, float]:
    """The form of the distance to states (n, d), an entry of each field of `Forms`."""
    pca = PCA(rank, random_state=0).fit(states)
    variances = pca.explained_variance_  # falling
    floor = FLOOR * variances[0] or FLOOR
    rest = 1 / max(pca.noise_variance_, floor) if rank < states.shape[1] else 0.0
    gains = 1 / variances.clip(min=floor) - rest
    return pca.mean_, pca.components_, gains, rest, sign


def stacked(*parts: tuple[Floats, float]) -> Forms:
    """The distances to several sets of states, each with its sign, as one score."""
    rank = min(RANK, parts[0][0].shape[1], *(max(1, len(states) // 2) for states, _ in parts))
    forms = [distance(states, sign, rank) for states, sign in parts]
    return Forms(*(np.array(one, dtype=np.float64) for one in zip(*forms, strict=True)))


def all_of_train(train: Floats, labels: Labels, val: Floats, val_labels: Labels) -> Forms:
    """The distance to all states of train (n, d), whatever their labels."""
    return stacked((train, 1.0))


def right_against_all(train: Floats, labels: Labels, val: Floats, val_labels: Labels) -> Forms:
    """The distance to the right answers of train, minus that to all of train."""
    right = train[labels == 0]
    return stacked((right if len(right) > 1 else train, 1.0), (train, -1.0))


MAHALANOBIS = of_last_states(all_of_train)
RELATIVE_MAHALANOBIS = of_last_states(right_against_all)
