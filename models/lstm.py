"""LSTM-solo: the last token's state, read layer by layer.

`LayerLstm` (a sequence over the layers of a language model -> one logit) is shared by the graph
detectors.
"""

import torch
from torch import Tensor, nn

from models.detector import Detector, Outputs
from models.standardise import build_scale
from store import Batch

__all__ = ["LayerLstm", "LstmSolo"]


class LayerLstm(nn.Module):
    """Bidirectional LSTM over layers, then an MLP on its two final states.

    `input_size` is d, the width of each layer's vector; `lstm_hidden` is the width h of each
    direction. Dropout is between LSTM layers and inside the MLP 2h - 128 - 64 - 1.

    Shapes
    ------
    (B, L, d) float32 -> (B,) float32
    """

    def __init__(
        self, input_size: int, lstm_hidden: int, num_lstm_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size,
            lstm_hidden,
            num_lstm_layers,
            batch_first=True,
            bidirectional=True,
            # it acts between layers: torch warns of one that has no effect
            dropout=dropout if num_lstm_layers > 1 else 0.0,
        )
        self.head = nn.Sequential(
            nn.Linear(2 * lstm_hidden, 128),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(64, 1),
        )

    def forward(self, layers: Tensor) -> Tensor:
        _, (states, _) = self.lstm(layers)  # (2 * num_lstm_layers, B, h)
        # (B, 2h): the forward direction ends at the last layer, the backward one at the first
        ends = torch.cat([states[-2], states[-1]], dim=1)
        return self.head(ends).squeeze(1)  # (B,)


class LstmSolo(Detector):
    """`hs_last` as a sequence over layers through `LayerLstm`.

    `input_scale` is one of `models.standardise.SCALES`, raw by default. Standardised, each layer
    has statistics of its own; with `n_layers` 1 all have the same, and no
    gate (`models.standardise.LayerGate`).

    Shapes
    ------
    batch["hs_last"] (B, L, d) -> logits (B,)
    """

    columns = ("hs_last",)
    options = ("lstm_hidden", "num_lstm_layers", "dropout", "input_scale")

    def __init__(
        self,
        hidden_size: int,
        lstm_hidden: int = 128,
        num_lstm_layers: int = 2,
        dropout: float = 0.3,
        input_scale: str | None = None,
        n_layers: int = 1,
    ) -> None:
        super().__init__()
        self.scale = build_scale(
            input_scale or self.default_scale, n_layers, hidden_size, fills=False, dropout=dropout
        )
        self.layers = LayerLstm(hidden_size, lstm_hidden, num_lstm_layers, dropout)

    def encode(self, batch: Batch) -> Tensor:
        return self.scale(batch.fixed("hs_last"))

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.run(self.layers, features))
