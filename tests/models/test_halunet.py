"""HaluNet: its branches against loops over traces and tokens."""

import numpy as np
import pytest
import torch
from plain import array, span_of, standardise

from models.halunet import TokenConvolution
from models.tokens import positions


@pytest.mark.parametrize("lengths", [(4, 1, 2, 7), (1,), (0, 3, 0), (0, 0)])
def test_the_convolution_is_that_of_each_trace(lengths):
    """Nothing passes from a trace to the next; beyond the ends are zeros."""
    torch.manual_seed(0)
    ours = TokenConvolution(5, 6)
    theirs = torch.nn.Conv1d(5, 6, 3, padding=1)
    with torch.no_grad():
        ours.project.weight.copy_(theirs.weight.permute(2, 0, 1).reshape(18, 5))
        ours.bias.copy_(theirs.bias)
    values = [torch.randn(length, 5) for length in lengths]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    found = ours(torch.cat(values), positions(offsets))
    expected = [theirs(one.T[None])[0].T for one in values if len(one)]
    torch.testing.assert_close(found, torch.cat([torch.zeros(0, 6), *expected]))


def plain_mlp(x, branch):
    first, second = branch[0], branch[3]
    hidden = np.maximum(first.weight.detach().double().numpy()[:, 0] * x + array(first.bias), 0)
    return array(second.weight) @ hidden + array(second.bias)


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
        h = np.stack(
            [
                plain_mlp(logprob, branches.logprob),
                plain_mlp(entropy, branches.entropy),
                np.mean(tokens, axis=0),
            ]
        )
        mixed = np.tanh(h @ array(branches.mix.weight).T + array(branches.mix.bias))
        scores = mixed @ array(branches.score.weight)[0]
        shares = np.exp(scores) / np.exp(scores).sum()
        logits.append(array(detector.classifier.weight)[0] @ (shares @ h))
    return np.array(logits) + array(detector.classifier.bias)


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
