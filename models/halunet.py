"""HaluNet: log-probabilities, entropies and states of the answer, fused (arXiv:2512.24562)."""

import torch
from torch import Tensor, nn

from models.detector import Detector, Outputs
from models.standardise import Standardise, build_scale
from models.tokens import (
    answer_or_all_tokens,
    keep_tokens,
    mean_by_trace,
    mean_or_zero,
    positions,
)
from store import Batch, Ragged

__all__ = ["HaluNet", "TokenConvolution"]

WIDTH = 128
DROPOUT = 0.5


class TokenConvolution(nn.Module):
    """A convolution of width 3 along the tokens of packed traces, zeros beyond their ends.

    Equal to `nn.Conv1d(d, out, 3, padding=1)` on each trace by itself, without padding any.

    Shapes
    ------
    (n_tokens, d), and the position of each token in its trace (n_tokens,) -> (n_tokens, out)
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(input_size, 3 * output_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(output_size))

    def forward(self, values: Tensor, position: Tensor) -> Tensor:
        before, here, after = self.project(values).chunk(3, dim=1)  # what a token gives to others
        # whether a token has a neighbour before it, (n_tokens, 1)
        follows = (position > 0)[:, None]
        zero = here.new_zeros(1, here.shape[1])
        from_before = torch.cat([zero, before[:-1]]) * follows
        from_after = torch.cat([(after * follows)[1:], zero])
        return here + from_before + from_after + self.bias


class Branches(nn.Module):
    """Three vectors of a trace, and their mean weighted by attention.

    Shapes
    ------
    scalars (B, 2), states (n_tokens, d), offsets (B + 1,) -> (B, WIDTH) float32
    """

    def __init__(self, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.logprob = scalar_branch(dropout)
        self.entropy = scalar_branch(dropout)
        self.first = TokenConvolution(hidden_size, WIDTH)
        self.second = TokenConvolution(WIDTH, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, scalars: Tensor, states: Tensor, offsets: Tensor) -> Tensor:
        position = positions(offsets)
        tokens = self.first(states, position).relu()
        tokens = self.second(tokens, position).relu()  # (n_tokens, WIDTH)
        parts = [
            self.logprob(scalars[:, :1]),
            self.entropy(scalars[:, 1:]),
            mean_or_zero(tokens, offsets),
        ]
        branches = torch.stack([part.float() for part in parts], dim=1)  # (B, 3, WIDTH)
        weights = self.score(self.mix(branches).tanh()).float().softmax(dim=1)  # (B, 3, 1)
        return (weights * branches).sum(dim=1)


def scalar_branch(dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(1, WIDTH), nn.ReLU(), nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH)
    )


class HaluNet(Detector):
    """Mean log-probability, mean entropy and the states of the answer, each through a branch.

    Section 3.4 of the paper, read in a published reimplementation of it: the two means through MLPs
    of two layers; the states of one layer through two convolutions along the tokens with ReLU and a
    mean over tokens; the three vectors h_i weighted by softmax_i(w' tanh(W h_i)), their sum through
    a linear map. Widths of 128, kernels of 3 and dropout .5 in the two MLPs, or none with
    `dropout` 0, are its choices.

    Different from the paper: means over all tokens of the answer (there answers are padded with
    zeros to 50 tokens); states, mean log-probability and mean entropy are standardised (the states
    unless `input_scale` says otherwise); the layer, which no source at hand names, is given or the
    last; the run's own optimizer.

    Where the prompt's length is unknown, all tokens of a trace are its answer. A mean of nothing
    is the mean over all traces, the states of an empty answer are zeros.

    `halunet_layer` is a position in `hidden_states`; by default the last.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d), batch["logprob"], batch["entropy"] (n_tokens,)
    -> logits (B,)
    """

    columns = ("hidden_states", "logprob", "entropy", "prompt_len", "answer_len")
    options = ("halunet_layer", "dropout", "input_scale")
    default_scale = "standard"
    tokens_read = "answer"

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        halunet_layer: int | None = None,
        dropout: float = DROPOUT,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        self.read_layer("halunet_layer", halunet_layer, n_layers - 1, n_layers)
        self.standardise_scalars = Standardise(2)
        self.scale = build_scale(input_scale or self.default_scale, hidden_size)
        self.branches = Branches(hidden_size, DROPOUT if dropout else 0.0)
        self.classifier = nn.Linear(WIDTH, 1)

    def encode(self, batch: Batch) -> Tensor:
        values, offsets = batch.ragged("hidden_states")
        in_answer = answer_or_all_tokens(batch, offsets)
        states = keep_tokens(Ragged(self.states(values)[:, 0], offsets), in_answer)
        columns = [batch.ragged(name) for name in ("logprob", "entropy")]
        means = [
            mean_by_trace(values, offsets, in_answer & ~values.isnan())  # NaN where nothing counts
            for values, offsets in columns
        ]
        return self.run(
            self.branches,
            self.standardise_scalars(torch.stack(means, dim=1)),
            self.scale(states.values),
            states.offsets,
        )

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(features).squeeze(1))
