"""GINE's convolution in blocks: PyG's `GINEConv`, whose messages are never all in memory.

Node i receives the sum over its edges j -> i of relu(x_j + weight_ij * w + b), arXiv:1905.12265.
PyG stores the messages: 668 MB for 16 traces of 50 tokens, 32 layers and d = 256, once for each
step from x_j to ReLU. Here a block of them is computed, summed and overwritten; the backward pass
computes it again, so that only nodes and edges are kept, and memory does not grow with the number
of edges times d.

Any graph is accepted. If it is complete (every token receives from itself and all before it, in
every layer, as in `build_graphs` without dropped edges), then the layers of a pair of tokens are
neighbours in memory, as are the sources of a token, and a block needs no gather: it reads a slice
of x. On the CPU the same input gives the same bits.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch_geometric.nn import GINEConv

__all__ = ["BlockGINEConv"]

Index = slice | Tensor  # rows of a tensor: consecutive, or any


class BlockGINEConv(GINEConv):
    """`GINEConv` with `edge_dim=1` and a fixed `eps`: same parameters, state and results.

    Shapes
    ------
    x (N, d), edge_index (2, E), edge_attr (E, 1), offsets (B + 1,) -> (N, g)
    with share (E,) and n_targets n -> (n, g)
    """

    def __init__(self, mlp: nn.Sequential, eps: float = 0.0) -> None:
        super().__init__(mlp, eps, edge_dim=1)

    is_loop = True  # not to be unrolled by a compiler

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        offsets: Tensor | None = None,
        share: Tensor | None = None,
        n_targets: int | None = None,
    ) -> Tensor:
        """Convolve; `offsets` (of the tokens of each trace) are given for complete graphs only.

        `share` are the factors of the messages in their sum, constants; by default 1. With
        `n_targets` the first so many nodes, the targets of all edges, are the only ones that are
        computed; not with `offsets`.
        """
        bounds = None if offsets is None else offsets.tolist()
        n_layers = len(x) // bounds[-1] if bounds and bounds[-1] else 1
        # (P,) tokens; without offsets nodes, as one layer
        source, target = edge_index[:, ::n_layers] // n_layers
        w = self.lin.weight[:, 0]  # (d,)
        b = self.lin.bias  # (d,)
        # (n, L, d); sums of half precision would not be exact
        tokens = x.to(w.dtype).unflatten(0, (-1, n_layers))
        attr = edge_attr.to(w.dtype).reshape(-1, n_layers)  # (P, L)
        if share is not None:
            share = share.to(w.dtype).reshape(-1, n_layers)  # (P, L)
        graph = source, target, attr
        own = 1 + self.eps
        out = Propagate.apply(tokens, *graph, w, b, own, bounds, share, n_targets)  # (n, L, d)
        return self.nn(out.flatten(0, 1))


class Propagate(torch.autograd.Function):
    """own * x + share * messages, (n, L, d), or of the first `n_targets` tokens.

    Shapes
    ------
    x (n, L, d), source and target (P,), attr and share (P, L), w and b (d,), own (1,)
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        source: Tensor,
        target: Tensor,
        attr: Tensor,
        w: Tensor,
        b: Tensor,
        own: Tensor,
        offsets: list[int] | None,
        share: Tensor | None,
        n_targets: int | None,
    ) -> Tensor:
        shifted = x + b
        out = own * x[:n_targets]
        memory = block_memory(x)
        weights = attr.unsqueeze(2)  # (P, L, 1)
        ctx.save_for_backward(shifted, source, target, attr, w, own)
        ctx.offsets = offsets
        ctx.share = share
        for sources, targets, pairs in blocks(source, target, offsets, len(memory)):
            message = memory[: pairs.stop - pairs.start]  # (p, L, d)
            torch.addcmul(take(shifted, sources), weights[pairs], w, out=message).relu_()
            if share is not None:
                message *= share[pairs, :, None]
            add_at(out, targets, message)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shifted, source, target, attr, w, own = ctx.saved_tensors
        grad_x = pad_rows(own * grad, len(shifted)) if ctx.needs_input_grad[0] else None
        grad_attr = torch.empty_like(attr) if ctx.needs_input_grad[3] else None
        grad_wb = grad.new_zeros(2, len(w))
        weights = attr.unsqueeze(2)  # (P, L, 1)
        with_ones = torch.stack([attr, torch.ones_like(attr)])  # (2, P, L)
        memory = block_memory(shifted)
        for sources, targets, pairs in blocks(source, target, ctx.offsets, len(memory)):
            message = memory[: pairs.stop - pairs.start]  # (p, L, d), before the ReLU
            torch.addcmul(take(shifted, sources), weights[pairs], w, out=message)
            received = take(grad, targets).expand_as(message)
            if ctx.share is not None:
                received = received * ctx.share[pairs, :, None]
            # from here on `message` is the gradient of the message
            relu_backward(received, message, 0, grad_input=message)
            grad_wb.addmm_(with_ones[:, pairs].flatten(1), message.flatten(0, 1))
            if grad_x is not None:
                add_at(grad_x, sources, message)
            if grad_attr is not None:
                grad_attr[pairs] = message @ w
        return grad_x, None, None, grad_attr, *grad_wb, None, None, None, None


