"""DRIFT: a probe on the states of the question, before anything is answered (arXiv:2601.14210).

The first version of the paper called it HALT.
"""

import torch
from torch import Tensor, nn

from models.detector import MlpDetector
from models.standardise import build_scale
from models.tokens import (
    keep_tokens,
    mean_by_trace,
    positions,
    positions_in_trace,
    trace_of_token,
)
from store import Batch, Ragged

__all__ = ["Drift", "question_layers"]

N_LAYERS = 6  # whose states are read
DEPTH = 0.75  # the highest of them, as a share of all layers


def question_layers(n_layers: int) -> list[int]:
    """Positions of the layers that are read: 6, evenly from the lowest to 3/4 of the depth.

    Of a model of 28 layers they are 0, 4, 8, ..., 20; of few layers there are fewer than 6.
    """
    highest = max(0, round(DEPTH * n_layers) - 1)
    spread = (round(highest * i / (N_LAYERS - 1)) for i in range(N_LAYERS))
    return list(dict.fromkeys(spread))


class Drift(MlpDetector):
    """States of a question token at six layers through the MLP 6d - 512 - 128 - 1.

    The answer is not looked at: the probability is there before the first token is generated.

    Of the paper only what its abstract and its authors' summaries say was at hand: a small probe
    (3 to 37 million parameters) on hidden states of question tokens at layers up to the middle and
    late ones, trained with cross-entropy. The rest follows a published reproduction: the last token
    of the question at layers 1, 5, 9, ..., 21 of 28, standardised and concatenated, an MLP of 512
    and 128 with LeakyReLU and dropout .3 behind both.

    Different from the reproduction: one logit instead of two; the last token of the prompt, since a
    store does not say where in the prompt the question ends; the run's own optimizer (there AdamW,
    learning rate 1e-4, weight decay 1e-3, 40 epochs).

    Where the prompt's length is unknown (negative), the trace's last token is read.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d) -> logits (B,)
    """

    columns = ("hidden_states", "prompt_len")
    options = ("dropout", "input_scale")
    default_scale = "standard"
    tokens_read = "prompt end"

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        dropout: float = 0.3,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        self.layers_read = question_layers(n_layers)
        n_read = len(self.layers_read)
        scale = input_scale or self.default_scale
        self.scale = build_scale(scale, n_read, hidden_size, dropout=dropout)
        self.mlp = nn.Sequential(
            nn.Flatten(),
            nn.Linear(len(self.layers_read) * hidden_size, 512),
            nn.LeakyReLU(),
            nn.Dropout(dropout),
            nn.Linear(512, 128),
            nn.LeakyReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 1),
            nn.Flatten(0),
        )

    def encode(self, batch: Batch) -> Tensor:
        values, offsets = batch.ragged("hidden_states")
        read = self.is_read(batch, offsets)
        states = keep_tokens(Ragged(self.states(values), offsets), read)
        means = mean_by_trace(states.values, states.offsets)
        return self.scale(means)  # (B, n_read, d)

    def is_read(self, batch: Batch, offsets: Tensor) -> Tensor:
        """Whether the state of each token is read, (n_tokens,) bool."""
        trace = trace_of_token(offsets)
        prompt_len = batch.fixed("prompt_len").long()[trace]
        is_last = positions(offsets) == offsets.diff()[trace] - 1
        is_end = positions_in_trace(batch, offsets) == prompt_len - 1
        return torch.where(prompt_len < 0, is_last, is_end)

    @classmethod
    def columns_for_tokens(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        """None: no token of the answer is looked at."""
        return ()
