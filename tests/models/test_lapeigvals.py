"""LapEigvals and SinkProbe: the largest eigenvalues of Laplacians, and the largest mean attention
received, against whole maps."""

import numpy as np
import pytest
import torch

from models.lapeigvals import largest_eigenvalues
from models.sink_probe import largest_sinks


def received(head):
    """Mean attention that each token of a map (T, T) gets of the tokens that can attend to it."""
    n_tokens = len(head)
    return [sum(head[i, t] for i in range(t, n_tokens)) / (n_tokens - t) for t in range(n_tokens)]


def eigenvalues(head):
    """Of L = D - A; d_tt is the mean attention that token t receives."""
    values = np.linalg.eigvals(np.diag(received(head)) - head)
    assert not np.iscomplex(values).any()
    return values.real


@pytest.mark.parametrize("top_k", [1, 3, 10])
@pytest.mark.parametrize(
    "largest, numbers_of", [(largest_eigenvalues, eigenvalues), (largest_sinks, received)]
)
def test_the_largest_numbers_of_explicit_maps(largest, numbers_of, top_k, pack, traces):
    """Falling, then zeros, layer by layer and head by head."""
    found = largest(pack(traces), top_k)
    assert found.shape == (5, 1, 3 * 2 * top_k)
    for trace, features in zip(traces, found, strict=True):
        heads = trace["maps"].reshape(6, *trace["maps"].shape[2:])
        for head, numbers in zip(heads, features.view(6, top_k), strict=True):
            expected = sorted(numbers_of(head), reverse=True)[:top_k]
            np.testing.assert_allclose(numbers[: len(expected)], expected, atol=1e-6)
            assert (numbers[len(expected) :] == 0).all()


def test_negative_eigenvalues_stand_before_the_padding(pack, traces):
    """Attention to oneself alone leaves nothing above zero: what is there comes first, the zeros of
    padding after it."""
    trace = traces[0] | {"attn_diag": torch.ones(5, 3, 2), "attn_colsum": torch.ones(5, 3, 2)}
    found = largest_eigenvalues(pack([trace]), top_k=7)[0, 0, :7]
    np.testing.assert_allclose(
        found, [0, 1 / 2 - 1, 1 / 3 - 1, 1 / 4 - 1, 1 / 5 - 1, 0, 0], atol=1e-6
    )


def test_infinity_is_not_taken_for_padding(pack, traces):
    """A broken number stays one, for the caller to find."""
    traces[0]["attn_colsum"][2, 0, 0] = -torch.inf
    assert largest_eigenvalues(pack(traces[:1]), top_k=5).isinf().any()
