"""Packed attention of traces, and the edges that a plain loop finds in it."""

import numpy as np
import torch

LAYERS, WIDTH = 2, 3


def random_packed(lengths, levels=None):
    """Hidden states, attention and offsets of traces; `levels` rounds the attention so that ties
    occur."""
    rng = np.random.default_rng(0)
    attn = rng.random((sum(n * (n + 1) // 2 for n in lengths), LAYERS))
    if levels:
        attn = np.floor(attn * levels) / levels
    hidden = torch.from_numpy(rng.normal(size=(sum(lengths), LAYERS, WIDTH))).float()
    return hidden, torch.from_numpy(attn).half(), torch.tensor([0, *np.cumsum(lengths)])


def row_of(attn, lengths, token, layer):
    """First token of a token's trace, and the attention of the token to it and all up to itself."""
    first = pair = 0
    for n_tokens in lengths:
        if token < first + n_tokens:
            break
        first += n_tokens
        pair += n_tokens * (n_tokens + 1) // 2
    position = token - first
    pair += position * (position + 1) // 2
    return first, attn[pair : pair + position + 1, layer].float().tolist()


def naive_edges(attn, lengths, node, top_k, threshold):
    """[(source, weight)] of a node, the strongest first; ties: the earlier token."""
    token, layer = divmod(node, LAYERS)
    first, row = row_of(attn, lengths, token, layer)
    strongest = sorted(range(len(row)), key=lambda j: (-row[j], j))[:top_k]
    return [((first + j) * LAYERS + layer, row[j]) for j in strongest if row[j] >= threshold]


def edges_of(graph):
    """[(source, target, weight)]."""
    ends = graph.edge_index.tolist()
    return list(zip(*ends, graph.edge_attr[:, 0].tolist(), strict=True))
