"""Tests of the reductions against loops over single entries."""

import numpy as np
import pytest
import torch

from store.sources import reductions


def causal_maps(n_tokens: int, n_layers: int = 2, n_heads: int = 3) -> torch.Tensor:
    """Make random attention maps, float32 (L, H, T, T): lower triangular, rows sum to one."""
    scores = torch.randn(
        n_layers, n_heads, n_tokens, n_tokens, generator=torch.Generator().manual_seed(n_tokens)
    )
    future = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1)


@pytest.mark.parametrize("n_tokens", [1, 2, 7])
def test_mean_triangle_lists_the_head_mean_row_by_row(n_tokens):
    """Entry i(i+1)/2 + j of a layer is the mean over heads of A[i, j]."""
    maps = causal_maps(n_tokens)
    found = reductions.mean_triangle(maps)
    assert found.shape == (n_tokens * (n_tokens + 1) // 2, 2)
    for i in range(n_tokens):
        for j in range(i + 1):
            for layer in range(2):
                expected = np.mean([maps[layer, head, i, j].item() for head in range(3)])
                assert found[i * (i + 1) // 2 + j, layer].item() == pytest.approx(
                    expected, abs=1e-6
                )


@pytest.mark.parametrize("n_tokens", [1, 2, 7])
def test_diagonal_is_the_attention_of_a_token_to_itself(n_tokens):
    """Entry (t, l, h) is A[t, t] of that layer and head."""
    maps = causal_maps(n_tokens)
    found = reductions.diagonal(maps)
    assert found.shape == (n_tokens, 2, 3)
    for t in range(n_tokens):
        assert torch.equal(found[t], maps[:, :, t, t])


@pytest.mark.parametrize("n_tokens", [1, 2, 7])
def test_column_sums_add_the_rows_from_the_token_on(n_tokens):
    """Entry (t, l, h) is the sum over i >= t of A[i, t]."""
    maps = causal_maps(n_tokens)
    found = reductions.column_sums(maps)
    for t in range(n_tokens):
        expected = sum(maps[:, :, i, t] for i in range(t, n_tokens))
        torch.testing.assert_close(found[t], expected)


@pytest.mark.parametrize("prompt_len", [0, 1, 4, 7])
def test_prompt_mass_adds_the_columns_of_the_prompt(prompt_len):
    """Entry (t, l, h) is the sum over j < prompt_len of A[t, j]: all of it for a token of the
    prompt."""
    maps = causal_maps(7)
    found = reductions.prompt_mass(maps, prompt_len)
    for t in range(7):
        expected = sum((maps[:, :, t, j] for j in range(prompt_len)), torch.zeros(2, 3))
        torch.testing.assert_close(found[t], expected)
    torch.testing.assert_close(found[:prompt_len], torch.ones(prompt_len, 2, 3))


def test_the_maps_are_left_alone():
    """No reduction writes into the maps or gives a view of them."""
    maps = causal_maps(5)
    before = maps.clone()
    for values in (
        reductions.mean_triangle(maps),
        reductions.diagonal(maps),
        reductions.column_sums(maps),
    ):
        values.zero_()
    reductions.prompt_mass(maps, 2).zero_()
    assert torch.equal(maps, before)
