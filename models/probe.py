"""What every probe is: features of a trace, and a logistic regression on them that scikit-learn
fits.

A probe names the columns it reads (`columns`) and how features come of them (`features`), in one or
several alternatives, of which validation chooses: mostly one a layer. Missing numbers are replaced
by their mean, all are scaled to unit variance, and principal components may be taken, all of it
fitted on the training rows alone.

Imputing is the only step that is not affine, so a fitted probe is one weight a feature: as small as
can be, plain to read, and the same numbers as the whole pipeline gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

if TYPE_CHECKING:
    from store import Batch

__all__ = ["FittedProbe", "Probe", "build_pipeline", "fold_pipeline"]


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A fitted probe: probability = sigmoid(x @ weight + bias), x an alternative's features with
    `fill` for NaN.

    Attributes
    ----------
    alternative : int
        The alternative that validation chose, from 0; of features by layer: the layer.
    fill : float64 (k,)
        Stands in for a missing number: the mean over the training rows, 0 for a feature that none
        of them has.
    weight : float64 (k,)
    bias : float
    val_auroc : tuple of float, (A,)
        AUROC on the validation rows by alternative: where in the layers the signal lies.
    """

    alternative: int
    fill: NDArray[np.float64]
    weight: NDArray[np.float64]
    bias: float
    val_auroc: tuple[float, ...]

    def predict(self, features: Tensor) -> NDArray[np.float64]:
        """Probability of hallucination (n,) from features (n, A, k) of `Probe.features`; ValueError
        for other A, k."""
        return expit(self.logits(features))

    def logits(self, features: Tensor) -> NDArray[np.float64]:
        """Log-odds of hallucination (n,) from the same."""
        expected = len(self.val_auroc), len(self.weight)
        if features.shape[1:] != expected:
            raise ValueError(
                f"features: expected shape (n, {expected[0]}, {expected[1]}), found {tuple(features.shape)}"
            )
        return _logits(to_numpy(features, self.alternative), self.fill, self.weight, self.bias)

    def n_parameters(self) -> int:
        """Count of fitted numbers that decide a score: the weights and the bias."""
        return len(self.weight) + 1

    def to_dict(self) -> dict[str, Any]:
        """Numbers and tensors that `torch.save` writes and `torch.load(weights_only=True)`
        reads."""
        arrays = {
            "fill": torch.from_numpy(self.fill.copy()),
            "weight": torch.from_numpy(self.weight.copy()),
        }
        return {
            "alternative": self.alternative,
            **arrays,
            "bias": self.bias,
            "val_auroc": list(self.val_auroc),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> FittedProbe:
        """The probe that `to_dict` was called on; its scores are the same bit for bit."""
        arrays = {name: saved[name].double().numpy() for name in ("fill", "weight")}
        val_auroc = tuple(float(area) for area in saved["val_auroc"])
        return cls(
            alternative=int(saved["alternative"]),
            **arrays,
            bias=float(saved["bias"]),
            val_auroc=val_auroc,
        )


@dataclass(frozen=True)
class Probe:
    """A kind of feature, the columns it is made of, and how many principal components of it are
    kept.

    Attributes
    ----------
    columns : tuple of str
        Columns that `features` reads.
    features : callable
        Packed batch -> (B, A, k): A alternatives of k numbers each; NaN where a trace has none (the
        mean stands in).
    n_components : int or None
        Principal components that the regression sees, at most min(n, k) of them; None: the features
        themselves.
    """

    columns: tuple[str, ...]
    features: Callable[[Batch], Tensor]
    n_components: int | None = None

    def fit(
        self,
        train: Tensor,
        train_labels: NDArray[np.int64],
        val: Tensor,
        val_labels: NDArray[np.int64],
    ) -> FittedProbe:
        """Fit a regression per alternative on train (n, A, k); keep the one with the best AUROC on
        val (m, A, k).

        The first of several that are equally good is kept. One alternative at a time is in memory
        as float64.
        """
        maps, areas = [], []
        for alternative in range(train.shape[1]):
            numbers = to_numpy(train, alternative)
            pipeline = build_pipeline(self.n_components, numbers.shape)
            # components of features that never vary explain 0 / 0 of the variance
            with np.errstate(invalid="ignore"):
                maps.append(fold_pipeline(pipeline.fit(numbers, train_labels)))
            areas.append(
                float(
                    roc_auc_score(val_labels, expit(_logits(to_numpy(val, alternative), *maps[-1])))
                )
            )
        best = int(np.argmax(areas))
        return FittedProbe(best, *maps[best], val_auroc=tuple(areas))


def build_pipeline(n_components: int | None, shape: tuple[int, int]) -> Pipeline:
    """Build the unfitted pipeline for features (n, k); fitting it writes over them.

    The solver of the components is scikit-learn's choice by shape: exact for small ones, randomised
    with a fixed random state for large ones, so equal features give equal bits.
    """
    steps = [SimpleImputer(keep_empty_features=True, copy=False), StandardScaler(copy=False)]
    if n_components is not None:
        steps.append(PCA(min(n_components, *shape), random_state=0))
    return make_pipeline(*steps, LogisticRegression(max_iter=1000))


def fold_pipeline(pipeline: Pipeline) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fold a fitted `build_pipeline` into (fill (k,), weight (k,), bias) of one affine map."""
    imputer, scaler, *components, regression = (step for _, step in pipeline.steps)
    # of the components, or the scaled features
    weight, bias = regression.coef_[0], regression.intercept_[0]
    for pca in components:
        weight = weight @ pca.components_
        bias = bias - pca.mean_ @ weight
    weight = weight / scaler.scale_
    return imputer.statistics_, weight, float(bias - scaler.mean_ @ weight)


def to_numpy(features: Tensor, alternative: int) -> NDArray[np.float64]:
    """(n, A, k) -> (n, k) float64 of one alternative, a copy."""
    return features[:, alternative].to(torch.float64, copy=True).numpy()


def _logits(
    numbers: NDArray[np.float64],
    fill: NDArray[np.float64],
    weight: NDArray[np.float64],
    bias: float,
) -> NDArray[np.float64]:
    """(n, k) -> (n,)."""
    # BLAS and torch round the last rows of an array unlike the first; here equal traces get equal
    # bits.
    return np.einsum("nk,k->n", np.where(np.isnan(numbers), fill, numbers), weight) + bias
