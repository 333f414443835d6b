"""The loss against its definition."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from models.losses import ClassificationLoss

LOGITS = torch.tensor([-30.0, -2.0, -0.1, 0.0, 0.3, 4.0, 30.0], dtype=torch.float64)
LABELS = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)


def test_plain_it_is_cross_entropy_bit_for_bit():
    for dtype in (torch.float32, torch.float64):
        logits, labels = LOGITS.to(dtype), LABELS.to(dtype)
        assert torch.equal(
            ClassificationLoss()(logits, labels), F.binary_cross_entropy_with_logits(logits, labels)
        )


@pytest.mark.parametrize("focal", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_against_the_definition(focal, smoothing):
    """Computed with probabilities, row by row."""
    p = 1 / (1 + np.exp(-LOGITS.numpy()))
    y = LABELS.numpy()
    target = y * (1 - smoothing) + smoothing / 2
    losses = -(
        target * np.log(np.maximum(p, 1e-300)) + (1 - target) * np.log(np.maximum(1 - p, 1e-300))
    )
    if focal:
        losses *= (1 - np.where(y == 1, p, 1 - p)) ** 2
    assert ClassificationLoss(focal, smoothing)(LOGITS, LABELS).item() == pytest.approx(
        losses.mean(), rel=1e-3
    )


def test_rows_count_by_the_weight_of_their_class():
    """Twice the weight is the same row twice."""
    weighted = ClassificationLoss(class_weights=(1.0, 2.0))(LOGITS, LABELS) * len(LABELS)
    twice = torch.cat([torch.arange(len(LABELS)), LABELS.nonzero()[:, 0]])
    torch.testing.assert_close(
        weighted, ClassificationLoss()(LOGITS[twice], LABELS[twice]) * len(twice)
    )


def test_a_mixed_label_is_between_its_two():
    """Cross-entropy is linear in the label; the focal factor takes the probability given to the
    mixture."""
    mixed = torch.full((7,), 0.25, dtype=torch.float64)
    by_label = [ClassificationLoss()(LOGITS, torch.full_like(mixed, y)) for y in (0.0, 1.0)]
    torch.testing.assert_close(
        ClassificationLoss()(LOGITS, mixed), 0.75 * by_label[0] + 0.25 * by_label[1]
    )
    p = LOGITS.sigmoid()
    losses = F.binary_cross_entropy_with_logits(LOGITS, mixed, reduction="none")
    given = 0.25 * p + 0.75 * (1 - p)
    torch.testing.assert_close(
        ClassificationLoss(focal=True)(LOGITS, mixed), ((1 - given) ** 2 * losses).mean()
    )
