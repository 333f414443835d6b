"""Probes: features of a trace, and a logistic regression on them, fitted by scikit-learn.

A probe has the columns it reads (`columns`) and a function from them to features (`features`), in
one or several alternatives, of which validation chooses: mostly one a layer. Missing numbers are
replaced by their mean, all are scaled to unit variance, and principal components may be taken, all
of it fitted on the training rows alone. The penalty of a regression on several features is chosen
on validation, for each alternative by itself.

Imputing is the only step that is not affine, so a fitted probe is one weight a feature: small,
readable, and with the same scores as the whole pipeline.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from models.reader import FeatureReader
from models.regularisation import build_regression, choose_strength
from models.token_scores import STATES, columns_for_tokens, tokens_as_traces
from store import Batch

__all__ = [
    "Features",
    "Fitted",
    "FittedProbe",
    "Probe",
    "UnlearnableError",
    "build_pipeline",
    "check_numbers",
    "fold_pipeline",
    "to_numpy",
]

Floats = NDArray[np.float64]
AffineMap = tuple[Floats, Floats, float]  # fill, weight, bias
# of scikit-learn: for one feature, whose weight changes no rank
DEFAULT_STRENGTH = 1.0
AT_ONCE = 512  # features that are imputed and scaled together


class UnlearnableError(ValueError):
    """What a probe is to learn from has nothing to tell apart."""


class Features(Protocol):
    """Features (n, A, k): a tensor, or what gives `features[:, i]`, (n, k), as it is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: Any) -> Any: ...


READERS: dict[Any, Callable[[Any], Any]] = {  # type of a field -> what reads its saved value
    int: int,
    float: float,
    Floats: lambda numbers: numbers.double().numpy(),
    tuple[float, ...]: lambda numbers: tuple(map(float, numbers)),
}


class Fitted:
    """Base of what a fit returns: a dataclass of numbers and arrays, saved without code."""

    def logits(self, features: Any) -> Floats:
        """Log-odds of hallucination (n,) of n traces."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise ValueError unless its parts fit each other, and all numbers are finite."""

    def predict(self, features: Any) -> Floats:
        """Probability of hallucination (n,); raises as `logits`."""
        return expit(self.logits(features))

    def to_dict(self) -> dict[str, Any]:
        """What `torch.load(weights_only=True)` accepts: numbers, lists and tensors."""
        saved = {name: getattr(self, name) for name in get_type_hints(type(self))}
        for name, value in saved.items():
            if isinstance(value, np.ndarray):
                saved[name] = torch.from_numpy(value.copy())
            elif isinstance(value, tuple):
                saved[name] = list(value)
        return saved

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """What `to_dict` was called on; its scores are the same bit for bit.

        Raises KeyError, TypeError, ValueError or AttributeError for anything else.
        """
        values = {}
        for name, kind in get_type_hints(cls).items():
            read = READERS.get(kind)
            values[name] = read(saved[name]) if read else saved[name]
        fitted = cls(**values)
        fitted.check()
        return fitted


@dataclass(frozen=True, eq=False)
class FittedProbe(Fitted):
    """A fitted probe: probability = sigmoid(x @ weight + bias), with `fill` for NaN in x."""

    alternative: int  # that validation chose, from 0: for features by layer, the layer
    fill: Floats  # float64 (k,): the mean over the training rows, 0 if all of them lack the number
    weight: Floats  # float64 (k,)
    bias: float
    val_auroc: tuple[float, ...]  # (A,): AUROC on the validation rows by alternative
    strength: float = DEFAULT_STRENGTH  # C of the chosen regression, the inverse of its penalty

    def logits(self, features: Features) -> Floats:
        """Log-odds of hallucination (n,) from features (n, A, k); ValueError for other A, k."""
        expected = len(self.val_auroc), len(self.fill)
        if features.shape[1:] != expected:
            raise ValueError(
                f"features: expected shape (n, {expected[0]}, {expected[1]}), "
                f"found {tuple(features.shape)}"
            )
        return self.score(to_numpy(features, self.alternative))

    def score(self, numbers: Floats) -> Floats:
        """Log-odds (n,) from the numbers of the alternative, (n, k)."""
        return _logits(numbers, self.fill, self.weight, self.bias)

    def n_parameters(self) -> int:
        """Number of fitted parameters: the weights and the bias."""
        return len(self.weight) + 1

    def check(self) -> None:
        n_alternatives = len(self.val_auroc)
        if not 0 <= self.alternative < n_alternatives:
            raise ValueError(
                f"alternative: expected one of {n_alternatives}, found {self.alternative}"
            )
        if self.weight.ndim != 1:
            raise ValueError(f"weight: expected shape (k,), found {self.weight.shape}")
        check_numbers("weight", self.weight, self.weight.shape)
        check_numbers("fill", self.fill, self.weight.shape)
        check_numbers("bias", np.array(self.bias), ())


