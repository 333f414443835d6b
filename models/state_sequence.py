"""The answer's states in their order: a recurrent network over its tokens."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from models.detector import Detector, Outputs
from models.standardise import build_scale
from models.token_sequence import middle_layers
from models.tokens import answer_or_all_tokens, keep_tokens
from store import Batch

__all__ = ["StateSequence"]

WIDTH = 64


class TokenGru(nn.Module):
    """Tokens through a linear map and a GRU in both directions; its last states and its maximum.

    Shapes
    ------
    states (n_tokens, n_layers * d), offsets (B + 1,) -> (B, 4 * WIDTH) float32
    """

    def __init__(self, input_size: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(input_size, WIDTH), nn.Dropout(dropout))
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        lengths = offsets.diff().tolist()
        traces = pad_sequence(self.project(states).float().split(lengths), batch_first=True)
        if not traces.shape[1]:  # no answer has a token
            traces = traces.new_zeros(len(traces), 1, WIDTH)
        # an empty answer is one token of zeros
        counted = torch.tensor(lengths).clamp(min=1)
        packed = pack_padded_sequence(traces, counted, batch_first=True, enforce_sorted=False)
        tokens, ends = self.gru(packed)
        largest = pad_packed_sequence(tokens, batch_first=True, padding_value=-torch.inf)[0].amax(1)
        return torch.cat([ends[0], ends[1], largest], dim=1)


class StateSequence(Detector):
    """The states of the answer's tokens at three layers, one after the other, through a GRU.

    No paper's method. What pools tokens by a mean, a maximum or attention cannot tell which came
    first; this one reads them in both directions. A token is its states at three layers,
    standardised and mapped to 64 numbers. The last state of each direction, and the largest value
    over the tokens, go through a small MLP to the logit.

    Where the prompt's length is unknown, all tokens of a trace are its answer. An empty answer is
    one token of zeros.

    `sequence_layer` is a position in `hidden_states`, which is read with the layers beside it; by
    default the layers at 40, 60 and 80% of the depth are read.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d) -> logits (B,)
    """

    columns = ("hidden_states", "prompt_len", "answer_len")
    options = ("sequence_layer", "dropout", "input_scale")
    default_scale = "standard"
    tokens_read = "answer"

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        sequence_layer: int | None = None,
        dropout: float = 0.3,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        self.layers_read = layers_around(sequence_layer, n_layers)
        self.layer_read = sequence_layer
        self.scale = build_scale(
            input_scale or self.default_scale, len(self.layers_read), hidden_size, dropout=dropout
        )
        self.reader = TokenGru(len(self.layers_read) * hidden_size, dropout)
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(4 * WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1)
        )

    def encode(self, batch: Batch) -> Tensor:
        column = batch.ragged("hidden_states")
        in_answer = answer_or_all_tokens(batch, column.offsets)
        values, offsets = keep_tokens(column._replace(values=self.states(column.values)), in_answer)
        return self.run(self.reader, self.scale(values).flatten(1), offsets)

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.head(features).squeeze(1).float())


def layers_around(layer: int | None, n_layers: int) -> list[int]:
    """A layer and those beside it, 3 or as many as there are; those in the middle for None."""
    if layer is None:
        return middle_layers(n_layers)
    if not 0 <= layer < n_layers:
        raise ValueError(f"sequence_layer: expected 0 to {n_layers - 1}, found {layer}")
    first = max(0, min(layer - 1, n_layers - 3))
    return list(range(first, min(first + 3, n_layers)))
