"""SinkProbe: from one column, mean attention received in whole maps; an L1 penalty that drops most
of the features."""

import numpy as np
import pytest
import torch

from models.sink_probe import largest_sinks, sink_scores


def received(head):
    """Mean attention that each token of a map (T, T) gets of the tokens that can attend to it."""
    n_tokens = len(head)
    return [sum(head[i, t] for i in range(t, n_tokens)) / (n_tokens - t) for t in range(n_tokens)]


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_the_largest_sinks_of_explicit_maps(top_k, pack, traces):
    """Falling, then zeros, layer by layer and head by head."""
    found = largest_sinks(pack(traces), top_k)
    assert found.shape == (5, 1, 3 * 2 * top_k)
    for trace, features in zip(traces, found, strict=True):
        heads = trace["maps"].reshape(6, *trace["maps"].shape[2:])
        for head, numbers in zip(heads, features.view(6, top_k), strict=True):
            expected = sorted(received(head), reverse=True)[:top_k]
            np.testing.assert_allclose(numbers[: len(expected)], expected, atol=1e-6)
            assert (numbers[len(expected) :] == 0).all()


def test_a_token_that_all_attend_to_alone_scores_one(pack, traces):
    """The strongest sink there can be; the others get nothing."""
    colsum = torch.zeros(5, 3, 2)
    colsum[0] = 5  # every token pays all its attention to token 0
    scores = sink_scores(pack([traces[0] | {"attn_colsum": colsum}]))
    assert (scores[0] == 1).all()
    assert not scores[1:].any()