@dataclass(frozen=True)
class Probe(FeatureReader):
    """A kind of feature, the columns it needs, and the regression on it."""

    columns: tuple[str, ...]  # that `features` reads
    # packed batch -> (B, A, k): A alternatives of k numbers each; NaN where a number is missing
    features: Callable[[Batch], Tensor]
    # principal components for the regression, at most min(n, k); None: the features themselves
    n_components: int | None = None
    penalty: str = "l2"  # of the regression's weights; "l1" makes most of them 0
    optional: tuple[str, ...] = ()
    # names of the A alternatives; empty where they are the layers of the first column
    alternatives: tuple[str, ...] = ()
    # packed batch with `columns` -> a number (n_tokens,) for each token, larger where a
    # hallucination is more likely; NaN where it is missing
    of_tokens: Callable[[Batch], Tensor] | None = None
    layers_read: tuple[int, ...] | None = None
    tokens_read: str = "all"
    # whether each alternative is of a layer of the first column and depends on that alone, so that
    # layers may be read one by one
    by_layer: bool = False
    # of a control: what it sees of a trace, "question", "prompt", "length" or "wording" of the
    # answer, "texts" side by side or "fields"; the words on its results follow
    sees: str = ""
    learns_from: ClassVar[tuple[str, ...]] = ()  # `features` has them last, a number each
    fitted: ClassVar[type[FittedProbe]] = FittedProbe  # what `fit` returns

    def fit(
        self,
        train: Features,
        train_labels: NDArray[np.int64],
        val: Features,
        val_labels: NDArray[np.int64],
    ) -> FittedProbe:
        """Fit one regression per alternative on train (n, A, k); the best AUROC on val wins.

        The first of several that are equally good is kept. One alternative at a time is in memory
        as float64.
        """
        fits = [
            self.fit_alternative(to_numpy(train, i), train_labels, to_numpy(val, i), val_labels)
            for i in range(train.shape[1])
        ]
        areas = tuple(area for one in fits for area in one.val_auroc)
        best = int(np.argmax(areas))
        return replace(fits[best], alternative=best, val_auroc=areas)

    def fit_alternative(
        self,
        train: Floats,
        labels: NDArray[np.int64],
        val: Floats,
        val_labels: NDArray[np.int64],
    ) -> FittedProbe:
        """The regression on train (n, k), which it overwrites, as if there were no other."""
        pipeline = build_pipeline(self.n_components, train.shape, penalty=self.penalty)
        fit_pipeline(pipeline, train, labels, val, val_labels, self.penalty)
        affine = fold_pipeline(pipeline)
        area = float(roc_auc_score(val_labels, expit(_logits(val, *affine))))
        return FittedProbe(0, *affine, (area,), float(pipeline[-1].C))

    def load(self, saved: Mapping[str, Any]) -> FittedProbe:
        """What `fit` returned, from its `to_dict`; raises as `Fitted.from_dict` does."""
        return self.fitted.from_dict(saved)

    def refit(self, fitted: FittedProbe, train: Features, labels: NDArray[np.int64]) -> FittedProbe:
        """Fit on other rows (n, A, k), with the alternative and the penalty of a fitted probe."""
        numbers = to_numpy(train, fitted.alternative)
        pipeline = build_pipeline(self.n_components, numbers.shape, fitted.strength, self.penalty)
        with np.errstate(invalid="ignore"):  # as in `fit_pipeline`
            pipeline.fit(numbers, labels)
        fill, weight, bias = fold_pipeline(pipeline)
        return replace(fitted, fill=fill, weight=weight, bias=bias)

    def columns_for_tokens(self) -> tuple[str, ...]:
        """Columns that `token_scores` reads; empty where it gives None."""
        if self.of_tokens is not None:
            return self.columns
        return () if STATES in self.columns else columns_for_tokens(self.columns)

    def token_scores(self, fitted: FittedProbe, batch: Batch) -> Tensor | None:
        """How much each token speaks for a hallucination, (n_tokens,) float32, or None.

        A regression on one state a trace: its log-odds for the state of each token. Others have
        what `of_tokens` gives, or nothing.
        """
        if self.of_tokens is not None:
            return self.of_tokens(batch).float()
        if not self.columns_for_tokens():
            return None
        parts = [
            torch.from_numpy(fitted.logits(self.features(tokens)))
            for tokens in tokens_as_traces(batch, self.columns[0])
        ]
        return torch.cat(parts).float() if parts else torch.zeros(0)


