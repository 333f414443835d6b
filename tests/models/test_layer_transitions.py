"""Layer transitions: which layers it reads, and the probe against loops over them."""

import numpy as np
import pytest

from models.layer_transitions import upper_layers


@pytest.mark.parametrize(
    ("n_layers", "layers"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [1, 2, 3]), (8, [*range(3, 8)])],
)
def test_the_upper_half_and_the_layer_before_it(n_layers, layers):
    """So that each layer of the upper half has one that it adds to."""
    assert upper_layers(n_layers) == layers


def test_the_formula(build, pack, traces):
    """Differences of neighbouring layers, standardised over the traces, through the MLP."""
    batch = pack(traces)
    states = batch.fixed("hs_last").double().numpy()  # (5, 3, 8)
    added = np.stack([states[:, 1] - states[:, 0], states[:, 2] - states[:, 1]], axis=1)
    hidden = (added - added.mean(axis=0)) / np.sqrt(added.var(axis=0) + 1e-6)
    hidden = hidden.reshape(5, 16)
    detector = build("layer_transitions")
    detector.prepare([batch])
    found = detector.eval()(batch).logits.detach()
    weights = [part.detach().double().numpy() for part in detector.mlp.parameters()]
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = np.maximum(hidden @ weight.T + bias, 0)
    np.testing.assert_allclose(found, (hidden @ weights[-2].T + weights[-1])[:, 0], atol=1e-4)


def test_what_all_layers_share_is_not_seen(build, pack, traces):
    """The same state added to every layer changes no transition."""
    detector = build("layer_transitions", input_scale="raw").eval()
    batch = pack(traces)
    before = detector(batch).logits.detach()
    batch["hs_last"][:] = batch["hs_last"].float() + 4.0
    np.testing.assert_allclose(detector(batch).logits.detach(), before, atol=1e-2)
