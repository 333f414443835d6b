"""The part of the attention graphs that the readout of a graph encoder depends on.

After two convolutions the vector of a token depends on the tokens that it attends to, and on those
that they attend to. With the k strongest sources of each these are at most 1 + k + k * k nodes a
layer, however long the trace is: nothing else of a long trace is sorted, copied or convolved.

Nodes are (token, layer) as in `models.graphs`, those first that most depend on: of n convolutions
the one number i, from 0 on, is of use for the first `n_nodes[n - 1 - i]` nodes, and reads the first
`n_edges[n - 1 - i]` edges.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from models.graphs import as_weights, build_graphs, check_pairs
from models.tokens import positions, trace_of_token

__all__ = ["Edges", "Subgraph", "complete_graph", "k_hop_subgraph", "shares", "strongest_edges"]

VALUES_AT_ONCE = 2**22  # attention that is sorted at once; its keys take 32 MB
RANK_BITS = 32  # of a key, below those of the attention


class Edges(NamedTuple):
    """Edges between nodes: source and target (E,) int64, weight (E,) float32 in [0, 1]."""

    source: Tensor
    target: Tensor
    weight: Tensor


class Subgraph(NamedTuple):
    """Nodes and edges that are needed for some nodes."""

    x: Tensor  # (N, d) float32: states of the nodes
    edge_index: Tensor  # (2, E) int64: source and target of each edge
    edge_attr: Tensor  # (E, 1) float32: attention, in [0, 1]
    # (E,) float32: each edge's part of the attention of its target over all edges that are kept
    share: Tensor
    readout: Tensor  # (R, L) int64: the nodes that are read, of R tokens
    # nodes within each number of steps, from 0 on; edges to them, from 0 on
    n_nodes: list[int]
    n_edges: list[int]
    offsets: Tensor | None = None  # of complete graphs, where tokens of each trace begin


def k_hop_subgraph(
    hidden: Tensor,
    attn: Tensor,
    offsets: Tensor,
    tokens: Tensor,
    n_hops: int,
    top_k: int,
    threshold: float = 0.0,
) -> Subgraph:
    """Take what `tokens` depend on within `n_hops` steps, over the strongest edges of each node.

    `hidden`, `attn` and `offsets` are as in `models.graphs.build_graphs`; `tokens` (R,) int64 are
    packed tokens, each once; `n_hops` is the number of convolutions, at least 1. Kept are the
    `top_k` strongest sources of each target, per layer (ties: the earlier token), of these only
    those whose attention is at least `threshold`. `hidden` is copied for the nodes in the subgraph
    only.
    """
    n_layers = hidden.shape[1]
    lengths = offsets.diff()
    check_pairs(attn, n_layers, int((lengths * (lengths + 1) // 2).sum()))
    layer = torch.arange(n_layers, device=hidden.device)
    fresh = (tokens[:, None] * n_layers + layer).flatten()  # (R * L,) nodes that are new
    place = torch.full((len(hidden) * n_layers,), -1, device=hidden.device)  # of each node
    found = [fresh]
    edges: list[Edges] = []
    n_nodes, n_edges = [len(fresh)], []
    for _ in range(n_hops):
        first = n_nodes[-1] - len(fresh)
        place[fresh] = torch.arange(first, n_nodes[-1], device=place.device)
        edges.append(strongest_edges(attn, offsets, fresh, top_k, threshold))
        n_edges.append(sum(len(one.source) for one in edges))
        source = edges[-1].source
        fresh = source[place[source] < 0].unique()
        found.append(fresh)
        n_nodes.append(n_nodes[-1] + len(fresh))
    place[fresh] = torch.arange(n_nodes[-2], n_nodes[-1], device=place.device)
    source, target, weight = (torch.cat(parts) for parts in zip(*edges, strict=True))
    edge_index = place[torch.stack([source, target])]  # (2, E)
    return Subgraph(
        x=hidden.flatten(0, 1)[torch.cat(found)].float(),
        edge_index=edge_index,
        edge_attr=weight[:, None],
        share=shares(edge_index[1], weight, n_nodes[-1]),
        readout=torch.arange(n_nodes[0], device=hidden.device).unflatten(0, (-1, n_layers)),
        n_nodes=n_nodes,
        n_edges=n_edges,
    )


def complete_graph(
    hidden: Tensor,
    attn: Tensor,
    offsets: Tensor,
    tokens: Tensor,
    n_hops: int,
    threshold: float = 0.0,
) -> Subgraph:
    """All nodes and all edges of at least `threshold`; else as `k_hop_subgraph`."""
    graphs = build_graphs(hidden, attn, offsets, threshold)
    n_layers = hidden.shape[1]
    layer = torch.arange(n_layers, device=hidden.device)
    n_nodes = len(graphs.x)
    return Subgraph(
        x=graphs.x,
        edge_index=graphs.edge_index,
        edge_attr=graphs.edge_attr,
        share=shares(graphs.edge_index[1], graphs.edge_attr[:, 0], n_nodes),
        readout=tokens[:, None] * n_layers + layer,
        n_nodes=[n_nodes] * (n_hops + 1),
        n_edges=[len(graphs.edge_attr)] * n_hops,
        offsets=graphs.get("offsets"),  # there only if no edge could be dropped
    )


def shares(target: Tensor, weight: Tensor, n_nodes: int) -> Tensor:
    """Part of each edge in the weights of its target's edges, (E,); 0 where all of them are 0."""
    total = weight.new_zeros(n_nodes).index_add(0, target, weight)  # (N,)
    return weight / total.clamp(min=torch.finfo(weight.dtype).tiny)[target]


