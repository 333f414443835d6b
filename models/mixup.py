"""Mixup: train on lines between traces, which smooths what a detector says between them
(arXiv:1710.09412).

What is mixed are the features that a detector makes of a trace (`Detector.encode`), and the labels
by the same share: traces themselves differ in length, their features do not (manifold mixup,
arXiv:1806.05236).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Beta

__all__ = ["Mixup"]


class Mixup(NamedTuple):
    """Each row of a batch takes `share` of itself and the rest of its partner.

    Attributes
    ----------
    partner : Tensor, (B,) int64
        A permutation of the rows.
    share : float
        From 0 to 1.
    """

    partner: Tensor
    share: float

    @classmethod
    def draw(cls, n_rows: int, alpha: float) -> Mixup:
        """Draw partners, and a share from Beta(alpha, alpha), with torch's CPU generator."""
        return cls(torch.randperm(n_rows), float(Beta(alpha, alpha).sample()))

    def __call__(self, values: Tensor) -> Tensor:
        """Mix the rows of `values` (B, ...), any float; a copy on the device of `values`."""
        return self.share * values + (1 - self.share) * values[self.partner.to(values.device)]
