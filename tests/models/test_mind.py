"""MIND against loops over layers, and what it does not read."""

import numpy as np
import torch


def test_the_formula(build, pack, traces):
    """Mean over layers of the last state, the highest layer of the mean state, and the MLP."""
    detector = build("mind").eval()
    found = detector(pack(traces)).logits.detach()
    rows = [
        np.concatenate(
            [sum(one["hs_last"].double().numpy()) / 3, one["hs_mean"][2].double().numpy()]
        )
        for one in traces
    ]
    hidden = np.stack(rows)  # (5, 16)
    weights = [part.detach().double().numpy() for part in detector.mlp.parameters()]
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = np.maximum(hidden @ weight.T + bias, 0)
    np.testing.assert_allclose(found, (hidden @ weights[-2].T + weights[-1])[:, 0], atol=1e-5)


def test_lower_mean_states_are_not_read(build, pack, traces):
    """Of the mean over the answer the highest layer counts alone."""
    detector, batch = build("mind").eval(), pack(traces)
    before = detector(batch).logits
    batch["hs_mean"][:, :2] = 9.0
    assert torch.equal(detector(batch).logits, before)
    batch["hs_mean"][:, 2] = 9.0
    assert not torch.equal(detector(batch).logits, before)