def strongest_edges(
    attn: Tensor, offsets: Tensor, nodes: Tensor, top_k: int, threshold: float = 0.0
) -> Edges:
    """The strongest edges to some nodes, the strongest first; ties: the earlier source.

    `attn` (n_pairs, L), any float, has packed lower triangles, `offsets` (B + 1,) int64 where the
    tokens of each trace begin, and `nodes` (R,) int64 are token * L + layer. Kept are `top_k`
    sources of each, of at least the attention `threshold`.
    """
    n_layers = attn.shape[1]
    layer = nodes % n_layers
    token = nodes // n_layers
    trace = trace_of_token(offsets)[token]
    width = positions(offsets)[token] + 1  # (R,) tokens that each attends to
    lengths = offsets.diff()
    n_pairs = lengths * (lengths + 1) // 2
    first_pair = (n_pairs.cumsum(0) - n_pairs)[trace] + width * (width - 1) // 2  # (R,)
    first_token = offsets[trace]
    edges = [Edges(nodes[:0], nodes[:0], attn.new_zeros(0, dtype=torch.float32))]
    for rows, widest in blocks_of_rows(width):
        j = torch.arange(widest, device=attn.device)
        is_source = j < width[rows, None]  # (r, w)
        pair = torch.where(is_source, first_pair[rows, None] + j, 0)
        values = as_weights(attn[pair, layer[rows, None]])  # (r, w)
        key = torch.where(is_source, ranking_key(values.nan_to_num(2.0), j), -1)  # NaN stays
        chosen = key.topk(min(top_k, widest), dim=1).indices  # (r, k)
        weight = values.gather(1, chosen)
        kept = is_source.gather(1, chosen) & ~(weight < threshold)
        source = (first_token[rows, None] + chosen) * n_layers + layer[rows, None]
        target = nodes[rows, None].expand_as(source)
        edges.append(Edges(source[kept], target[kept], weight[kept]))
    return Edges(*(torch.cat(parts) for parts in zip(*edges, strict=True)))


def ranking_key(values: Tensor, j: Tensor) -> Tensor:
    """Integers that order as `values` (r, w) in [0, 1], of equal ones the smaller j (w,) higher.

    The bits of floats that are not negative order as the floats do. Unlike a stable sort of the
    whole row, the largest k of unique keys are the same however the row is padded.
    """
    bits = (values + 0.0).view(torch.int32).long()  # -0.0 would be the least integer
    return (bits << RANK_BITS) + (2 ** (RANK_BITS - 1) - j)


def blocks_of_rows(width: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows of like widths (R,), and the largest of these; half of a block is padding at most."""
    order = width.argsort(stable=True)
    rising = width[order].cpu()
    begin = 0
    while begin < len(order):
        widest = min(2 * int(rising[begin]), int(rising[-1]))
        end = int(torch.searchsorted(rising, widest, right=True))
        end = min(end, begin + max(1, VALUES_AT_ONCE // widest))
        yield order[begin:end], int(rising[end - 1])
        begin = end
