"""GNN-det + LSTM: each layer's attention graph through one shared encoder, then the layers through the LSTM.

`GraphEncoder` is shared with the variational detector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv, global_mean_pool

from models.detector import Detector, Outputs
from models.graphs import build_graphs
from models.lstm import LayerLstm

if TYPE_CHECKING:
    from store import Batch

__all__ = ["GnnDetLstm", "GraphEncoder", "encode_layers"]


class GraphEncoder(nn.Module):
    """GINEConv(d -> g -> g) - ReLU - dropout - GINEConv(g -> g -> g) - mean over the nodes of each graph.

    GINE is the isomorphism network with edge features of Hu et al., arXiv:1905.12265.

    Shapes
    ------
    Data with x (N, d), edge_index (2, E), edge_attr (E, 1), batch (N,), n_graphs G -> (G, g) float32
    """

    def __init__(self, hidden_size: int, gnn_hidden: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.first = GINEConv(two_linear(hidden_size, gnn_hidden), edge_dim=1)
        self.second = GINEConv(two_linear(gnn_hidden, gnn_hidden), edge_dim=1)
        self.between = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))

    def forward(self, graphs: Data) -> Tensor:
        x = self.first(graphs.x, graphs.edge_index, graphs.edge_attr)  # (N, g)
        x = self.second(self.between(x), graphs.edge_index, graphs.edge_attr)  # (N, g)
        return global_mean_pool(x, graphs.batch, size=graphs.n_graphs)  # (G, g)


def two_linear(n_in: int, n_out: int) -> nn.Sequential:
    """n_in -> n_out -> n_out with a ReLU between."""
    return nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU(), nn.Linear(n_out, n_out))


def encode_layers(encoder: GraphEncoder, batch: Batch, threshold: float, top_k: int | None) -> Tensor:
    """Pooled graph vectors (B, L, g): all layers of all traces of a batch in one pass of the encoder."""
    hidden, attn = batch["hidden_states"], batch["attn_mean"]
    graphs = build_graphs(hidden.values, attn.values, hidden.offsets, threshold, top_k)
    return encoder(graphs).unflatten(0, (-1, hidden.values.shape[1]))  # (B * L, g) -> (B, L, g)


class GnnDetLstm(Detector):
    """Graph vectors of the layers, in order, through `LayerLstm`.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d) and batch["attn_mean"] (n_pairs, L), packed -> logits (B,)
    """

    columns: ClassVar[tuple[str, ...]] = ("hidden_states", "attn_mean")
    options: ClassVar[tuple[str, ...]] = (
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
        super().__init__()
        self.attn_threshold, self.top_k = attn_threshold, top_k
        self.encoder = GraphEncoder(hidden_size, gnn_hidden)
        self.layers = LayerLstm(gnn_hidden, lstm_hidden, num_lstm_layers, dropout)

    def forward(self, batch: Batch) -> Outputs:
        pooled = encode_layers(self.encoder, batch, self.attn_threshold, self.top_k)  # (B, L, g)
        return Outputs(self.layers(pooled))