def fit_pipeline(
    pipeline: Pipeline,
    train: Floats,
    labels: NDArray[np.int64],
    val: Floats,
    val_labels: NDArray[np.int64],
    penalty: str,
) -> None:
    """Fit a pipeline on train (n, k), which it overwrites; val (n_val, k) chooses C."""
    prepare, regression = pipeline[:-1], pipeline[-1]
    # components of features that never vary explain 0 / 0 of the variance
    with np.errstate(invalid="ignore"):
        prepared = prepare.fit_transform(train)
    if prepared.shape[1] > 1:
        prepared_val = prepare.transform(val.copy()).astype(np.float32)
        strength = choose_strength(
            prepared.astype(np.float32), labels, prepared_val, val_labels, penalty
        )
        regression.set_params(C=strength)
    regression.fit(prepared, labels)


def build_pipeline(
    n_components: int | None,
    shape: tuple[int, ...],
    strength: float = DEFAULT_STRENGTH,
    penalty: str = "l2",
) -> Pipeline:
    """The unfitted pipeline for features of a shape (n, k); fitting it overwrites them.

    The solver of the components is scikit-learn's choice by shape: exact for small ones, randomised
    with a fixed random state for large ones, so equal features give equal bits.
    """
    scale = ImputeAndScale()
    regress = build_regression(penalty, strength)
    if n_components is None:
        return make_pipeline(scale, regress)
    reduce = PCA(min(n_components, *shape), random_state=0)
    return make_pipeline(scale, reduce, regress)


class ImputeAndScale(TransformerMixin, BaseEstimator):
    """scikit-learn's two steps, in place and some columns at a time, whose copies stay small."""

    def fit(self, X: Floats, y: object = None) -> Self:
        self.parts_ = [
            make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler()).fit(X[:, part])
            for part in self.cuts(X)
        ]
        return self

    def transform(self, X: Floats) -> Floats:
        for fitted, part in zip(self.parts_, self.cuts(X), strict=True):
            X[:, part] = fitted.transform(X[:, part])
        return X

    def cuts(self, X: Floats) -> list[slice]:
        return [slice(first, first + AT_ONCE) for first in range(0, X.shape[1], AT_ONCE)]

    def fitted(self) -> tuple[Floats, Floats, Floats]:
        """What replaces a missing number, mean and scale of each feature, (k,) each."""
        steps = [(one[0].statistics_, one[1].mean_, one[1].scale_) for one in self.parts_]
        fill, mean, scale = map(np.concatenate, zip(*steps, strict=True))
        return fill, mean, scale


def fold_pipeline(pipeline: Pipeline) -> AffineMap:
    """Fold a fitted `build_pipeline` into (fill (k,), weight (k,), bias) of one affine map."""
    scaler, *components, regression = (step for _, step in pipeline.steps)
    fill, mean, scale = scaler.fitted()
    # of the components, or the scaled features
    weight = regression.coef_[0]
    bias = regression.intercept_[0]
    for pca in components:
        weight = weight @ pca.components_
        bias = bias - pca.mean_ @ weight
    weight = weight / scale
    return fill, weight, float(bias - mean @ weight)


def check_numbers(what: str, numbers: Floats, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless numbers that were read have this shape and are finite."""
    if numbers.shape != shape:
        raise ValueError(f"{what}: expected shape {shape}, found {numbers.shape}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what}: expected finite numbers, found others")


def to_numpy(features: Features, alternative: int) -> Floats:
    """(n, A, k) -> (n, k) float64 of one alternative, a copy."""
    numbers: Floats = features[:, alternative].to(torch.float64, copy=True).numpy()
    return numbers


def _logits(
    numbers: Floats,
    fill: Floats,
    weight: Floats,
    bias: float,
) -> Floats:
    """(n, k) -> (n,)."""
    filled = np.where(np.isnan(numbers), fill, numbers)
    # not `@`: BLAS and torch round the last rows of an array unlike the first, so that equal
    # traces would get unequal scores
    return np.einsum("nk,k->n", filled, weight) + bias
