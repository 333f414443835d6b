"""Graphs built from packed attention are those a plain loop builds, and those PyG collates."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.graphs import build_graphs, pair_tokens
from models.subgraph import strongest_edges

LAYERS, WIDTH = 2, 3


def random_packed(lengths, seed=0, levels=None):
    """Hidden states, attention and offsets of traces; `levels` rounds the attention so that ties
    occur."""
    rng = np.random.default_rng(seed)
    n_pairs = sum(n * (n + 1) // 2 for n in lengths)
    attn = rng.random((n_pairs, LAYERS))
    if levels:
        attn = np.floor(attn * levels) / levels
    hidden = torch.from_numpy(rng.normal(size=(sum(lengths), LAYERS, WIDTH))).float()
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    return hidden, torch.from_numpy(attn).half(), offsets


def naive_edges(attn, lengths, threshold, top_k):
    """Give {(trace, layer, source, target): weight} by the definition: j -> i for j <= i, k
    strongest, >= threshold."""
    edges, pair = {}, 0
    for trace, n_tokens in enumerate(lengths):
        for i in range(n_tokens):
            row = attn[pair : pair + i + 1].float()  # (i + 1, LAYERS)
            pair += i + 1
            for layer in range(LAYERS):
                strongest = sorted(range(i + 1), key=lambda j: (-row[j, layer].item(), j))[:top_k]
                edges.update(
                    {
                        (trace, layer, j, i): row[j, layer].item()
                        for j in strongest
                        if row[j, layer].item() >= threshold
                    }
                )
    return edges


def named_edges(graphs, offsets):
    """Edges of a graph batch by (trace, layer, source, target), positions within the trace."""
    trace_of = torch.repeat_interleave(offsets.diff())
    named = {}
    for (source, target), weight in zip(
        graphs.edge_index.T.tolist(), graphs.edge_attr[:, 0].tolist(), strict=True
    ):
        trace, layer = trace_of[source // LAYERS].item(), source % LAYERS
        assert graphs.batch[source] == graphs.batch[target] == trace * LAYERS + layer
        start = offsets[trace].item()
        named[trace, layer, source // LAYERS - start, target // LAYERS - start] = weight
    return named


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    threshold=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    top_k=st.sampled_from([None, 1, 2, 5, 99]),
    levels=st.sampled_from([None, 3]),
)
def test_edges_equal_those_of_a_plain_loop(lengths, threshold, top_k, levels):
    """Any lengths, threshold and top-k, ties included, give the edges and weights of the
    definition."""
    hidden, attn, offsets = random_packed(lengths, levels=levels)
    graphs = build_graphs(hidden, attn, offsets, threshold, top_k)
    assert named_edges(graphs, offsets) == naive_edges(attn, lengths, threshold, top_k)
    assert graphs.edge_index.shape[1] == len(naive_edges(attn, lengths, threshold, top_k))


def test_node_features_are_a_view_of_float32_states():
    """Stored order needs no copy: x shares the memory of the packed hidden states."""
    hidden, attn, offsets = random_packed([3, 2])
    assert build_graphs(hidden, attn, offsets).x.data_ptr() == hidden.data_ptr()


def test_weights_are_clamped_to_one():
    """A half-precision mean slightly above 1 or below 0 is clamped."""
    hidden, attn, offsets = random_packed([2])
    attn[0], attn[1] = 1.001, -0.001
    weights = build_graphs(hidden, attn, offsets).edge_attr
    assert weights.min() == 0
    assert weights.max() == 1


def test_threshold_is_compared_in_single_precision():
    """0.1 in half precision is below 0.1, so an edge that stores it goes."""
    hidden, attn, offsets = random_packed([1])
    attn[:] = 0.1
    assert build_graphs(hidden, attn, offsets, threshold=0.1).edge_index.shape[1] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threshold, top_k", [(0.0, None), (0.5, None), (0.0, 1), (0.5, 2)])
def test_attention_that_is_not_finite_stays_in_the_graph(value, threshold, top_k):
    """It is neither an edge of full weight nor no edge: the loss is not finite, which is said."""
    attn = torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).half()
    attn[4, 1] = value
    offsets = torch.tensor([0, 3])
    graph = build_graphs(torch.zeros(3, 2, 4), attn, offsets, threshold, top_k)
    assert graph.edge_attr.isnan().sum() == 1
    if top_k is not None:
        nodes = torch.arange(6)
        assert strongest_edges(attn, offsets, nodes, top_k, threshold)[2].isnan().sum() == 1


def test_tokens_of_pairs_follow_the_stored_order():
    """Pairs are the lower triangle row by row, trace after trace, in packed token numbers."""
    source, target = pair_tokens(torch.tensor([0, 2, 2, 3]), 3)
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 1),
        (2, 2),
    ]


@pytest.mark.parametrize("shape", [(9, LAYERS), (10, LAYERS + 1)])
def test_attention_that_does_not_fit_the_states_is_refused(shape):
    """A wrong number of pairs or layers is an error that names both shapes."""
    hidden, _, offsets = random_packed([4])
    with pytest.raises(ValueError, match=r"attn_mean: expected 10 pairs of 2 layers.*found shape"):
        build_graphs(hidden, torch.zeros(shape), offsets)
