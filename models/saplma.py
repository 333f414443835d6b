"""SAPLMA: an MLP on the last token's state at one layer (Azaria and Mitchell, arXiv:2304.13734)."""

import math

from torch import Tensor, nn

from models.detector import MlpDetector
from models.standardise import build_scale
from store import Batch

__all__ = ["Saplma", "build_classifier"]


def build_classifier(n_inputs: int) -> nn.Sequential:
    """The MLP n - 256 - 128 - 64 - 1 with ReLU: (B, n) -> (B,)."""
    return nn.Sequential(
        nn.Linear(n_inputs, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
        nn.Flatten(0),
    )


class Saplma(MlpDetector):
    """`hs_last` at one layer through the MLP d - 256 - 128 - 64 - 1 with ReLU.

    `saplma_layer` is a position in `hs_last`; by default that at 60% of the depth, the paper's 20th
    layer of 32. By default states are read raw, as in the paper.

    Shapes
    ------
    batch["hs_last"] (B, L, d) -> logits (B,)
    """

    columns = ("hs_last",)
    options = ("saplma_layer", "input_scale")

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        saplma_layer: int | None = None,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        default = math.ceil(3 * n_layers / 5) - 1
        self.read_layer("saplma_layer", saplma_layer, default, n_layers)
        self.scale = build_scale(input_scale or self.default_scale, hidden_size, fills=False)
        self.mlp = build_classifier(hidden_size)

    def encode(self, batch: Batch) -> Tensor:
        return self.scale(self.states(batch.fixed("hs_last"))[:, 0])  # (B, d)
