"""The edges and nodes that a readout depends on are those that a plain loop finds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_graphs import LAYERS, WIDTH, edges_of, naive_edges, random_packed

from models import subgraph
from models.subgraph import complete_graph, k_hop_subgraph, shares, strongest_edges

packed = {
    "lengths": st.lists(st.integers(0, 6), min_size=1, max_size=4),
    "top_k": st.sampled_from([1, 2, 5, 99]),
    "threshold": st.sampled_from([0.0, 0.4]),
    "levels": st.sampled_from([None, 3]),
}


@given(**packed, at_once=st.sampled_from([1, 7, 2**22]))
def test_strongest_edges_are_those_of_a_plain_loop(lengths, top_k, threshold, levels, at_once):
    """Of any nodes in any order, ties included, in blocks of any size."""
    _, attn, offsets = random_packed(lengths, levels)
    nodes = torch.from_numpy(np.random.default_rng(1).permutation(sum(lengths) * LAYERS))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subgraph, "VALUES_AT_ONCE", at_once)
        edges = strongest_edges(attn, offsets, nodes, top_k, threshold)
    found = {int(node): [] for node in nodes}
    for source, target, weight in zip(*(part.tolist() for part in edges), strict=True):
        found[target].append((source, weight))
    expected = {node: naive_edges(attn, lengths, node, top_k, threshold) for node in found}
    assert found == expected


@given(**packed)
def test_the_subgraph_has_all_that_is_within_reach(lengths, top_k, threshold, levels):
    """Nodes by the number of steps, their states, and all edges to those that are convolved."""
    hidden, attn, offsets = random_packed(lengths, levels)
    tokens = (offsets[1:] - 1)[offsets.diff() > 0]
    graph = k_hop_subgraph(hidden, attn, offsets, tokens, 2, top_k, threshold)
    nodes = [int(token) * LAYERS + layer for token in tokens for layer in range(LAYERS)]
    reached, edges = [list(nodes)], []
    for _ in range(2):
        known = sorted({node for ring in reached for node in ring})
        ring = set()
        for node in reached[-1]:
            for source, weight in naive_edges(attn, lengths, node, top_k, threshold):
                edges.append((source, node, weight))
                ring |= {source} - set(known)
        reached.append(sorted(ring))
    every = [node for ring in reached for node in ring]
    assert graph.n_nodes == np.cumsum([len(ring) for ring in reached]).tolist()
    assert torch.equal(graph.x, hidden.reshape(-1, WIDTH)[every])
    named = [(every[source], every[target], w) for source, target, w in edges_of(graph)]
    assert sorted(named) == sorted(edges)
    assert all(target in reached[0] for _, target, _ in named[: graph.n_edges[0]])
    assert graph.n_edges[1] == len(edges)


def test_without_a_limit_it_is_the_complete_graph():
    """All edges of the last token, with shares that sum to 1."""
    hidden, attn, offsets = random_packed([5, 3])
    tokens = offsets[1:] - 1
    whole = complete_graph(hidden, attn, offsets, tokens, 2)
    part = k_hop_subgraph(hidden, attn, offsets, tokens, 2, top_k=99)
    assert part.n_nodes[-1] == whole.n_nodes[-1] == 8 * LAYERS
    assert torch.equal(part.x[part.readout], whole.x[whole.readout])
    assert part.n_edges[-1] == whole.n_edges[-1]
    total = torch.zeros(whole.n_nodes[0]).index_add(0, whole.edge_index[1], whole.share)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_a_target_whose_edges_weigh_nothing_gets_nothing():
    """Shares of 0, not 0 / 0."""
    assert shares(torch.tensor([0, 0, 1]), torch.tensor([0.0, 0.0, 0.5]), 2).tolist() == [0, 0, 1]


def test_long_traces_keep_only_what_is_reached():
    """At most 1 + k + k * k nodes of a layer, whatever the length."""
    rng = np.random.default_rng(0)
    n = 600
    hidden = torch.zeros(n, LAYERS, WIDTH)
    attn = torch.from_numpy(rng.random((n * (n + 1) // 2, LAYERS))).half()
    graph = k_hop_subgraph(hidden, attn, torch.tensor([0, n]), torch.tensor([n - 1]), 2, 4)
    assert graph.n_nodes[0] == LAYERS
    assert len(graph.x) <= LAYERS * (1 + 4 + 16)
    assert graph.edge_index.shape[1] <= LAYERS * (4 + 16)
