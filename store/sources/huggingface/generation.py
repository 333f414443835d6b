"""How a model answers: greedily, by beam search, or by samples that depend on nothing but their
seed.

Prompts are padded on the left, as generation needs it. Whatever the decoding, an answer does not
depend on what its question is batched with, rounding apart: a sample's random numbers are a pure
function of (seed, question id, number of the sample), one for each token, and the token is read off
the cumulative distribution at that number.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

__all__ = ["GREEDY", "Decoding", "end_ids", "generate_answers", "pad"]

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
    """How answers are made; by default greedily, one to a question.

    Parameters
    ----------
    num_beams : int
        More than 1: beam search; the answers are the `num_samples` best beams.
    num_samples : int
        Answers to each question. Without beams, more than 1 are sampled.
    temperature : float, optional
        Samples are drawn from softmax(logits / temperature); 1 by default. Given, a single answer
        is sampled, too.
    top_p : float
        Samples are drawn from the smallest set of tokens with this much probability.
    seed : int
        Of the samples.

    Raises
    ------
    ValueError
        A number is out of its range, or the two ways of decoding are mixed.
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
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature: expected more than 0, or none for greedy, found {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, found {self.top_p}")
        if self.num_beams == 1:
            return
        if self.temperature is not None or self.top_p < 1:
            raise ValueError(
                "decoding: expected beams, or a temperature and top_p, found both; leave one out"
            )
        if self.num_samples > self.num_beams:
            raise ValueError(
                f"num_samples: expected at most the {self.num_beams} beams, found {self.num_samples}"
            )

    @property
    def sampled(self) -> bool:
        """Whether answers are drawn at random."""
        return self.num_beams == 1 and (
            self.num_samples > 1 or self.temperature is not None or self.top_p < 1
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate`; samples are drawn by a processor of ours, behind which greedy
        decoding picks."""
        if self.num_beams == 1:
            return GREEDY
        return (
            GREEDY | BEAMS | {"num_beams": self.num_beams, "num_return_sequences": self.num_samples}
        )

    def describe(self) -> dict[str, Any]:
        """The settings that decide the answers, JSON-able."""
        if not self.sampled:
            return self.settings
        drawn = {"temperature": self.temperature or 1.0, "top_p": self.top_p, "top_k": 0}
        return (
            GREEDY
            | drawn
            | {"do_sample": True, "num_return_sequences": self.num_samples, "seed": self.seed}
        )


def generate_answers(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    decoding: Decoding = Decoding(),
    names: Sequence[str] | None = None,
    stop: Callable[[list[int]], bool] | None = None,
) -> list[list[int]]:
    """Answer a batch of prompts.

    Parameters
    ----------
    model : PreTrainedModel
        Causal model.
    prompts : sequence of list of int
        Token ids of each prompt.
    max_new_tokens : int
        Longest answer.
    decoding : Decoding
        How; greedily by default.
    names : sequence of str, optional
        The question id of each prompt, which decides its samples; the prompts' numbers by default.
    stop : callable, optional
        Whether an answer that begins with these token ids has come to its end, with the last of
        them.

    Returns
    -------
    list of list of int
        Token ids of the answers, `num_samples` to each prompt, one prompt after the other; each at
        least one token: the token that ends it is left out unless it is the first.
    """
    ends = end_ids(model)
    # masked before a prompt, cut off behind an answer: any id will do
    filler = min(ends, default=0)
    processors = LogitsProcessorList()
    width = max(map(len, prompts))
    if decoding.sampled:
        names = list(map(str, range(len(prompts)))) if names is None else names
        numbers = _random_numbers(decoding, names, max_new_tokens)
        prompts = [prompt for prompt in prompts for _ in range(decoding.num_samples)]
        processors.append(_Sampler(decoding, numbers.to(model.device), width))
    ids, mask = pad(prompts, [width - len(prompt) for prompt in prompts], filler, model.device)
    with torch.inference_mode(), _plain_settings(model, ends, filler):
        written = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            logits_processor=processors,
            stopping_criteria=StoppingCriteriaList([_Stop(stop, width)] if stop else []),
            **decoding.settings,
        )
    return [_cut_at_end(answer, ends, stop) for answer in written[:, width:].tolist()]


@contextmanager
def _plain_settings(model: PreTrainedModel, ends: set[int], filler: int) -> Iterator[None]:
    """Leave out the model's own settings: generate() takes from them whatever it is not given, and
    a repetition penalty there (Qwen2 ships 1.1) or a suppressed token would bend greedy decoding
    without a word.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig(
        eos_token_id=sorted(ends) or None, pad_token_id=filler
    )
    try:
        yield
    finally:
        model.generation_config = own


class _Stop(StoppingCriteria):
    """Tells which answers of a batch are at their end, for themselves each."""

    def __init__(self, stop: Callable[[list[int]], bool], width: int) -> None:
        self._stop, self._width = stop, width

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        """(B, T) token ids -> bool (B,)."""
        ended = [self._stop(answer) for answer in input_ids[:, self._width :].tolist()]
        return torch.tensor(ended, device=input_ids.device)


class _Sampler(LogitsProcessor):
    """Leaves one token of each row: the one at its random number in the cumulative distribution."""

    def __init__(self, decoding: Decoding, numbers: Tensor, width: int) -> None:
        # (B, max_new_tokens), tokens of a padded prompt
        self._numbers, self._width = numbers, width
        self._warpers = LogitsProcessorList([TemperatureLogitsWarper(decoding.temperature or 1.0)])
        if decoding.top_p < 1:
            self._warpers.append(TopPLogitsWarper(decoding.top_p))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(B, T) token ids and (B, V) logits -> (B, V), all but one of each row -inf."""
        warped = self._warpers(input_ids, scores.float())
        cumulative = warped.double().softmax(dim=-1).cumsum(dim=-1)
        number = self._numbers[:, input_ids.shape[1] - self._width, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, number, right=True).clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def _random_numbers(decoding: Decoding, names: Sequence[str], n_tokens: int) -> Tensor:
    """One number in [0, 1) for each token of each sample: float64 (prompts * samples, n_tokens)."""
    hashed = [
        np.frombuffer(hashlib.blake2b(name.encode(), digest_size=16).digest(), "<u4").tolist()
        for name in names
    ]
    keys = [
        [decoding.seed, sample, *words]
        for words in hashed
        for sample in range(decoding.num_samples)
    ]
    return torch.from_numpy(np.stack([np.random.default_rng(key).random(n_tokens) for key in keys]))


def pad(
    sequences: Sequence[list[int]], n_before: Sequence[int], filler: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Put sequences into one array, each after its `n_before` fillers: ids and mask, int64 (B,
    T)."""
    width = max(n + len(ids) for n, ids in zip(n_before, sequences, strict=True))
    ids = torch.full((len(sequences), width), filler)
    mask = torch.zeros_like(ids)
    for row, (n, sequence) in enumerate(zip(n_before, sequences, strict=True)):
        ids[row, n : n + len(sequence)] = torch.tensor(sequence)
        mask[row, n : n + len(sequence)] = 1
    return ids.to(device), mask.to(device)


def end_ids(model: PreTrainedModel) -> set[int]:
    """The ids that end an answer; a model has none, one or several."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return set()
    return {ends} if isinstance(ends, int) else set(ends)


def _cut_at_end(
    answer: list[int], ends: set[int], stop: Callable[[list[int]], bool] | None
) -> list[int]:
    """Keep what comes before the first token that ends it (if nothing does: that token); behind it
    is filler."""
    n_tokens = next((n for n, token in enumerate(answer) if token in ends), len(answer))
    if stop and stop(answer[:n_tokens]):
        n_tokens = next(n for n in range(n_tokens) if stop(answer[: n + 1]))
    return answer[: max(n_tokens, 1)]
