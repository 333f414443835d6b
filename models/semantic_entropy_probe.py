"""Semantic entropy probes: whether a state tells that other answers would mean something else.

Kossen et al. 2024, arXiv:2406.15927. A logistic regression on one state learns whether the semantic
entropy of a question is high, and its log-odds are the score: larger means a hallucination. Only
training needs the column `semantic_entropy` (`python -m store derive`, from several answers to a
question); a new trace is scored from its state alone, without samples.

High is above the threshold that splits the entropies of the training rows with the least squared
error around the means of both sides, as in the paper. Rows without an entropy are not learned from.
`semantic_entropy_probe` reads the last token of the answer, `semantic_entropy_probe_prompt` the
last token of the prompt (the paper's SLT and TBG).

Unlike there, validation chooses one layer and the penalty by labels of hallucinations (the authors
concatenate a range of layers), and a second regression, on that one score, turns it into a
probability.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.probe import Features, FittedProbe, Probe, UnlearnableError, to_numpy
from store import Batch

__all__ = [
    "SEMANTIC_ENTROPY_PROBE",
    "SEMANTIC_ENTROPY_PROBE_PROMPT",
    "EntropyProbe",
    "best_split",
    "states_and_entropy",
]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
ENTROPY = "semantic_entropy"


def states_and_entropy(batch: Batch, column: str) -> Tensor:
    """The state of each layer, and behind it the entropy or NaN, (B, L, d + 1) float32."""
    states = batch.fixed(column).float()
    entropy = torch.full((len(states),), torch.nan)
    if ENTROPY in batch.columns:
        entropy = batch.fixed(ENTROPY).float()
    return torch.cat([states, entropy[:, None, None].expand(-1, states.shape[1], 1)], dim=2)


def best_split(entropy: Floats) -> float:
    """The threshold of entropies (n,) with the least squared error around the means of both sides.

    Raises UnlearnableError unless two of them differ.
    """
    ordered = np.sort(entropy)
    n_low = np.flatnonzero(np.diff(ordered)) + 1  # sizes of the lower side
    if not len(n_low):
        raise UnlearnableError(
            f"{ENTROPY}: expected several values on the training rows, found at most one; train "
            "without semantic_entropy_probe"
        )
    low = ordered.cumsum()[n_low - 1]
    high = ordered.sum() - low
    # the squares of all are the same for every split
    cut = n_low[np.argmax(low**2 / n_low + high**2 / (len(ordered) - n_low))]
    return float(ordered[cut - 1 : cut + 1].mean())


class FittedEntropyProbe(FittedProbe):
    """Log-odds from the state; the number behind it is not read."""

    def logits(self, features: Features) -> Floats:
        return self.score(to_numpy(features, self.alternative)[:, : len(self.weight)])


@dataclass(frozen=True)
class EntropyProbe(Probe):
    """A probe that learns which training rows have a high entropy."""

    learns_from: ClassVar[tuple[str, ...]] = (ENTROPY,)
    fitted = FittedEntropyProbe

    def fit_alternative(
        self, train: Floats, labels: Labels, val: Floats, val_labels: Labels
    ) -> FittedProbe:
        states, entropy, val_states = train[:, :-1], train[:, -1], val[:, :-1]
        known = ~np.isnan(entropy)
        is_high = (entropy > best_split(entropy[known]))[known].astype(np.int64)
        of_entropy = super().fit_alternative(states[known], is_high, val_states, val_labels)
        scores, val_scores = (of_entropy.score(one)[:, None] for one in (states, val_states))
        on_score = super().fit_alternative(scores, labels, val_scores, val_labels)
        slope = on_score.weight[0]
        return FittedEntropyProbe(
            0,
            of_entropy.fill,
            slope * of_entropy.weight,
            float(slope * of_entropy.bias + on_score.bias),
            on_score.val_auroc,
            of_entropy.strength,
        )


def of_states(column: str) -> EntropyProbe:
    """The probe of one state a trace, of which validation chooses the layer."""
    features = partial(states_and_entropy, column=column)
    return EntropyProbe((column,), features, by_layer=True, optional=(ENTROPY,))


SEMANTIC_ENTROPY_PROBE = of_states("hs_last")
SEMANTIC_ENTROPY_PROBE_PROMPT = of_states("hs_prompt")
