"""The convolution that sums in blocks is PyG's `GINEConv`, in values and in gradients."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GINEConv

from models import gine
from models.gine import BlockGINEConv
from models.graphs import build_graphs

LAYERS, WIDTH = 3, 8

kinds = pytest.mark.parametrize("kept", [{}, {"threshold": 0.1}, {"top_k": 3}], ids=str)


def random_graphs(lengths, **kept):
    torch.manual_seed(0)
    lengths = torch.tensor(lengths)
    attn = torch.rand(int((lengths * (lengths + 1) // 2).sum()), LAYERS)
    offsets = nn.functional.pad(lengths.cumsum(0), (1, 0))
    return build_graphs(torch.randn(int(lengths.sum()), LAYERS, WIDTH), attn, offsets, **kept)


def two_convolutions(dtype=torch.float32):
    """Ours and PyG's, with the same weights."""
    ours, pyg = (nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, 5)) for _ in range(2))
    made = [BlockGINEConv(ours, eps=0.25).to(dtype), GINEConv(pyg, eps=0.25, edge_dim=1).to(dtype)]
    made[1].load_state_dict(made[0].state_dict())
    return made


def values_and_gradients(convolution, *inputs):
    """Output, and gradients of a sum that weighs each number differently, by input and by
    weight."""
    inputs = [
        one.detach().requires_grad_() if torch.is_tensor(one) and one.is_floating_point() else one
        for one in inputs
    ]
    out = convolution(*inputs)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [
        out,
        inputs[0].grad,
        inputs[2].grad,
        *(parameter.grad for parameter in convolution.parameters()),
    ]


def small_blocks(n_numbers):
    """`block_memory` for blocks of so many numbers."""
    return lambda x: x.new_empty(max(1, n_numbers // x[0].numel()), *x.shape[1:])


@kinds
@pytest.mark.parametrize("n_pairs", [1, 4, 1000])
@pytest.mark.parametrize("lengths", [[5, 1, 9], [1], [1, 1], [0, 3, 0], [2, 7, 2, 2]], ids=str)
def test_values_and_gradients_are_those_of_pyg(lengths, n_pairs, kept, monkeypatch):
    """For all graphs, with blocks of one pair, of some, and of all, to the rounding of float64."""
    monkeypatch.setattr(gine, "block_memory", small_blocks(n_pairs * LAYERS * WIDTH))
    graphs = random_graphs(lengths, **kept)
    edges = graphs.edge_index, graphs.edge_attr.double()
    ours, pyg = two_convolutions(torch.float64)
    found = values_and_gradients(ours, graphs.x.double(), *edges, graphs.get("offsets"))
    torch.testing.assert_close(found, values_and_gradients(pyg, graphs.x.double(), *edges))


@kinds
def test_half_precision_sums_in_single(kept):
    """Under autocast the sums are those of float32; only the products of the MLP are halved."""
    graphs = random_graphs([20, 5], **kept)
    inputs = graphs.x, graphs.edge_index, graphs.edge_attr, graphs.get("offsets")
    ours, _ = two_convolutions()
    expected = ours(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(*inputs)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.float(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item()
    )
    found.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())


def test_nothing_is_kept_that_grows_with_the_messages():
    """What waits for the backward pass is nodes and edges, never nodes times edges."""
    graphs = random_graphs([200])
    ours, _ = two_convolutions()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        ours(graphs.x, graphs.edge_index, graphs.edge_attr, graphs.offsets)
    assert sum(kept) < 4 * graphs.x.numel() + 2 * graphs.edge_attr.numel()


def by_loop(x, edge_index, attr, share, w, b, n_targets):
    """x_i + sum of share * relu(x_j + attr * w + b), edge by edge."""
    out = [x[i] for i in range(n_targets)]
    for (j, i), weight, part in zip(edge_index.T.tolist(), attr, share, strict=True):
        out[i] = out[i] + part * (x[j] + weight * w + b).relu()
    return torch.stack(out)


@pytest.mark.parametrize("n_pairs", [1, 1000])
def test_shares_and_targets_are_those_of_a_loop(n_pairs, monkeypatch):
    """Messages are weighted, only the first nodes are convolved, and gradients agree."""
    monkeypatch.setattr(gine, "block_memory", small_blocks(n_pairs * WIDTH))
    torch.manual_seed(0)
    x = torch.randn(7, WIDTH, dtype=torch.float64, requires_grad=True)
    edge_index = torch.stack([torch.randint(7, (12,)), torch.randint(3, (12,))])
    attr, share = torch.rand(2, 12, dtype=torch.float64)
    ours, _ = two_convolutions(torch.float64)
    ours.eps.zero_()
    w, b = ours.lin.weight[:, 0], ours.lin.bias
    expected = ours.nn(by_loop(x, edge_index, attr, share, w, b, 3))
    found = ours(x, edge_index, attr[:, None], None, share, 3)
    torch.testing.assert_close(found, expected)
    inputs = [x, *ours.parameters()]
    factors = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    torch.testing.assert_close(
        torch.autograd.grad((found * factors).sum(), inputs),
        torch.autograd.grad((expected * factors).sum(), inputs),
    )


def test_shares_of_complete_graphs_are_those_of_any_graph():
    """Slices and gathers give the same, and shares of 1 the sum without them."""
    graphs = random_graphs([40, 3, 60])
    ours, _ = two_convolutions()
    edges = graphs.x, graphs.edge_index, graphs.edge_attr
    share = torch.rand(len(graphs.edge_attr))
    torch.testing.assert_close(
        ours(*edges, graphs.offsets, share), ours(*edges, None, share), rtol=1e-4, atol=1e-4
    )
    ones = torch.ones_like(share)
    torch.testing.assert_close(ours(*edges, graphs.offsets, ones), ours(*edges, graphs.offsets))
