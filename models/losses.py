"""The loss that detectors are trained with, beside what a detector adds of its own."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ClassificationLoss"]

FOCAL_GAMMA = 2.0  # as its authors recommend


class ClassificationLoss(nn.Module):
    """Binary cross-entropy of logits; on request focal (Lin et al., arXiv:1708.02002), smoothed or
    weighted.

    Parameters
    ----------
    focal : bool
        Weigh each row by (1 - p)^2, p being the probability given to its label: easy rows count
        less.
    label_smoothing : float
        s: a label y is taken for y (1 - s) + s / 2.
    class_weights : (float, float), optional
        Factors of the losses of rows with label 0 and 1.

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
        self.focal, self.label_smoothing, self.class_weights = focal, label_smoothing, class_weights

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        targets = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        if not self.focal and self.class_weights is None:
            return F.binary_cross_entropy_with_logits(logits, targets)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if self.focal:
            p = logits.sigmoid()
            # 1 - probability of the label
            losses = (1 - (labels * p + (1 - labels) * (1 - p))) ** FOCAL_GAMMA * losses
        if self.class_weights is not None:
            of_0, of_1 = self.class_weights
            losses = (labels * of_1 + (1 - labels) * of_0) * losses
        return losses.mean()
