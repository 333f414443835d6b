"""MIND: an MLP on the last token's state and on the mean state (Su et al., arXiv:2403.06448)."""

import torch
from torch import Tensor, nn

from models.detector import MlpDetector
from models.saplma import build_classifier
from models.standardise import build_scale
from store import Batch

__all__ = ["Mind"]


class Mind(MlpDetector):
    """`hs_last`, the mean over its layers, and the highest layer of `hs_mean` through an MLP.

    As in the authors' code: both states concatenated, dropout, 2d - 256 - 128 - 64 with ReLU.

    Different from it: one logit instead of two; labels are those of the store, while the authors
    label continuations of Wikipedia by whether they name the right entity; the layers are those
    that the store keeps, without the embeddings there as here; the states may be scaled (see
    `input_scale`), and are raw in the paper; dropout is the run's own (there .2), as the optimizer
    (there Adam, learning rate 5e-4, weight decay 1e-5, batches of 32, 20 epochs, class weights).

    Shapes
    ------
    batch["hs_last"], batch["hs_mean"] (B, L, d) -> logits (B,)
    """

    columns = ("hs_last", "hs_mean")
    options = ("dropout", "input_scale")

    def __init__(
        self, hidden_size: int, dropout: float = 0.2, input_scale: str | None = None
    ) -> None:
        super().__init__()
        scale = input_scale or self.default_scale
        self.scale = build_scale(scale, 2, hidden_size, dropout=dropout)
        self.mlp = nn.Sequential(
            nn.Flatten(), nn.Dropout(dropout), *build_classifier(2 * hidden_size)
        )

    def encode(self, batch: Batch) -> Tensor:
        last = batch.fixed("hs_last").float().mean(dim=1)  # (B, d)
        mean = batch.fixed("hs_mean")[:, -1].float()  # (B, d)
        return self.scale(torch.stack([last, mean], dim=1))  # (B, 2, d)
