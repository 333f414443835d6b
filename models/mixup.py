"""Mixup: train on convex combinations of two traces (arXiv:1710.09412).

Mixed are the features that a detector computes of a trace (`Detector.encode`), and the labels by
the same lambda: traces themselves differ in length, their features do not (manifold mixup,
arXiv:1806.05236).
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import Beta

__all__ = ["Mixup"]


class Mixup(NamedTuple):
    """Each row of a batch becomes lam * itself + (1 - lam) * its partner."""

    partner: Tensor  # (B,) int64: a permutation of the rows
    lam: float  # from 0 to 1

    @classmethod
    def draw(cls, n_rows: int, alpha: float) -> Self:
        """Draw partners, and lambda from Beta(alpha, alpha), with torch's CPU generator."""
        return cls(torch.randperm(n_rows), float(Beta(alpha, alpha).sample()))

    def __call__(self, values: Tensor) -> Tensor:
        """Mix the rows of `values` (B, ...), any float; a copy on the device of `values`."""
        return self.lam * values + (1 - self.lam) * values[self.partner.to(values.device)]
