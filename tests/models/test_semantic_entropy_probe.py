"""Semantic entropy probes: the split, what is learned from, and what is not read of new traces."""

import numpy as np
import pytest
import torch

from models import PROBES
from models.semantic_entropy_probe import best_split


def squared_error(entropy, threshold):
    sides = entropy[entropy <= threshold], entropy[entropy > threshold]
    return sum(((side - side.mean()) ** 2).sum() for side in sides if len(side))


def test_the_split_has_the_least_squared_error():
    """Of all thresholds, by trying them; equal values stay together."""
    entropy = np.random.default_rng(0).integers(0, 6, size=30) / 3
    found = squared_error(entropy, best_split(entropy))
    assert found == pytest.approx(min(squared_error(entropy, one) for one in entropy))


@pytest.mark.parametrize("entropy", [[], [0.5, 0.5]])
def test_no_split(entropy):
    with pytest.raises(ValueError, match="semantic_entropy: expected several values"):
        best_split(np.array(entropy))


@pytest.fixture
def rows():
    """Features (400, 2, 5) and labels: the second layer's first number says whether the entropy is
    high, which the label mostly follows; every fifth row has no entropy."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(400, 2, 4))
    entropy = np.where(states[:, 1, 0] > 0, 1.4, 0.2) + 0.1 * rng.random(400)
    labels = ((entropy > 0.8) ^ (rng.random(400) < 0.2)).astype(np.int64)
    entropy[::5] = np.nan
    behind = np.repeat(entropy[:, None, None], 2, axis=1)
    return torch.from_numpy(np.concatenate([states, behind], axis=2)), labels


@pytest.mark.parametrize("name", ["semantic_entropy_probe", "semantic_entropy_probe_prompt"])
def test_it_learns_the_entropy_not_the_labels(name, rows):
    """Labels of training turned over only turn the scores over; new traces need no
    entropy, and a saved probe scores as before."""
    features, labels = rows
    probe = PROBES[name]
    val, val_labels = features[300:], labels[300:]
    fitted = probe.fit(features[:300], labels[:300], val, val_labels)
    assert fitted.alternative == 1
    assert fitted.val_auroc[1] > 0.75
    second, val_second = features[:300, 1:], val[:, 1:]
    turned = probe.fit(second, 1 - labels[:300], val_second, val_labels)
    ranks = fitted.logits(val).argsort().tolist()
    turned_ranks = turned.logits(val_second).argsort().tolist()
    assert ranks == turned_ranks[::-1]
    without = val.clone()
    without[:, :, -1] = torch.nan
    loaded = probe.load(fitted.to_dict())
    np.testing.assert_array_equal(loaded.logits(without), fitted.logits(val))


def test_the_entropy_is_behind_the_states(pack, traces):
    """NaN where a batch has none."""
    batch = pack(traces)
    features = PROBES["semantic_entropy_probe"].features(batch)
    assert torch.equal(features[:, :, :-1], batch.fixed("hs_last").float())
    assert torch.equal(features[:, 2, -1], batch.fixed("semantic_entropy"))
    del batch.columns["semantic_entropy"]
    assert PROBES["semantic_entropy_probe"].features(batch)[:, :, -1].isnan().all()
