"""GNN-det + LSTM: one encoder for the attention graphs of all layers, then an LSTM over layers.

`GraphDetector` is shared with the variational detector. It has two encoders, both of two GINE
convolutions (Hu et al., arXiv:1905.12265):

- `AttentionEncoder`, the default. Differences from the paper: the states are put on one scale,
  standardised and projected to the width of the graph before the convolutions, messages are
  averaged with the attention as weights where GINE sums them (a sum grows with the number of
  tokens), and a convolution is added to its input and normalised.
- `GraphEncoder`: states as they are stored, and sums.

A trace is read at its last token by default: the mean over all tokens is that of the prompt where
the prompt is long (`benchmarks/results/long_prompts.csv` has the numbers).

States of one layer are alike in all traces: on one scale, but not standardised, they differ by .15
to .5 in each dimension where their mean is some 1, and the detectors learn slowly.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_mean_pool

from models.detector import Detector, Outputs
from models.gine import BlockGINEConv
from models.graphs import build_graphs
from models.lstm import LayerLstm
from models.readout import check_readout, mean_by_trace_of, readout_tokens, signed_log
from models.standardise import LIMIT, Standardise
from models.subgraph import Subgraph, complete_graph, k_hop_subgraph
from store import Batch

__all__ = ["AttentionEncoder", "GnnDetLstm", "GraphDetector", "GraphEncoder"]

AGGREGATIONS = ("attention", "sum")
N_CONVOLUTIONS = 2
STRONGEST = 8  # edges of a token that aggregation by attention keeps where `top_k` is not given
DROPOUT = 0.2


def call(part: Callable[..., Tensor], *inputs: Any) -> Tensor:
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
        self.between = nn.Sequential(nn.ReLU(), nn.Dropout(DROPOUT))

    def forward(self, graphs: Data, run: Callable[..., Tensor] = call) -> Tensor:
        """Encode each graph; `run(part, *inputs)` does the two convolutions, most of the work."""
        x = self.encode_nodes(graphs, run)  # (N, g)
        return global_mean_pool(x, graphs.batch, size=graphs.n_graphs)  # (G, g)

    def encode_nodes(self, graphs: Data, run: Callable[..., Tensor] = call) -> Tensor:
        """Encode each node, (N, g)."""
        edges = graphs.edge_index, graphs.edge_attr, graphs.get("offsets")
        x = run(self.first, graphs.x, *edges)  # (N, g)
        return run(self.second, self.between(x), *edges)


def two_linear(n_in: int, n_out: int) -> nn.Sequential:
    """n_in -> n_out -> n_out with a ReLU between."""
    return nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU(), nn.Linear(n_out, n_out))


class AttentionEncoder(nn.Module):
    """Linear(d -> g) of scaled states, then twice: x + dropout(GINEConv(g -> g)), LayerNorm.

    States are standardised by those of all tokens and layers in the graphs of a sample.

    Shapes
    ------
    Subgraph with x (N, d) -> (n, g) float32, of the first n = `n_nodes[0]` nodes
    """

    def __init__(self, hidden_size: int, gnn_hidden: int) -> None:
        super().__init__()
        widths = [gnn_hidden] * N_CONVOLUTIONS
        # what is not finite passes, and is reported with the trace's score
        self.standardise = Standardise(hidden_size, fills=False)
        self.project = nn.Linear(hidden_size, gnn_hidden)
        self.convolutions = nn.ModuleList(BlockGINEConv(two_linear(g, g)) for g in widths)
        self.norms = nn.ModuleList(nn.LayerNorm(g) for g in widths)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, graph: Subgraph, run: Callable[..., Tensor] = call) -> Tensor:
        """Encode the nodes that are read; `run(part, *inputs)` does most of the work."""
        x = run(self.scale_and_project, graph.x)  # (N, g)
        sizes = zip(graph.n_nodes[-2::-1], graph.n_edges[::-1], strict=True)
        parts = zip(self.convolutions, self.norms, strict=True)
        for (convolve, norm), (n, n_edges) in zip(parts, sizes, strict=True):
            edges = graph.edge_index[:, :n_edges], graph.edge_attr[:n_edges]
            limits = graph.offsets, graph.share[:n_edges], None if n == len(x) else n
            received = run(convolve, x, *edges, *limits)  # (n, g)
            x = norm(x[:n] + self.dropout(received))
        return x

    def scale_and_project(self, states: Tensor) -> Tensor:
        # a dimension that hardly varies in the sample is not to be magnified without bound
        scaled = self.standardise(signed_log(states)).clamp(-LIMIT, LIMIT)  # NaN passes
        return self.project(scaled)


class GraphDetector(Detector):
    """Base of the detectors that read vectors of the attention graphs of each layer.

    All layers of all traces of a batch go through the encoder in one pass. `models.readout` says
    which tokens are read, `build_graphs` which edges `attn_threshold` and `top_k` keep; a `top_k`
    of 0 keeps all.
    """

    columns: tuple[str, ...] = ("hidden_states", "attn_mean")
    options: ClassVar[tuple[str, ...]] = (
        "gnn_hidden",
        "attn_threshold",
        "top_k",
        "readout",
        "aggregation",
    )

    def __init__(
        self,
        hidden_size: int,
        n_layers: int = 1,
        gnn_hidden: int = 128,
        attn_threshold: float = 0.0,
        top_k: int | None = None,
        readout: str = "last+skip",
        aggregation: str = "attention",
    ) -> None:
        super().__init__()
        check_readout(readout)
        if aggregation not in AGGREGATIONS:
            choices = ", ".join(AGGREGATIONS)
            raise ValueError(f"aggregation: expected one of {choices}, found {aggregation!r}")
        self.encoder: AttentionEncoder | GraphEncoder
        if aggregation == "attention":
            self.encoder = AttentionEncoder(hidden_size, gnn_hidden)
            top_k = STRONGEST if top_k is None else top_k
        else:
            self.encoder = GraphEncoder(hidden_size, gnn_hidden)
        has_skip = readout == "last+skip"
        # of the last token's own state, standardised by its layer but with sums
        self.skip = nn.Linear(hidden_size, gnn_hidden) if has_skip else None
        if has_skip and aggregation == "attention":
            self.standardise = Standardise(n_layers, hidden_size)
        self.readout = readout
        self.columns = self.columns_for({"readout": readout})
        self.attn_threshold = attn_threshold
        self.top_k = top_k or None
        # of the vector of a layer
        self.feature_size = 2 * gnn_hidden if has_skip else gnn_hidden

    @classmethod
    def columns_for(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        if settings["readout"] == "answer":
            return (*cls.columns, "prompt_len", "answer_len")
        return cls.columns

    def encode(self, batch: Batch) -> Tensor:
        """Vector of each layer, (B, L, feature_size)."""
        hidden, offsets = batch.ragged("hidden_states")
        attn = batch.ragged("attn_mean").values
        if isinstance(self.encoder, AttentionEncoder):
            return self._encode_with_attention(self.encoder, batch, hidden, attn, offsets)
        graphs = build_graphs(hidden, attn, offsets, self.attn_threshold, self.top_k)
        n_layers = hidden.shape[1]
        if self.readout == "mean":
            return self.encoder(graphs, self.run).unflatten(0, (-1, n_layers))
        nodes = self.encoder.encode_nodes(graphs, self.run).unflatten(0, (-1, n_layers))
        tokens = readout_tokens(self.readout, batch, offsets)
        vectors = self._with_skip(nodes[tokens], hidden[tokens].float())
        return mean_by_trace_of(vectors, tokens, offsets)

    def _encode_with_attention(
        self,
        encoder: AttentionEncoder,
        batch: Batch,
        hidden: Tensor,
        attn: Tensor,
        offsets: Tensor,
    ) -> Tensor:
        tokens = readout_tokens(self.readout, batch, offsets)  # (R,)
        packed = hidden, attn, offsets, tokens, N_CONVOLUTIONS
        if self.top_k is None:
            graph = complete_graph(*packed, self.attn_threshold)
        else:
            graph = k_hop_subgraph(*packed, self.top_k, self.attn_threshold)
        nodes = encoder(graph, self.run)[graph.readout]  # (R, L, g)
        vectors = nodes
        if self.skip is not None:
            states = self.standardise(signed_log(graph.x[graph.readout]))
            vectors = self._with_skip(nodes, states)
        return mean_by_trace_of(vectors, tokens, offsets)

    def _with_skip(self, vectors: Tensor, states: Tensor) -> Tensor:
        """Vectors (R, L, g), with the states (R, L, d) projected beside them: (R, L, 2 g)."""
        if self.skip is None:
            return vectors
        return torch.cat([vectors.float(), self.skip(states).float()], dim=-1)


class GnnDetLstm(GraphDetector):
    """Graph vectors of the layers, in order, through `LayerLstm`.

    With `n_layers` the states that are read beside the graph's vectors are standardised by layer;
    with 1 all layers have one statistic.

    Shapes
    ------
    hidden_states (n_tokens, L, d) and attn_mean (n_pairs, L), packed -> logits (B,)
    """

    options = (*GraphDetector.options, "lstm_hidden", "num_lstm_layers", "dropout")

    def __init__(
        self,
        hidden_size: int,
        n_layers: int = 1,
        lstm_hidden: int = 128,
        num_lstm_layers: int = 2,
        dropout: float = 0.3,
        **graphs: Any,
    ) -> None:
        super().__init__(hidden_size, n_layers, **graphs)
        self.layers = LayerLstm(self.feature_size, lstm_hidden, num_lstm_layers, dropout)

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.run(self.layers, features))
