"""Mixup: rows and labels mixed alike."""

import torch

from models import DETECTORS
from models.losses import Mixup


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
