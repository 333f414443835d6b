"""Logistic regression on the principal components of `hs_last`, layer by layer.

At d = 4096 the plain regression of the baselines has as many weights as there are traces to learn
from; a few dozen components fit faster and overfit less.
"""

from models.baselines import every_layer
from models.probe import Probe

__all__ = ["LOGREG_PCA"]

LOGREG_PCA = Probe(("hs_last",), every_layer, n_components=64, by_layer=True)
