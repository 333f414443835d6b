"""Scores of single tokens as a model writes them, and a rule that ends an answer by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor
from transformers import StoppingCriteria

from store import Batch, Ragged
from store.sources.huggingface.watched_generation import WHOLE
from train.errors import ConfigError
from train.library.live_methods import TokenMethod, with_all_layers

__all__ = ["Stopping", "Token", "TokenStream"]


class Token(NamedTuple):
    """A token of an answer, as soon as its scores are known."""

    sequence: int  # its row in `Watch.scores`
    position: int  # in the answer, from 0
    id: int
    # by method, of those that score tokens one by one: what `predict --tokens` gives
    scores: dict[str, float]


@dataclass
class TokenStream:
    """The tokens of one call of `generate` as they come; `numbers` are the layers of the run."""

    methods: Mapping[str, TokenMethod]
    numbers: Sequence[int]
    dtype: torch.dtype  # of states
    ends: set[int]
    first: int  # row of the first sequence
    listeners: Sequence[Callable[[Token], None]]
    rows: list[list[Token]] = field(default_factory=list)  # of each sequence
    ended: set[int] = field(default_factory=set)

    def take(
        self, tokens: Tensor, states: Mapping[int, Tensor], described: Mapping[str, NDArray]
    ) -> None:
        """Score the tokens (B,) of a pass, from their states (B, d) by layer and predictions."""
        batch = self._batch(len(tokens), states, described)
        found = {name: method.score(batch) for name, method in self.methods.items()}
        if not self.rows:
            self.rows += [[] for _ in tokens]
        for i, token in enumerate(tokens.tolist()):
            if i in self.ended:
                continue
            if token in self.ends:
                self.ended.add(i)
                if self.rows[i]:  # an answer may be nothing but its end
                    continue
            scores = {name: float(one[i]) for name, one in found.items()}
            came = Token(self.first + i, len(self.rows[i]), token, scores)
            self.rows[i].append(came)
            for listener in self.listeners:
                listener(came)

    def scores(self) -> list[dict[str, list[float]]]:
        """Of each sequence, method -> a score a token."""
        return [
            {name: [one.scores[name] for one in row] for name in self.methods} for row in self.rows
        ]

    def _batch(
        self, n: int, states: Mapping[int, Tensor], described: Mapping[str, NDArray]
    ) -> Batch:
        """Each token as a trace of its own, whose layers that nothing reads are 0."""
        offsets = torch.arange(n + 1)
        columns: dict[str, Any] = {
            name: Ragged(torch.from_numpy(values), offsets) for name, values in described.items()
        }
        if states:
            some = torch.stack([*states.values()], dim=1).to("cpu", self.dtype)
            columns[WHOLE] = Ragged(with_all_layers(some, [*states], self.numbers), offsets)
        return Batch(torch.arange(n), columns)


class Stopping(StoppingCriteria):
    """Ends an answer at a token that is a hallucination with a probability of at least `at`.

    It is asked when the next token was drawn, with which the answer ends.

    Attributes
    ----------
    ended
        Of each sequence of the last call, whether it was ended.
    """

    def __init__(self, stream: Callable[[], TokenStream | None], names: list[str], at: float):
        self.stream = stream
        self.names = names
        self.at = at
        self.ended: list[bool] = []

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Any:
        """(B, T) token ids -> bool (B,)."""
        stream = self.stream()
        if stream is None:
            raise ConfigError("stopping: expected generate of the model that is watched, inside")
        rows = stream.rows or [[] for _ in input_ids]
        self.ended = [any(map(self._is_risky, row)) for row in rows]
        return torch.tensor(self.ended, device=input_ids.device)

    def _is_risky(self, token: Token) -> bool:
        return any(expit(token.scores[name]) >= self.at for name in self.names)
