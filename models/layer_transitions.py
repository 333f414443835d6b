"""Layer transitions: what each of the upper layers adds to the last token's state (2605.17028).

The authors of PARALLAX call their probe DRIFT, like another method that reads the question alone
(`models.drift`): hence the name here.
"""

from torch import Tensor, nn

from models.detector import MlpDetector
from models.saplma import build_classifier
from models.standardise import build_scale
from store import Batch

__all__ = ["LayerTransitions", "transitions", "upper_layers"]


def upper_layers(n_layers: int) -> list[int]:
    """Positions of the upper half of the layers, and of the one before it."""
    return list(range(max(0, n_layers // 2 - 1), n_layers))


def transitions(states: Tensor) -> Tensor:
    """What each layer but the first adds, (B, L, d) -> (B, L - 1, d) float32; of one, its state."""
    states = states.float()
    return states if states.shape[1] == 1 else states.diff(dim=1)


class LayerTransitions(MlpDetector):
    """`hs_last`: differences between neighbouring layers through an MLP of 256, 128, 64, 1.

    Of the paper only the abstract was at hand (arXiv:2605.17028): a supervised probe over the
    transitions of hidden states between layers, on the upper layers. The rest is chosen here: the
    last token; the upper half of the layers; each number of each difference standardised, since
    the last layers add by far the most; all differences concatenated; the MLP of SAPLMA with
    dropout before it; the run's own optimizer.

    Shapes
    ------
    batch["hs_last"] (B, L, d) -> logits (B,)
    """

    columns = ("hs_last",)
    options = ("dropout", "input_scale")
    default_scale = "standard"

    def __init__(
        self, hidden_size: int, n_layers: int, dropout: float = 0.3, input_scale: str | None = None
    ) -> None:
        super().__init__()
        self.layers_read = upper_layers(n_layers)
        n_transitions = max(1, len(self.layers_read) - 1)
        scale = input_scale or self.default_scale
        self.scale = build_scale(scale, n_transitions, hidden_size, dropout=dropout)
        self.mlp = nn.Sequential(
            nn.Flatten(), nn.Dropout(dropout), *build_classifier(n_transitions * hidden_size)
        )

    def encode(self, batch: Batch) -> Tensor:
        return self.scale(transitions(self.states(batch.fixed("hs_last"))))  # (B, L - 1, d)
