"""SAPLMA: which layer it reads."""

import pytest
import torch

from models import DETECTORS


@pytest.mark.parametrize(
    ("n_layers", "layer"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (10, 5), (32, 19), (80, 47)]
)
def test_the_layer_at_sixty_percent_of_the_depth(n_layers, layer):
    """By default the 20th of 32, and the like at other depths; counted from 0."""
    settings = {"saplma_layer": None, "input_scale": None}
    detector = DETECTORS["saplma"].build({"hs_last": (n_layers, 8)}, settings)
    assert detector.layer_read == layer


@pytest.mark.parametrize("layer", [0, 2])
def test_it_reads_the_layer_that_was_asked_for(layer, build, pack, traces):
    """Other layers change nothing."""
    detector, batch = build("saplma", saplma_layer=layer).eval(), pack(traces)
    before = detector(batch).logits
    batch["hs_last"][:, [i for i in range(3) if i != layer]] = 9.0
    assert torch.equal(detector(batch).logits, before)
    batch["hs_last"][:, layer] += 1.0
    assert not torch.equal(detector(batch).logits, before)
