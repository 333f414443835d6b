"""The loss against its definition; rows and labels mixed alike."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from models import DETECTORS
from models.losses import ClassificationLoss, Mixup

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


def test_rows_and_labels_mix_by_the_same_lambda():
    """Each row is on the line from its partner to itself, and so is its label."""
    mixup = Mixup(torch.tensor([2, 0, 1]), 0.25)
    rows, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]]), torch.tensor([1.0, 0.0, 0.0])
    assert mixup(rows).tolist() == [[3.25, 3.0], [0.75, 0.25], [1.0, 1.75]]
    assert mixup(labels).tolist() == [0.25, 0.75, 0.0]


def test_drawn_lambdas_and_partners():
    """Partners are a permutation, lambdas lie in [0, 1], and the same seed draws the same."""
    torch.manual_seed(0)
    drawn = [Mixup.draw(10, 0.4) for _ in range(50)]
    assert all(sorted(one.partner.tolist()) == list(range(10)) for one in drawn)
    lambdas = [mixup.lam for mixup in drawn]
    assert min(lambdas) >= 0
    assert max(lambdas) <= 1
    assert len(set(lambdas)) == 50
    torch.manual_seed(0)
    assert Mixup.draw(10, 0.4).lam == lambdas[0]


def test_a_detector_classifies_mixed_features(build, pack, traces):
    """The logits of a mixture are those of the mixed features; labels of tokens have none."""
    for name in (name for name, kind in DETECTORS.items() if not kind.targets):
        detector = build(name).eval()
        batch, mixup = pack(traces), Mixup(torch.tensor([4, 3, 2, 1, 0]), 0.3)
        logits = detector(batch, mixup).logits
        assert torch.equal(logits, detector.classify(mixup(detector.encode(batch))).logits)
        assert not torch.allclose(logits, detector(batch).logits)
