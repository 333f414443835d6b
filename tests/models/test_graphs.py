"""Graphs built from packed attention are those that a plain loop builds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_graphs import LAYERS, edges_of, naive_edges, random_packed

from models.graphs import build_graphs
from models.subgraph import k_hop_subgraph, strongest_edges


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    threshold=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    top_k=st.sampled_from([None, 1, 2, 5, 99]),
    levels=st.sampled_from([None, 3]),
)
def test_edges_equal_those_of_a_plain_loop(lengths, threshold, top_k, levels):
    """Any lengths, threshold and top-k, ties included, give the edges and weights of the
    definition, each trace and layer a graph; all edges are in the order of the store."""
    hidden, attn, offsets = random_packed(lengths, levels)
    graphs = build_graphs(hidden, attn, offsets, threshold, top_k)
    expected = [
        (source, node, weight)
        for node in range(sum(lengths) * LAYERS)
        for source, weight in naive_edges(attn, lengths, node, top_k, threshold)
    ]
    found = edges_of(graphs)
    assert sorted(found) == sorted(expected)
    if threshold == 0 and top_k is None:
        order = [
            (target // LAYERS, source // LAYERS, source % LAYERS) for source, target, _ in found
        ]
        assert order == sorted(order)
    trace = np.repeat(range(len(lengths)), np.multiply(lengths, LAYERS))
    layer = np.tile(range(LAYERS), sum(lengths))
    assert graphs.batch.tolist() == (trace * LAYERS + layer).tolist()


def test_node_features_are_a_view_of_float32_states():
    """Stored order needs no copy: x shares the memory of the packed hidden states."""
    hidden, attn, offsets = random_packed([3, 2])
    assert build_graphs(hidden, attn, offsets).x.data_ptr() == hidden.data_ptr()


def test_weights_are_those_of_single_precision():
    """A half-precision mean slightly above 1 or below 0 is clamped; 0.1 is stored as less."""
    hidden, attn, offsets = random_packed([2])
    attn[:] = torch.tensor([[1.001], [-0.001], [0.1]])
    weights = build_graphs(hidden, attn, offsets).edge_attr
    assert (weights.min(), weights.max()) == (0, 1)
    assert build_graphs(hidden, attn, offsets, threshold=0.1).edge_index.shape[1] == LAYERS


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


@pytest.mark.parametrize("shape", [(9, LAYERS), (10, LAYERS + 1)])
@pytest.mark.parametrize(
    "build", [build_graphs, lambda *packed: k_hop_subgraph(*packed, torch.tensor([3]), 2, 4)]
)
def test_attention_that_does_not_fit_the_states_is_refused(build, shape):
    """A wrong number of pairs or layers is an error that names both shapes."""
    hidden, _, offsets = random_packed([4])
    with pytest.raises(ValueError, match=r"attn_mean: expected 10 pairs of 2 layers.*found shape"):
        build(hidden, torch.zeros(shape), offsets)
