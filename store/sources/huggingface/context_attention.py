"""What a layer's heads pay to the tokens of a context: mass, entropy, and how heads differ.

The last three are aggregations of AggTruth (Matys et al. 2025, arXiv:2506.18628), or what its
entropy is made from: H_all = m H - m ln m - (1 - m) ln(1 - m), with the mass m and the entropy H of
the shares in it.

Axes: H heads, T tokens, C tokens of the context.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["ON_CONTEXT", "js_divergence"]


def _at_least_tiny(values: Tensor) -> Tensor:
    """What can be divided by."""
    return values.clamp(min=torch.finfo(values.dtype).tiny)


def js_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence over the last axis, in nats: 0 to ln 2. (..., n) -> (...)."""
    middle = (p + q) / 2
    # (p - q) / (p + q): p and q are 1 + r and 1 - r times their middle, whose logarithms are exact
    r = (p - q) / _at_least_tiny(2 * middle)
    terms = torch.special.xlog1py(1 + r, r) + torch.special.xlog1py(1 - r, -r)
    return (middle * terms).sum(dim=-1).clamp(min=0) / 2


def _mass(attention: Tensor) -> Tensor:
    return attention.sum(dim=2)


def _entropy(attention: Tensor) -> Tensor:
    """Of the shares of the tokens in the mass; 0 where there is none."""
    return torch.special.entr(attention / _at_least_tiny(_mass(attention)[:, :, None])).sum(dim=2)


def _cosine(attention: Tensor) -> Tensor:
    """The mean over the other heads; 0 of a head alone."""
    scaled = attention / _at_least_tiny(attention.amax(dim=2, keepdim=True))
    directions = torch.nn.functional.normalize(scaled, dim=2)  # 0 where there is no attention
    others = directions.sum(dim=0) - directions
    return (directions * others).sum(dim=2) / max(1, len(attention) - 1)


def _distance(attention: Tensor) -> Tensor:
    """To the mean of the heads; what is paid to all other tokens is one place more."""
    rest = (1 - attention.sum(dim=2, keepdim=True)).clamp(min=0)
    whole = torch.cat([attention, rest], dim=2)
    return js_divergence(whole, whole.mean(dim=0).expand_as(whole)).sqrt()


# column -> one number a token and head, of the attention to a context: (H, T, C) -> (H, T), float32
ON_CONTEXT: dict[str, Callable[[Tensor], Tensor]] = {
    "attn_cmass": _mass,
    "attn_centropy": _entropy,
    "attn_ccosine": _cosine,
    "attn_cjs": _distance,
}
