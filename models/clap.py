"""CLAP: attention over the layers of the last token (Suresh et al., arXiv:2509.09700)."""

import torch
from torch import Tensor, nn

from models.detector import Detector, Outputs
from models.standardise import build_scale
from store import Batch

__all__ = ["Clap"]

WIDTH = 128
N_HEADS = 16
FEEDFORWARD = 1024
DROPOUT = 0.1


class LayerAttention(nn.Module):
    """A class token and the layers through a transformer block; the class token's logit.

    Shapes
    ------
    (B, L, d) float32 -> (B,) float32
    """

    def __init__(self, hidden_size: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(hidden_size, WIDTH)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.layer_embedding = nn.Parameter(0.02 * torch.randn(n_layers, WIDTH))
        self.block = nn.TransformerEncoderLayer(
            WIDTH, N_HEADS, FEEDFORWARD, dropout, batch_first=True
        )
        self.classifier = nn.Linear(WIDTH, 1)

    def forward(self, states: Tensor) -> Tensor:
        layers = self.project(states) + self.layer_embedding  # (B, L, WIDTH)
        first = self.class_token.expand(len(layers), -1, -1)
        tokens = torch.cat([first, layers], dim=1)  # (B, 1 + L, WIDTH)
        summary = self.block(tokens)[:, 0]
        return self.classifier(summary).squeeze(1)


class Clap(Detector):
    """`hs_last`, the residual stream at all layers, as a sequence through one transformer block.

    As in the authors' code: each layer's state through one linear map d - 128, a class token before
    them, an encoder block behind whose sums the normalisation comes (16 heads, 1,024 wide, ReLU,
    dropout .1, or none with `dropout` 0), a linear classifier on the class token. They read the
    last token of the answer.

    Different from the paper: the states are standardised, each dimension of each layer, because
    models have dimensions of outliers (unless `input_scale` says otherwise), half of their numbers
    are dropped in training, and a gate weighs the layers (`build_scale`); a trained embedding
    says which layer a state is of, which standardised states no longer show (the
    authors' positional encoding is off by default). The run's own optimizer and learning rate
    (there AdamW, weight decay 1e-5, batches of 128, 50 epochs, warm-up and cosine, the learning
    rate of 5e-5 to .5 that is best on validation).

    Shapes
    ------
    batch["hs_last"] (B, L, d) -> logits (B,)
    """

    columns = ("hs_last",)
    options = ("dropout", "input_scale")
    default_scale = "standard"

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        dropout: float = DROPOUT,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        scale = input_scale or self.default_scale
        self.scale = build_scale(scale, n_layers, hidden_size, dropout=dropout)
        self.attend = LayerAttention(hidden_size, n_layers, DROPOUT if dropout else 0.0)

    def encode(self, batch: Batch) -> Tensor:
        return self.scale(batch.fixed("hs_last"))

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.run(self.attend, features))
