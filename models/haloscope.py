"""HaloScope: a classifier that learns which states are hallucinations without labels.

Du et al. 2024, arXiv:2409.17504 (NeurIPS). First, with m the mean of the training states of a
layer, v_j the singular vectors of the centred states and s_j their singular values,

    score(x) = 1/k sum_j s_j (v_j . (x - m))^2        over the k largest

Larger means a hallucination by the paper. That score alone is `haloscope_projection`, which they
call direct projection. In `haloscope` the training states whose score is above a threshold are then
taken for hallucinations, and an MLP d - 1024 - 1 with ReLU learns to tell them from the others.

No label of a training trace decides what the MLP learns. Those of validation choose, as there, the
layer, k from 1 to 10, and whether a high or a low score means a hallucination, all by the score,
and the threshold, of five quantiles of the training scores (there 38), by the MLP. Labels of
training traces only fit the regression that turns the MLP's logit, or the square root of the score,
into a probability; its sign is theirs, which of `haloscope_projection` is the direction.

Theirs is the state of the last token behind the question and the answer, or what attention or the
feed-forward part adds. The MLP is trained as there (SGD with momentum .9, a learning rate of .05
that falls by a cosine, weight decay 3e-4, 50 epochs of batches of 512), but on standardised states.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from torch import nn

from models.probe import Features, FittedProbe, Probe, check_numbers, to_numpy
from models.quadratic import (
    FittedQuadratic,
    Floats,
    Forms,
    Labels,
    QuadraticProbe,
    of_last_states,
    score_states,
)

__all__ = [
    "HALOSCOPE",
    "HALOSCOPE_PROJECTION",
    "FittedMembership",
    "best_subspace",
    "subspace",
    "train_classifier",
]

MOST = 10  # singular vectors
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
WIDTH = 1024
N_EPOCHS, BATCH_SIZE = 50, 512
LEAST_DEVIATION = 1e-6  # of the largest: a number that never varies stays small


class Classifier(NamedTuple):
    """The weights of an MLP d - width - 1; all float64."""

    hidden: Floats  # (width, d)
    hidden_bias: Floats  # (width,)
    output: Floats  # (width,)


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


def direct(fitted: FittedQuadratic, val: Floats, labels: Labels) -> FittedQuadratic:
    """The score itself, in the direction that is right on validation, whatever train says."""
    plain = replace(fitted, weight=np.ones(1), bias=0.0)
    area = float(roc_auc_score(labels, plain.score(val)))
    sign = 1.0 if area >= 0.5 else -1.0
    return replace(plain, weight=np.array([sign]), val_auroc=(max(area, 1 - area),))


def train_classifier(states: Floats, is_member: NDArray[np.bool_]) -> Classifier:
    """The weights of an MLP that tells some states (n, d) from the others, always the same."""
    mean, deviation = states.mean(axis=0), states.std(axis=0)
    deviation = deviation.clip(min=LEAST_DEVIATION * deviation.max() or 1.0)
    inputs = torch.from_numpy((states - mean) / deviation).float()
    targets = torch.from_numpy(is_member).float()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        first, last = nn.Linear(states.shape[1], WIDTH), nn.Linear(WIDTH, 1, bias=False)
        net = nn.Sequential(first, nn.ReLU(), last, nn.Flatten(0))
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=3e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, N_EPOCHS, 4e-4)
        for _ in range(N_EPOCHS):
            for rows in torch.randperm(len(inputs)).split(BATCH_SIZE):
                optimizer.zero_grad()
                logits = net(inputs[rows])
                nn.functional.binary_cross_entropy_with_logits(logits, targets[rows]).backward()
                optimizer.step()
            schedule.step()
    weight, bias, output = (one.detach().double().numpy() for one in net.parameters())
    hidden = weight / deviation
    return Classifier(hidden, bias - hidden @ mean, output[0])


def classify(states: Floats, hidden: Floats, hidden_bias: Floats, output: Floats) -> Floats:
    """The logits (n, 1) of states (n, d), by the numbers of a `Classifier`."""
    # not `@`, which rounds the last rows unlike the first
    active = (np.einsum("nd,hd->nh", states, hidden) + hidden_bias).clip(min=0)
    return np.einsum("nh,h->n", active, output)[:, None]


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedMembership(FittedProbe):
    """Log-odds of the classifier's logit: `weight` and `bias` are of that, `fill` of the state."""

    hidden: Floats
    hidden_bias: Floats
    output: Floats

    def score(self, numbers: Floats) -> Floats:
        states = np.where(np.isnan(numbers), self.fill, numbers)
        logits = classify(states, self.hidden, self.hidden_bias, self.output)
        return logits[:, 0] * self.weight[0] + self.bias

    def n_parameters(self) -> int:
        """Number of fitted numbers: those of the classifier, the weight and the bias."""
        return self.hidden.size + self.hidden_bias.size + self.output.size + 2

    def check(self) -> None:
        width, size = self.hidden.shape
        check_numbers("hidden", self.hidden, (width, size))
        check_numbers("hidden_bias", self.hidden_bias, (width,))
        check_numbers("output", self.output, (width,))
        check_numbers("fill", self.fill, (size,))
        check_numbers("weight", self.weight, (1,))
        check_numbers("bias", np.array(self.bias), ())


@dataclass(frozen=True, kw_only=True)
class MembershipProbe(Probe):
    """A probe whose classifier learns from the score of another."""

    projection: QuadraticProbe  # the first step
    fitted = FittedMembership

    def fit(
        self, train: Features, train_labels: Labels, val: Features, val_labels: Labels
    ) -> FittedMembership:
        """Both steps; `val_auroc` is that of the first, which chooses the layer."""
        areas: list[float] = []
        for i in range(train.shape[1]):
            states, val_states = to_numpy(train, i), to_numpy(val, i)
            first = self.projection.fit_alternative(states, train_labels, val_states, val_labels)
            first = direct(first, val_states, val_labels)
            if first.val_auroc[0] > max(areas, default=-1):
                layer, membership, numbers = i, first, (states, val_states)
            areas += first.val_auroc
        states, val_states = (np.where(np.isnan(one), membership.fill, one) for one in numbers)
        classifier, on_logit = self.learn_from(
            membership, states, val_states, train_labels, val_labels
        )
        return FittedMembership(
            alternative=layer,
            fill=membership.fill,
            weight=on_logit.weight,
            bias=on_logit.bias,
            val_auroc=tuple(areas),
            **classifier._asdict(),
        )

    def learn_from(
        self,
        membership: FittedProbe,
        train: Floats,
        val: Floats,
        labels: Labels,
        val_labels: Labels,
    ) -> tuple[Classifier, FittedProbe]:
        """The classifier of the threshold that is best on validation; the regression on its logit.

        `train` and `val`, (n, d), are without NaN.
        """
        scores = membership.score(train)
        found = [
            train_classifier(train, scores > threshold)
            for threshold in np.quantile(scores, QUANTILES)
        ]
        val_logits = [classify(val, *one) for one in found]
        best = int(np.argmax([roc_auc_score(val_labels, one[:, 0]) for one in val_logits]))
        logits = classify(train, *found[best])
        return found[best], self.fit_alternative(logits, labels, val_logits[best], val_labels)


HALOSCOPE_PROJECTION = of_last_states(best_subspace)
HALOSCOPE = MembershipProbe(
    HALOSCOPE_PROJECTION.columns,
    HALOSCOPE_PROJECTION.features,
    by_layer=True,
    projection=HALOSCOPE_PROJECTION,
)
