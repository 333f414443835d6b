"""Logistic regression on the principal components of `hs_last`, layer by layer.

At d = 4096 the plain regression of the baselines has as many weights as there are traces to learn
from; a few dozen components fit faster and overfit less.
"""

from models.baselines import states_by_layer

__all__ = ["LOGREG_PCA"]

LOGREG_PCA = states_by_layer("hs_last", n_components=64)