def pad_rows(x: Tensor, n_rows: int) -> Tensor:
    """`x`, with rows of zeros below it if it has fewer than `n_rows`."""
    n_missing = n_rows - len(x)
    return torch.cat([x, x.new_zeros(n_missing, *x.shape[1:])]) if n_missing else x


relu_backward = torch.ops.aten.threshold_backward.grad_input  # what autograd calls, in place


def block_memory(x: Tensor) -> Tensor:
    """Memory for the messages of a block, (p, L, d), p at least 1.

    On the CPU it fits a core's cache; elsewhere few and large kernels are faster.
    """
    n_numbers = 2**17 if x.device.type == "cpu" else 2**27  # 512 KB, 512 MB
    n_a_token = math.prod(x.shape[1:]) or 1
    return x.new_empty(max(1, n_numbers // n_a_token), *x.shape[1:])


def blocks(
    source: Tensor, target: Tensor, offsets: Sequence[int] | None, n_most: int
) -> Iterator[tuple[Index, Index, slice]]:
    """Cut the pairs into blocks of at most `n_most`, as (sources, targets, pairs).

    In long complete graphs a block is one target and some of its sources, which need no gather; the
    same sources meet target after target, so that they stay in the cache as well.
    """
    if offsets is None:
        yield from gathered(source, target, 0, len(source), n_most)
        return
    begin = pair = 0  # pairs from `begin` to `pair` wait for a block that they fill
    for first, end in pairwise(offsets):
        n_tokens = end - first
        if 2 * n_tokens > n_most:
            yield from gathered(source, target, begin, pair, n_most)
            for j in range(0, n_tokens, n_most):
                for i in range(j, n_tokens):
                    n = min(n_most, i + 1 - j)
                    at = pair + i * (i + 1) // 2 + j
                    yield (
                        slice(first + j, first + j + n),
                        slice(first + i, first + i + 1),
                        slice(at, at + n),
                    )
            begin = pair + n_tokens * (n_tokens + 1) // 2
        pair += n_tokens * (n_tokens + 1) // 2
    yield from gathered(source, target, begin, pair, n_most)


def gathered(
    source: Tensor, target: Tensor, begin: int, end: int, n_most: int
) -> Iterator[tuple[Index, Index, slice]]:
    """Blocks of the pairs `begin:end` of any graph."""
    for at in range(begin, end, n_most):
        pairs = slice(at, min(end, at + n_most))
        yield source[pairs], target[pairs], pairs


def take(x: Tensor, index: Index) -> Tensor:
    """`x[index]`: a view for a slice, else a copy."""
    return x[index] if isinstance(index, slice) else x.index_select(0, index)


def add_at(x: Tensor, index: Index, values: Tensor) -> None:
    """The transpose of `take`: add each value, or the sum of all if `index` is a slice of 1 row."""
    if isinstance(index, slice):
        rows = x[index]
        if len(rows) == len(values):
            rows += values
        else:  # a product with ones is the fastest sum
            rows.flatten(1).addmm_(values.new_ones(1, len(values)), values.flatten(1))
    else:
        x.index_add_(0, index, values)
