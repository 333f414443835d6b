"""Packed head-mean attention -> one PyG graph batch that holds every layer of every trace.

Layout. A trace of T tokens and L layers is L graphs over the same tokens. Nodes stay in the stored
order (token, layer), so that the node features are a view of the packed hidden states: node =
packed token * L + layer, and graph = trace * L + layer.

Direction. `attn_mean` holds the pairs (i, j <= i) of the lower triangle, row by row: token i
attends to token j. Information flows from the attended token to the attending one, so the edge is j
-> i (source j, target i), self-loops included.

Everything is tensor arithmetic on the device of the inputs: no Python loop over traces, layers or
graphs.
"""

import torch
from torch import Tensor
from torch_geometric.data import Data

__all__ = ["build_graphs", "pair_tokens", "top_k_mask"]


def build_graphs(
    hidden: Tensor,
    attn: Tensor,
    offsets: Tensor,
    threshold: float = 0.0,
    top_k: int | None = None,
) -> Data:
    """Build the graphs of a packed batch.

    `hidden` (n_tokens, L, d) and `attn` (n_pairs, L), T(T+1)/2 rows for a trace of T tokens, are of
    any float; trace b owns the tokens `offsets[b]:offsets[b + 1]`, of (B + 1,) int64. An edge is
    kept iff its attention is at least `threshold`, and with `top_k` if it is of the k strongest
    sources of its target, per layer (ties: the earlier token).

    Returns x (n_tokens * L, d) float32, a view of `hidden` where that is float32; edge_index (2, E)
    int64; edge_attr (E, 1) float32 in [0, 1]; batch (n_tokens * L,) int64, the graph of each node;
    n_graphs = B * L; offsets, or None if edges could be dropped.
    """
    n_layers = hidden.shape[1]
    source, target = pair_tokens(offsets, len(hidden))
    check_pairs(attn, n_layers, len(source))
    attn = as_weights(attn)
    layer = torch.arange(n_layers, device=attn.device)
    edges = torch.stack([source, target])[:, :, None] * n_layers + layer  # (2, n_pairs, L)
    keep = keep_mask(attn, source, target, threshold, top_k)
    if keep is None:
        edge_index = edges.reshape(2, -1)  # (2, E)
        edge_attr = attn.reshape(-1, 1)  # (E, 1)
    else:
        edge_index = edges[:, keep]
        edge_attr = attn[keep][:, None]
    trace = torch.repeat_interleave(offsets.diff(), output_size=len(hidden))  # (n_tokens,)
    return Data(
        x=hidden.reshape(-1, hidden.shape[2]).float(),  # (n_tokens * L, d)
        edge_index=edge_index,
        edge_attr=edge_attr,
        batch=(trace[:, None] * n_layers + layer).reshape(-1),  # (n_tokens * L,)
        n_graphs=(len(offsets) - 1) * n_layers,
        offsets=offsets if keep is None else None,
    )


def as_weights(attn: Tensor) -> Tensor:
    """A copy in float32, in [0, 1]; NaN where attention is not finite, which the loss will show.

    A threshold rounded to half precision would move, and half precision can leave a mean of ones a
    little above 1.
    """
    weights = attn.to(torch.float32, copy=True)
    weights.addcmul_(weights, weights.new_zeros(()))  # infinity * 0 is NaN
    return weights.clamp_(0.0, 1.0)


def pair_tokens(offsets: Tensor, n_tokens: int) -> tuple[Tensor, Tensor]:
    """(source, target) packed tokens of the stored pairs, in their order; each (n_pairs,) int64."""
    lengths = offsets.diff()  # (B,)
    token = torch.arange(n_tokens, device=offsets.device)
    # (n_tokens,) first token of the same trace
    first = torch.repeat_interleave(offsets[:-1], lengths, output_size=n_tokens)
    n_sources = token - first + 1  # (n_tokens,) token i of a trace attends to i + 1 tokens
    target = torch.repeat_interleave(token, n_sources)  # (n_pairs,)
    row_start = n_sources.cumsum(0) - n_sources  # (n_tokens,) pair at which a target's row begins
    source = torch.arange(len(target), device=offsets.device) + (first - row_start)[target]
    return source, target


def keep_mask(
    attn: Tensor, source: Tensor, target: Tensor, threshold: float, top_k: int | None
) -> Tensor | None:
    """(n_pairs, L) bool of the edges to keep, or None for all of them."""
    if threshold <= 0.0 and top_k is None:
        return None  # attention is never negative
    keep = ~(attn < threshold)  # also NaN
    return keep if top_k is None else keep & top_k_mask(attn, target, top_k)


def top_k_mask(attn: Tensor, target: Tensor, top_k: int) -> Tensor:
    """(n_pairs, L) bool: the k largest of each target's pairs, per layer; ties: the earlier pair.

    Two stable sorts, by value and then by target, leave each target's pairs in falling order within
    the same row, so the rank of a pair is its distance from the start of that row.
    """
    by_value = attn.argsort(dim=0, descending=True, stable=True)  # (n_pairs, L)
    by_target = by_value.gather(0, target[by_value].argsort(dim=0, stable=True))  # (n_pairs, L)
    n_sources = torch.bincount(target)  # (n_tokens,)
    row_start = n_sources.cumsum(0) - n_sources  # (n_tokens,)
    rank = torch.arange(len(target), device=attn.device) - row_start[target]  # (n_pairs,)
    is_top = (rank < top_k)[:, None].expand_as(attn)
    return torch.zeros_like(attn, dtype=torch.bool).scatter(0, by_target, is_top)


def check_pairs(attn: Tensor, n_layers: int, n_pairs: int) -> None:
    if attn.shape != (n_pairs, n_layers):
        raise ValueError(
            f"attn_mean: expected {n_pairs} pairs of {n_layers} layers "
            f"(T(T+1)/2 for the T tokens of each trace), found shape {tuple(attn.shape)}; "
            "import or extract the traces again"
        )
