"""The baselines that a detector has to beat: what little information, or how simple a model, is enough?

Each is a logistic regression on features of one kind, fitted on the training rows only: a constant (the majority),
the length of the answer, the mean log-probability of the answer, and one layer of `hs_last`. A feature may come in
several alternatives (the layers); validation rows choose among them. All of them give probabilities, so every metric
applies to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

if TYPE_CHECKING:
    from store import Batch

__all__ = ["BASELINES", "Baseline", "FittedBaseline"]


@dataclass(frozen=True)
class FittedBaseline:
    """A fitted regression and the alternative it reads (`layer` counts from 0)."""

    layer: int
    regression: Pipeline

    def predict(self, features: Tensor) -> NDArray[np.float64]:
        """Probability of hallucination (n,) from features (n, A, k) of `Baseline.features`."""
        return self.regression.predict_proba(_to_numpy(features, self.layer))[:, 1]


@dataclass(frozen=True)
class Baseline:
    """A kind of feature and the columns it is made of.

    Attributes
    ----------
    columns : tuple of str
        Columns that `features` reads.
    features : callable
        Packed batch -> (B, A, k): A alternatives of k numbers each; NaN where a trace has none (the mean stands in).
    """

    columns: tuple[str, ...]
    features: Callable[[Batch], Tensor]

    def fit(
        self, train: Tensor, train_labels: NDArray[np.int64], val: Tensor, val_labels: NDArray[np.int64]
    ) -> FittedBaseline:
        """Fit one regression per alternative on train (n, A, k); keep the one with the best AUROC on val (m, A, k)."""
        fitted = [
            FittedBaseline(layer, _regression().fit(_to_numpy(train, layer), train_labels))
            for layer in range(train.shape[1])
        ]
        if len(fitted) == 1:
            return fitted[0]
        return max(fitted, key=lambda one: roc_auc_score(val_labels, one.predict(val)))


def constant(batch: Batch) -> Tensor:
    """Nothing to go by (B, 1, 1): what remains is the share of hallucinations in train."""
    return torch.zeros(len(batch), 1, 1)


def answer_length(batch: Batch) -> Tensor:
    """Tokens of the answer (B, 1, 1) float32."""
    return batch["answer_len"].float()[:, None, None]


def mean_logprob(batch: Batch) -> Tensor:
    """Mean log-probability of the answer's tokens in nats, (B, 1, 1) float32; NaN for an empty answer.

    With its sign turned this is the log of the perplexity, the simplest of the uncertainty scores.
    """
    values, offsets = batch["logprob"].values, batch["logprob"].offsets  # (n_tokens,), (B + 1,)
    lengths = offsets.diff()  # (B,)
    position = torch.arange(len(values)) - torch.repeat_interleave(
        offsets[:-1], lengths
    )  # (n_tokens,) within the trace
    start = torch.repeat_interleave(batch["prompt_len"].long(), lengths)  # (n_tokens,)
    stop = start + torch.repeat_interleave(batch["answer_len"].long(), lengths)  # (n_tokens,)
    in_answer = (
        (position >= start) & (position < stop) & ~values.isnan()
    )  # the first token of all has no log-probability
    trace = torch.repeat_interleave(lengths)[in_answer]  # (n_answer_tokens,)
    total = torch.zeros(len(lengths)).index_add(0, trace, values[in_answer].float())  # (B,)
    return (total / torch.bincount(trace, minlength=len(lengths)))[:, None, None]  # 0 / 0 is NaN


def every_layer(batch: Batch) -> Tensor:
    """State of the last token at each layer (B, L, d), as stored."""
    return batch["hs_last"]


def first_layer(batch: Batch) -> Tensor:
    """State of the last token at the lowest layer (B, 1, d): how much the input alone tells."""
    return batch["hs_last"][:, :1]


BASELINES: dict[str, Baseline] = {
    "majority": Baseline(("question_id",), constant),
    "answer_length": Baseline(("answer_len",), answer_length),
    "mean_logprob": Baseline(("logprob", "prompt_len", "answer_len"), mean_logprob),
    "logreg_first": Baseline(("hs_last",), first_layer),
    "logreg_best": Baseline(("hs_last",), every_layer),
}


def _regression() -> Pipeline:
    return make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=1000))


def _to_numpy(features: Tensor, layer: int) -> NDArray[np.float64]:
    """(n, A, k) -> (n, k) float64 of one alternative."""
    return features[:, layer].double().numpy()
