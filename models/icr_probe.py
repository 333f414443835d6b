"""ICR Probe: what layers add against what they attend to, through an MLP (arXiv:2507.16488)."""

from torch import Tensor, nn

from models.detector import MlpDetector
from models.standardise import build_scale
from models.tokens import mean_over_answer
from store import Batch

__all__ = ["IcrProbe"]

WIDTHS = (128, 64, 32)


class IcrProbe(MlpDetector):
    """The mean of `icr` over the answer's tokens, a number a layer, through an MLP.

    Zhang et al. 2025 (ACL). As there: L - 128 - 64 - 32 - 1; behind each hidden layer a norm, Leaky
    ReLU of slope .01 and dropout.

    Different from it: that norm is over a trace's own numbers (LayerNorm) and not over a batch, so
    that no score depends on other traces; the scores of the layers are standardised (see
    `input_scale`); dropout is the run's own (there .3), as the optimizer (there Adam, learning rate
    1e-3, weight decay 1e-5, halved where validation does not improve, 100 epochs of batches of 16).
    What differs in the scores is in `store/sources/huggingface/attention_scores.py`.

    Shapes
    ------
    batch["icr"] (n_tokens, L) -> logits (B,)
    """

    columns = ("icr", "prompt_len", "answer_len")
    options = ("dropout", "input_scale")
    default_scale = "standard"
    tokens_read = "answer"

    def __init__(
        self, hidden_size: int, dropout: float = 0.3, input_scale: str | None = None
    ) -> None:
        super().__init__()
        self.scale = build_scale(input_scale or self.default_scale, hidden_size)
        layers: list[nn.Module] = []
        for n_in, n_out in zip((hidden_size, *WIDTHS), WIDTHS, strict=False):
            layers += [nn.Linear(n_in, n_out), nn.LayerNorm(n_out), nn.LeakyReLU(0.01)]
            layers.append(nn.Dropout(dropout))
        self.mlp = nn.Sequential(*layers, nn.Linear(WIDTHS[-1], 1), nn.Flatten(0))

    def encode(self, batch: Batch) -> Tensor:
        return self.scale(mean_over_answer(batch, batch.ragged("icr")))  # (B, L)
