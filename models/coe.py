"""Chain-of-Embedding: how far, and how straight, the mean state moves from layer to layer.

Wang et al. 2024, arXiv:2410.13640 (ICLR 2025). With h_l the mean state of the answer at layer l,
a_l the angle between h_l and h_{l+1}, and a that between the lowest and the highest layer,

    m_l = |h_{l+1} - h_l| / |h_L - h_1|        t_l = a_l / a
    real = mean(m_l) - mean(t_l)               complex = |mean(m_l exp(i t_l))|

In the paper a right answer has the larger score; here both are negated, so that larger means a
hallucination. Nothing is learned: the regression only turns a score into a probability, and finds
its sign. Validation chooses between the two.

As in the authors' code, the complex score has the scaled lengths and angles. They begin with the
embeddings of the tokens; a store begins with the first layer that it keeps.
"""

import torch
from torch import Tensor

from models.probe import Probe
from store import Batch

__all__ = ["COE", "chain_scores"]


def chain_scores(batch: Batch) -> Tensor:
    """The real and the complex score, negated, (B, 2, 1) float32.

    NaN where the lowest and the highest layer are equal, or have the same direction.
    """
    states = batch.fixed("hs_mean").double()  # (B, L, d); a small angle is lost in float32
    ends = states[:, [0, -1]]
    length = lengths(states) / lengths(ends)  # (B, L - 1)
    angle = angles(states) / angles(ends)
    real = length.mean(dim=1) - angle.mean(dim=1)
    complex_ = torch.polar(length, angle).mean(dim=1).abs()
    scores = -torch.stack([real, complex_], dim=1)[:, :, None]
    return torch.where(scores.isfinite(), scores, torch.nan).float()


def lengths(states: Tensor) -> Tensor:
    """Distances of neighbouring layers: (B, L, d) -> (B, L - 1)."""
    return states.diff(dim=1).norm(dim=2)


def angles(states: Tensor) -> Tensor:
    """Angles between neighbouring layers in radians: (B, L, d) -> (B, L - 1)."""
    cosine = torch.cosine_similarity(states[:, 1:], states[:, :-1], dim=2)
    return cosine.clamp(-1, 1).arccos()


COE = Probe(("hs_mean",), chain_scores, alternatives=("real", "complex"))
