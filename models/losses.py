"""The classification loss of all detectors, to which one may add terms of its own; and mixup."""

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn import functional as F

__all__ = ["ClassificationLoss", "Mixup"]

FOCAL_GAMMA = 2.0  # as its authors recommend


class ClassificationLoss(nn.Module):
    """Binary cross-entropy of logits; optionally focal, with smoothed labels or class weights.

    `focal` weighs each row by (1 - p)^2, with p the probability of its label: easy rows count less
    (Lin et al., arXiv:1708.02002). With `label_smoothing` s the target of a label y is
    y (1 - s) + s / 2. `class_weights` are factors of the losses of rows with label 0 and 1.

    Shapes
    ------
    logits (B,), labels (B,) from 0 to 1, in between where traces are mixed -> scalar
    """

    def __init__(
        self,
        focal: bool = False,
        label_smoothing: float = 0.0,
        class_weights: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.focal = focal
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights

    @property
    def is_plain(self) -> bool:
        """Whether it is the cross-entropy alone, as it is unless a setting asks for more."""
        return not self.focal and not self.label_smoothing and self.class_weights is None

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        targets = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        if not self.focal and self.class_weights is None:
            return F.binary_cross_entropy_with_logits(logits, targets)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if self.focal:
            p = logits.sigmoid()
            p_label = labels * p + (1 - labels) * (1 - p)
            losses = (1 - p_label) ** FOCAL_GAMMA * losses
        if self.class_weights is not None:
            weight_0, weight_1 = self.class_weights
            losses = (labels * weight_1 + (1 - labels) * weight_0) * losses
        return losses.mean()


class Mixup(NamedTuple):
    """Each row of a batch becomes lam * itself + (1 - lam) * its partner (arXiv:1710.09412).

    Mixed are the features that a detector computes of a trace (`Detector.encode`), and the labels
    by the same lambda: traces themselves differ in length, their features do not (manifold mixup,
    arXiv:1806.05236).
    """

    partner: Tensor  # (B,) int64: a permutation of the rows
    lam: float  # from 0 to 1

    @classmethod
    def draw(cls, n_rows: int, alpha: float) -> Self:
        """Draw partners, and lambda from Beta(alpha, alpha), with torch's CPU generator."""
        return cls(torch.randperm(n_rows), float(Beta(alpha, alpha).sample()))

    def __call__(self, values: Tensor) -> Tensor:
        """Mix the rows of `values` (B, ...), any float; a copy on the device of `values`."""
        return self.lam * values + (1 - self.lam) * values[self.partner.to(values.device)]
