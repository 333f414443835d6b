"""Samples of answers that depend on nothing but their seed.

The random numbers of a sample are a pure function of (seed, question id, number of the sample), one
for each token, and the token is read off the cumulative distribution at that number. So a sample
does not depend on what its question is batched with, rounding apart.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from store.sources.huggingface.decoding import Decoding

__all__ = ["Sampler", "random_numbers"]


class Sampler(LogitsProcessor):
    """Leaves one token of each row: the one at its random number in the cumulative distribution.

    Parameters
    ----------
    decoding : Decoding
        Temperature and top_p.
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

    Parameters
    ----------
    decoding : Decoding
        Seed and number of samples.
    names : sequence of str
        Question ids.
    n_tokens : int
        Tokens of the longest answer.

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
