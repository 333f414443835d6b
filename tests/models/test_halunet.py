"""HaluNet: its branches against loops over traces and tokens."""

import numpy as np
import pytest
from plain import array, linear, mlp, softmax, span_of, standardise


def plain_convolution(rows, layer):
    """Each token from its neighbours and itself, then ReLU."""
    before, here, after = np.split(array(layer.project.weight), 3)
    out = []
    for i, row in enumerate(rows):
        total = here @ row + array(layer.bias)
        if i > 0:
            total = total + before @ rows[i - 1]
        if i + 1 < len(rows):
            total = total + after @ rows[i + 1]
        out.append(np.maximum(total, 0))
    return out


def plain_logits(detector, traces, layer):
    """The paper's equations, a trace at a time."""
    branches = detector.branches
    states = [t["hidden_states"][span_of(t), layer].double().numpy() for t in traces]
    every = np.concatenate(states)
    means = np.array(
        [
            [np.nanmean(t[name][span_of(t)].double().numpy()) for name in ("logprob", "entropy")]
            for t in traces
        ]
    )
    scalars = standardise(means, means.mean(axis=0), means.var(axis=0))
    logits = []
    for own, (logprob, entropy) in zip(states, scalars, strict=True):
        rows = standardise(own, every.mean(axis=0), every.var(axis=0))
        tokens = plain_convolution(plain_convolution(rows, branches.first), branches.second)
        of_scalars = [mlp(branches.logprob, [logprob]), mlp(branches.entropy, [entropy])]
        h = np.stack([*of_scalars, np.mean(tokens, axis=0)])
        scores = [array(branches.score.weight)[0] @ np.tanh(linear(branches.mix, x)) for x in h]
        shares = softmax(np.array(scores))
        logits.append(linear(detector.classifier, shares @ h)[0])
    return logits


@pytest.mark.parametrize("layer", [None, 1])
def test_the_formula(layer, build, pack, traces, set_answer):
    """Three branches and their attention, over answers of several places and lengths."""
    traces = [traces[0], traces[2], traces[3], traces[4]]
    for trace, lengths in zip(traces, [(2, 2), (-1, 0), (1, 1), (4, 3)], strict=True):
        set_answer(trace, *lengths)
    detector = build("halunet", halunet_layer=layer)
    detector.prepare([pack(traces)])
    found = detector.eval()(pack(traces)).logits
    expected = plain_logits(detector, traces, 2 if layer is None else layer)
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)
