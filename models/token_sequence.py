"""The answer as a sequence of tokens: states of middle layers and what the model thought of each.

Made to be trained on top of a baseline of uncertainty numbers (`--on-top-of`), where it begins with
logits of 0, as every detector does there.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from models.detector import Detector, Outputs
from models.standardise import Standardise, build_scale
from models.tokens import (
    answer_or_all_tokens,
    max_by_trace,
    offsets_of_kept,
    positions,
    softmax_by_trace,
    sum_by_trace,
)
from store import Batch, Ragged

__all__ = ["TokenSequence", "middle_layers"]

DEPTHS = (0.4, 0.6, 0.8)  # of the layers that are read, as shares of all layers
N_CANDIDATES = 10  # log-probabilities of likeliest tokens that are read
WIDTH = 64


def middle_layers(n_layers: int) -> list[int]:
    """Positions of the layers at 40, 60 and 80% of the depth, at least the first; no two alike."""
    return list(dict.fromkeys(max(0, round(depth * n_layers) - 1) for depth in DEPTHS))


class AnswerTokens(NamedTuple):
    """The tokens of the answers, packed, and where their states are."""

    # (n_states, n_layers, d): of the tokens and of each token right before an answer, as stored
    states: Tensor
    # (n_tokens,) int64: row of `states` of each token, and of the one before it
    here: Tensor
    before: Tensor
    follows: Tensor  # (n_tokens,) bool: whether there is a token before it
    offsets: Tensor  # (B + 1,) int64


def gather_states(column: Ragged, in_answer: Tensor) -> AnswerTokens:
    """The states of the answers' tokens and of the tokens right before them."""
    follows = positions(column.offsets) > 0  # (n_all,)
    is_before = torch.cat([(in_answer & follows)[1:], in_answer.new_zeros(1)])
    read = in_answer | is_before
    row = read.cumsum(0) - 1  # of a token that is read
    here = row[in_answer]
    return AnswerTokens(
        column.values[read],
        here,
        (here - 1).clamp(min=0),
        follows[in_answer],
        offsets_of_kept(in_answer, column.offsets),
    )


class TokenReader(nn.Module):
    """Each token with the one before it through an MLP, then attention and maximum over tokens.

    A token has `n_states` = k * d numbers of its states, and `n_numbers` = m of its prediction.

    Shapes
    ------
    states (n_states, k, d), numbers (n_tokens, m), and the fields of `AnswerTokens`
    -> (B, 2 WIDTH) float32
    """

    def __init__(self, n_states: int, n_numbers: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(n_states, 2 * WIDTH)
        self.numbers = nn.Linear(n_numbers, WIDTH)
        self.token = nn.Sequential(
            nn.GELU(), nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout)
        )
        self.score = nn.Linear(WIDTH, 1)

    def forward(
        self,
        states: Tensor,
        numbers: Tensor,
        here: Tensor,
        before: Tensor,
        follows: Tensor,
        offsets: Tensor,
    ) -> Tensor:
        as_current, as_previous = self.project(states.flatten(1)).chunk(2, dim=1)
        previous = as_previous[before] * follows[:, None]
        tokens = self.token(as_current[here] + previous + self.numbers(numbers)).float()
        weights = softmax_by_trace(self.score(tokens).float().squeeze(1), offsets)
        attended = sum_by_trace(weights[:, None] * tokens, offsets)
        is_empty = (offsets.diff() == 0)[:, None]  # it has no largest
        largest = max_by_trace(tokens, offsets).masked_fill(is_empty, 0.0)
        return torch.cat([attended, largest], dim=1)


class TokenSequence(Detector):
    """Each token of the answer, read on two sides, then attention and maximum over the tokens.

    No paper's method, but what several agree on: a token is the states of three middle layers,
    behind it (t, what the model made of it) and before it (t - 1, what predicted it), and the
    numbers of its prediction: log-probability, entropy, log-probabilities of the likeliest tokens,
    and the difference of the two largest probabilities. States and numbers are standardised, mapped
    to one vector and through a small MLP. The answer is the mean of its tokens weighted by
    attention, and the maximum of each dimension; another small MLP gives the logit.

    Packed tokens stay packed: nothing is padded to the longest answer. Where the prompt's length is
    unknown, all tokens of a trace are its answer. Numbers that are missing (NaN at token 0) stand
    at their mean; token 0 gets nothing from a token before it; an empty answer is a vector of
    zeros.

    `n_candidates` is K of `topk_logprob`, of which the 10 likeliest are read.

    Shapes
    ------
    batch["hidden_states"] (n_tokens, L, d), batch["logprob"], batch["entropy"] (n_tokens,),
    batch["topk_logprob"] (n_tokens, K) -> logits (B,)
    """

    columns = (
        "hidden_states",
        "logprob",
        "entropy",
        "topk_logprob",
        "prompt_len",
        "answer_len",
    )
    options = ("dropout", "input_scale")
    default_scale = "standard"
    tokens_read = "answer and before"

    def __init__(
        self,
        hidden_size: int,
        n_layers: int,
        n_candidates: int,
        dropout: float = 0.3,
        input_scale: str | None = None,
    ) -> None:
        super().__init__()
        self.layers_read = middle_layers(n_layers)
        self.n_candidates = min(n_candidates, N_CANDIDATES)
        n_numbers = 2 + self.n_candidates + (self.n_candidates > 1)
        self.scale = build_scale(
            input_scale or self.default_scale, len(self.layers_read), hidden_size, dropout=dropout
        )
        self.standardise_numbers = Standardise(n_numbers)
        self.reader = TokenReader(len(self.layers_read) * hidden_size, n_numbers, dropout)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout))
        self.classifier = nn.Linear(WIDTH, 1)

    @classmethod
    def build(
        cls, item_shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any], **sizes: int
    ) -> Self:
        (n_candidates,) = item_shapes["topk_logprob"]
        return super().build(item_shapes, settings, n_candidates=n_candidates, **sizes)

    def encode(self, batch: Batch) -> Tensor:
        column = batch.ragged("hidden_states")
        in_answer = answer_or_all_tokens(batch, column.offsets)
        tokens = gather_states(column._replace(values=self.states(column.values)), in_answer)
        numbers = self.standardise_numbers(self.numbers(batch)[in_answer])
        states = self.scale(tokens.states)
        return self.run(self.reader, states, numbers, *tokens[1:])

    def numbers(self, batch: Batch) -> Tensor:
        """What the model thought of each token, (n_all, m) float32."""
        logprob = batch.ragged("logprob").values.float()
        entropy = batch.ragged("entropy").values.float()
        candidates = batch.ragged("topk_logprob").values[:, : self.n_candidates].float()
        numbers = [logprob[:, None], entropy[:, None], candidates]
        if self.n_candidates > 1:
            first, second = candidates[:, :2].exp().unbind(1)
            numbers.append((first - second)[:, None])
        return torch.cat(numbers, dim=1)

    def classify(self, features: Tensor) -> Outputs:
        return Outputs(self.classifier(self.head(features)).squeeze(1))
