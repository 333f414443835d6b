"""LapEigvals: from two columns, the eigenvalues of Laplacians of whole maps."""

import numpy as np
import pytest
import torch

from models import PROBES
from models.lapeigvals import eigenvalues, largest_eigenvalues


def laplacian(head):
    """L = D - A of a map (T, T); d_tt is the mean attention that token t can receive."""
    n_tokens = len(head)
    degree = [sum(head[i, t] for i in range(t, n_tokens)) / (n_tokens - t) for t in range(n_tokens)]
    return np.diag(degree) - head


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_eigenvalues_of_the_explicit_laplacian(top_k, pack, traces):
    """The features are the largest of numpy.linalg.eigvals, falling, then zeros, layer by layer and
    head by head."""
    found = largest_eigenvalues(pack(traces), top_k)
    assert found.shape == (5, 1, 3 * 2 * top_k)
    for trace, features in zip(traces, found, strict=True):
        for head, numbers in zip(
            trace["maps"].reshape(6, *trace["maps"].shape[2:]), features.view(6, top_k), strict=True
        ):
            values = np.linalg.eigvals(laplacian(head))
            assert not np.iscomplex(values).any()
            expected = np.sort(values.real)[::-1][:top_k]
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


def test_the_last_token_has_the_eigenvalue_zero(pack, traces):
    """Nobody but itself attends to it, so a trace of one token has nothing else."""
    batch = pack(traces)
    assert not eigenvalues(batch)[batch["attn_diag"].offsets[1:] - 1].any()
    assert not PROBES["lapeigvals"].features(pack(traces[1:2])).any()


def test_infinity_is_not_taken_for_padding(pack, traces):
    """A broken number stays one, for the caller to find."""
    traces[0]["attn_colsum"][2, 0, 0] = -torch.inf
    assert largest_eigenvalues(pack(traces[:1]), top_k=5).isinf().any()
