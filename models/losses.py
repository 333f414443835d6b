"""The loss that detectors are trained with, beside what a detector adds of its own."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ClassificationLoss"]

FOCAL_GAMMA = 2.0  # as its authors recommend


class ClassificationLoss(nn.Module):
    """Binary cross-entropy of logits; on request focal (Lin et al., arXiv:1708.02002) or with smoothed labels.

    Parameters
    ----------
    focal : bool
        Weigh each row by (1 - p)^2, p being the probability given to its label: easy rows count less.
    label_smoothing : float
        s: a label y is taken for y (1 - s) + s / 2.

    Shapes
    ------
    logits (B,), labels (B,) of 0 and 1 -> scalar
    """

    def __init__(self, focal: bool = False, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.focal, self.label_smoothing = focal, label_smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        targets = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        if not self.focal:
            return F.binary_cross_entropy_with_logits(logits, targets)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        given = (logits * (2 * labels - 1)).sigmoid()  # probability of the label
        return ((1 - given) ** FOCAL_GAMMA * losses).mean()
