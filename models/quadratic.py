"""Probes whose score is the length of a state's way from a centre, measured along learned axes.

    score(x) = sum_i sign_i sqrt(sum_j gain_ij (axis_ij . y_i)^2 + rest_i |y_i|^2)
    y_i = x - centre_i

The forms are learned from the training states of a layer; the regression only turns the score into
a probability.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.probe import Features, FittedProbe, Probe, check_numbers
from store import Batch

__all__ = ["FittedQuadratic", "Forms", "QuadraticProbe", "of_last_states", "score_states"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
# states (n, d) and labels (n,) of train, then of validation -> the forms of a layer
Learn = Callable[[Floats, Labels, Floats, Labels], "Forms"]


class Forms(NamedTuple):
    """Quadratic forms of states of size d, each of r axes; all float64."""

    centres: Floats  # (q, d)
    axes: Floats  # (q, r, d), orthonormal
    gains: Floats  # (q, r)
    rests: Floats  # (q,)
    signs: Floats  # (q,)


def score_states(states: Floats, forms: Forms) -> Floats:
    """The score (n,) of states (n, d)."""
    score = np.zeros(len(states))
    for centre, axes, gains, rest, sign in zip(*forms, strict=True):
        away = states - centre
        # not `@`, which rounds the last rows unlike the first
        along = np.einsum("nd,rd->nr", away, axes)
        squares = np.einsum("nr,r->n", along**2, gains) + rest * np.einsum("nd,nd->n", away, away)
        score += sign * np.sqrt(squares.clip(min=0))
    return score


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedQuadratic(FittedProbe):
    """Log-odds of the score: `weight` and `bias` are of that one number, `fill` of the state."""

    centres: Floats
    axes: Floats
    gains: Floats
    rests: Floats
    signs: Floats

    def score(self, numbers: Floats) -> Floats:
        forms = Forms(self.centres, self.axes, self.gains, self.rests, self.signs)
        states = np.where(np.isnan(numbers), self.fill, numbers)
        return score_states(states, forms) * self.weight[0] + self.bias

    def n_parameters(self) -> int:
        """Number of fitted numbers: those of the forms, the weight and the bias."""
        return self.centres.size + self.axes.size + self.gains.size + self.rests.size + 2

    def check(self) -> None:
        n_forms, rank, size = self.axes.shape
        check_numbers("axes", self.axes, (n_forms, rank, size))
        check_numbers("centres", self.centres, (n_forms, size))
        check_numbers("gains", self.gains, (n_forms, rank))
        check_numbers("rests", self.rests, (n_forms,))
        check_numbers("signs", self.signs, (n_forms,))
        check_numbers("fill", self.fill, (size,))
        check_numbers("weight", self.weight, (1,))
        check_numbers("bias", np.array(self.bias), ())


@dataclass(frozen=True, kw_only=True)
class QuadraticProbe(Probe):
    """A probe of the states of each layer whose forms `learn` finds."""

    learn: Learn
    fitted = FittedQuadratic

    def fit_alternative(
        self, train: Floats, labels: Labels, val: Floats, val_labels: Labels
    ) -> FittedQuadratic:
        known = ~np.isnan(train)
        fill = np.where(known, train, 0).sum(axis=0) / known.sum(axis=0).clip(min=1)
        states, val_states = (np.where(np.isnan(one), fill, one) for one in (train, val))
        forms = self.learn(states, labels, val_states, val_labels)
        train_score, val_score = (score_states(one, forms)[:, None] for one in (states, val_states))
        on_score = super().fit_alternative(train_score, labels, val_score, val_labels)
        return FittedQuadratic(
            alternative=0,
            fill=fill,
            weight=on_score.weight,
            bias=on_score.bias,
            val_auroc=on_score.val_auroc,
            **forms._asdict(),
        )

    def refit(self, fitted: FittedProbe, train: Features, labels: Labels) -> FittedProbe:
        """Not there: only baselines and controls are refitted, for `--on-top-of`."""
        raise NotImplementedError("expected a probe that is a regression on its features")


def of_last_states(learn: Learn) -> QuadraticProbe:
    """The probe of the last token's state, of which validation chooses the layer."""
    states = partial(Batch.fixed, name="hs_last")
    return QuadraticProbe(("hs_last",), states, by_layer=True, learn=learn)
