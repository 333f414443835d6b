"""DRIFT: which states it reads, and the probe against loops over tokens and layers."""

import numpy as np
import pytest
import torch

from models.drift import question_layers


def plain_features(traces, layers):
    """The numbers less their mean over traces, by their spread, by loops."""
    rows = []
    for trace in traces:
        states = trace["hidden_states"].double().numpy()
        prompt_len = int(trace["prompt_len"])
        last = states[-1] if prompt_len < 0 else states[prompt_len - 1]
        rows.append(np.concatenate([last[layer] for layer in layers]))
    rows = np.stack(rows)
    return (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-6)


def leaky(x):
    return np.where(x > 0, x, 0.01 * x)


def test_the_formula(build, pack, traces, set_answer):
    """States of the prompt at the layers, concatenated and standardised, through the MLP."""
    for trace, prompt_len in zip(traces, (3, 1, 9, -1, 4), strict=True):
        set_answer(trace, prompt_len, 0)
    detector = build("drift")
    features = plain_features(traces, question_layers(3))
    detector.prepare([pack(traces)])
    found = detector.eval()(pack(traces)).logits
    weights = [part.detach().double().numpy() for part in detector.mlp.parameters()]
    hidden = leaky(features @ weights[0].T + weights[1])
    hidden = leaky(hidden @ weights[2].T + weights[3])
    expected = (hidden @ weights[4].T + weights[5])[:, 0]
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)


def test_the_answer_is_not_read(build, pack, traces, set_answer):
    """Other states from the answer's first token on change nothing."""
    set_answer(traces[2], 4, 5)
    detector = build("drift").eval()
    before = detector(pack(traces)).logits
    traces[2]["hidden_states"] = traces[2]["hidden_states"].clone()
    traces[2]["hidden_states"][4:] = 9.0
    assert torch.equal(detector(pack(traces)).logits, before)
    traces[2]["hidden_states"][3] = 9.0
    assert not torch.equal(detector(pack(traces)).logits, before)


def test_no_prompt(build, pack, traces, set_answer):
    """An answer to nothing gets the numbers of the mean trace, and is finite."""
    set_answer(traces[0], 0, 5)
    features = build("drift").encode(pack(traces))
    assert not features[0].any()
    assert features[1:].any()


@pytest.mark.parametrize(
    ("n_layers", "layers"),
    [
        (1, [0]),
        (2, [0, 1]),
        (4, [0, 1, 2]),
        (28, [0, 4, 8, 12, 16, 20]),
        (32, [0, 5, 9, 14, 18, 23]),
    ],
)
def test_six_layers_up_to_three_quarters(n_layers, layers):
    """Every fourth of 28 layers, as published; of few layers each one once."""
    assert question_layers(n_layers) == layers
