"""How a model answers: greedily, by beam search, or by sampling.

The random numbers of a sample are a pure function of (seed, question id, number of the sample), one
for each token, and the token is read off the cumulative distribution at that number. So a sample
does not depend on what its question is batched with, rounding apart.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

__all__ = ["Decoding", "Sampler", "random_numbers"]

GREEDY = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}
BEAMS = {"length_penalty": 1.0, "early_stopping": False}


@dataclass(frozen=True)
class Decoding:
    """How answers are generated; by default greedily, one answer a question.

    Parameters
    ----------
    num_beams : int
        More than 1: beam search; the answers are the `num_samples` best beams.
    num_samples : int
        Answers per question. Without beams, more than 1 are sampled.
    temperature : float, optional
        Samples are drawn from softmax(logits / temperature); 1 by default. If it is given, a
        single answer is sampled as well.
    top_p : float
        Samples are drawn from the smallest set of tokens with at least this probability.

    Raises
    ------
    ValueError
        A number is out of its range, or beams and samples are mixed.
    """

    num_beams: int = 1
    num_samples: int = 1
    temperature: float | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_beams < 1 or self.num_samples < 1 or self.seed < 0:
            raise ValueError(
                f"decoding: expected at least 1 beam, 1 sample and seed 0, found {self}"
            )
        if self.temperature is not None and not 0 < self.temperature < inf:
            raise ValueError(
                f"temperature: expected more than 0, or none for greedy, found {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, found {self.top_p}")
        has_softmax = self.temperature is not None or self.top_p < 1
        if self.num_beams > 1 and has_softmax:
            raise ValueError(
                "decoding: expected beams, or a temperature and top_p, found both; leave one out"
            )
        if self.num_samples > self.num_beams > 1:
            raise ValueError(
                f"num_samples: expected at most the {self.num_beams} beams, "
                f"found {self.num_samples}"
            )

    @property
    def is_sampled(self) -> bool:
        """Whether answers are drawn at random."""
        has_softmax = self.temperature is not None or self.top_p < 1
        return self.num_beams == 1 and (self.num_samples > 1 or has_softmax)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate`; samples are greedy there, after `Sampler` has drawn."""
        if self.num_beams == 1:
            return GREEDY
        beams = {"num_beams": self.num_beams, "num_return_sequences": self.num_samples}
        return GREEDY | BEAMS | beams

    def describe(self) -> dict[str, Any]:
        """The settings that decide the answers, JSON-able."""
        if not self.is_sampled:
            return self.settings
        sampling = {
            "do_sample": True,
            "num_return_sequences": self.num_samples,
            "temperature": self.temperature or 1.0,
            "top_p": self.top_p,
            "top_k": 0,
            "seed": self.seed,
        }
        return GREEDY | sampling


class Sampler(LogitsProcessor):
    """Leaves one token of each row: the one at its random number in the cumulative distribution.

    Parameters
    ----------
    numbers : Tensor, float64 (B, max_new_tokens)
        In [0, 1), one for each token to draw.
    width : int
        Tokens of a padded prompt.
    """

    def __init__(self, decoding: Decoding, numbers: Tensor, width: int) -> None:
        self._numbers = numbers
        self._width = width
        self._warpers = LogitsProcessorList([TemperatureLogitsWarper(decoding.temperature or 1.0)])
        if decoding.top_p < 1:
            self._warpers.append(TopPLogitsWarper(decoding.top_p))

    def __call__(self, input_ids: torch.LongTensor, scores: Tensor) -> Tensor:
        """(B, T) token ids and (B, V) logits -> (B, V), all but one of each row -inf."""
        warped = self._warpers(input_ids, scores.float())
        cumulative = warped.double().softmax(dim=-1).cumsum(dim=-1)
        step = input_ids.shape[1] - self._width
        number = self._numbers[:, step, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, number, right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def random_numbers(decoding: Decoding, names: Sequence[str], n_tokens: int) -> Tensor:
    """Draw one number in [0, 1) for each token of each sample of each question.

    Returns
    -------
    Tensor, float64 (questions * samples, n_tokens)
        The samples of a question are next to each other.
    """
    numbers = []
    for name in names:
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        words = np.frombuffer(digest, "<u4").tolist()
        for sample in range(decoding.num_samples):
            rng = np.random.default_rng([decoding.seed, sample, *words])
            numbers.append(rng.random(n_tokens))
    return torch.from_numpy(np.stack(numbers))
