"""GNN-det + LSTM: one encoder for the attention graphs of all layers, then an LSTM over layers.

`GraphEncoder` is shared with the variational detector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_mean_pool

from models.detector import Detector, Outputs
from models.gine import BlockGINEConv
from models.graphs import build_graphs
from models.lstm import LayerLstm

if TYPE_CHECKING:
    from store import Batch

__all__ = ["GnnDetLstm", "GraphDetector", "GraphEncoder"]


def call(part: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return part(*inputs)


class GraphEncoder(nn.Module):
    """GINEConv(d -> g -> g) - ReLU - dropout - GINEConv(g -> g -> g) - mean over nodes.

    GINE is the isomorphism network with edge features of Hu et al., arXiv:1905.12265.

    Shapes
    ------
    Data with x (N, d), edge_index (2, E), edge_attr (E, 1), batch (N,), n_graphs G -> (G, g)
    float32. Complete graphs are faster with the `offsets` that `build_graphs` gives.
    """

    def __init__(self, hidden_size: int, gnn_hidden: int) -> None:
        super().__init__()
        self.first = BlockGINEConv(two_linear(hidden_size, gnn_hidden))
        self.second = BlockGINEConv(two_linear(gnn_hidden, gnn_hidden))
        self.between = nn.Sequential(nn.ReLU(), nn.Dropout(0.2))

    def forward(self, graphs: Data, run: Callable[..., Tensor] = call) -> Tensor:
        """Encode each graph; `run(part, *inputs)` does the two convolutions, most of the work."""
        edges = graphs.edge_index, graphs.edge_attr, graphs.get("offsets")
        x = run(self.first, graphs.x, *edges)  # (N, g)
        x = run(self.second, self.between(x), *edges)  # (N, g)
        return global_mean_pool(x, graphs.batch, size=graphs.n_graphs)  # (G, g)


def two_linear(n_in: int, n_out: int) -> nn.Sequential:
    """n_in -> n_out -> n_out with a ReLU between."""
    return nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU(), nn.Linear(n_out, n_out))


class GraphDetector(Detector):
    """Base of the detectors that read a `GraphEncoder`'s vectors, (B, L, g) float32.

    Attributes
    ----------
    encoder : GraphEncoder
        All layers of all traces of a batch go through it in one pass.
    attn_threshold, top_k
        Which edges a graph keeps, see `build_graphs`.
    """

    columns = ("hidden_states", "attn_mean")

    def __init__(self, encoder: GraphEncoder, attn_threshold: float, top_k: int | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.attn_threshold = attn_threshold
        self.top_k = top_k

    def encode(self, batch: Batch) -> Tensor:
        hidden, offsets = batch.ragged("hidden_states")
        attn = batch.ragged("attn_mean").values
        graphs = build_graphs(hidden, attn, offsets, self.attn_threshold, self.top_k)
        n_layers = hidden.shape[1]
        return self.encoder(graphs, self.run).unflatten(0, (-1, n_layers))  # (B, L, g)


class GnnDetLstm(GraphDetector):
    """Graph vectors of the layers, in order, through `LayerLstm`.

    Shapes
    ------
    hidden_states (n_tokens, L, d) and attn_mean (n_pairs, L), packed -> logits (B,)
    """

    options = (
        "gnn_hidden",
        "lstm_hidden",
        "num_lstm_layers",
        "dropout",
        "attn_threshold",
        "top_k",
    )

    def __init__(
        self,
        hidden_size: int,
        gnn_hidden: int = 128,
        lstm_hidden: int = 128,
        num_lstm_layers: int = 2,
        dropout: float = 0.3,
        attn_threshold: float = 0.0,
        top_k: int | None = None,
    ) -> None:
        super().__init__(GraphEncoder(hidden_size, gnn_hidden), attn_threshold, top_k)
        self.layers = LayerLstm(gnn_hidden, lstm_hidden, num_lstm_layers, dropout)

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.run(self.layers, features))
