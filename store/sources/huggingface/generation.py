"""How a model answers: greedily, by beam search or by sampling; a batch of prompts at a time.

Prompts are padded on the left, as generation needs it, and the answers cut at their end. The random
numbers of a sample are a pure function of (seed, question id, number of the sample), one for each
token, and the token is read off the cumulative distribution at that number. So an answer does not
depend on what its question is batched with, rounding apart.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from store.errors import SchemaError
from store.sources.huggingface.batching import run_apart, share_factors
from store.sources.huggingface.module_outputs import once_a_model

__all__ = [
    "STOP_RULE",
    "Decoding",
    "check_positions",
    "cut_at_end",
    "end_ids",
    "generate_answers",
    "go_together",
    "heeds_padding",
    "next_logits",
    "pad",
    "stop_rule",
]

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
# of the largest logit: in bfloat16 rounding is below 0.01, and what padding changes above 0.08
ROUNDING = 0.04
StopRule = Callable[[list[int]], bool]
STOP_RULE = "a stop of nothing but space ends an answer behind its first words only"


@dataclass(frozen=True)
class Decoding:
    """How answers are generated; by default greedily, one answer a question.

    Raises ValueError: a number is out of its range, or beams and samples are mixed.
    """

    num_beams: int = 1  # more than 1: beam search; the answers are the `num_samples` best beams
    num_samples: int = 1  # answers per question. Without beams, more than 1 are sampled
    # samples are drawn from softmax(logits / temperature); 1 by default. If it is given, a single
    # answer is sampled as well
    temperature: float | None = None
    # samples are drawn from the smallest set of tokens with at least this probability
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 64  # longest answer
    # text that ends an answer; the token that completes it is left out like the end-of-sequence
    # token. For models that never end an answer themselves
    stop: str | None = None

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
        if self.num_beams > 1 and self._has_softmax:
            raise ValueError(
                "decoding: expected beams, or a temperature and top_p, found both; leave one out"
            )
        if self.num_samples > self.num_beams > 1:
            raise ValueError(
                f"num_samples: expected at most the {self.num_beams} beams, "
                f"found {self.num_samples}"
            )

    @property
    def is_default(self) -> bool:
        """Whether nothing is asked for but a length and a stop."""
        return self == Decoding(max_new_tokens=self.max_new_tokens, stop=self.stop)

    @property
    def _has_softmax(self) -> bool:
        return self.temperature is not None or self.top_p < 1

    @property
    def is_sampled(self) -> bool:
        return self.num_beams == 1 and (self.num_samples > 1 or self._has_softmax)

    @property
    def num_rows(self) -> int:
        """Rows of a batch that a question needs: of beams `generate` makes its own."""
        return self.num_samples if self.is_sampled else 1

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `generate`; samples are greedy there, after `Sampler` has drawn."""
        if self.num_beams == 1:
            return GREEDY
        beams = {"num_beams": self.num_beams, "num_return_sequences": self.num_samples}
        return GREEDY | BEAMS | beams

    def describe(self) -> dict[str, Any]:
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

    `numbers`, float64 (B, max_new_tokens): in [0, 1), one for each token to draw. `width`: tokens
    of a padded prompt.
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

    Returns Tensor, float64 (questions * samples, n_tokens): the samples of a question are next to
    each other.
    """
    numbers = []
    for name in names:
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        words = np.frombuffer(digest, "<u4").tolist()
        for sample in range(decoding.num_samples):
            rng = np.random.default_rng([decoding.seed, sample, *words])
            numbers.append(rng.random(n_tokens))
    return torch.from_numpy(np.stack(numbers))


def pad(
    sequences: Sequence[list[int]],
    side: Literal["left", "right"],
    filler: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Pad sequences with fillers: ids, and a mask that is 0 at the fillers; int64 (B, T)."""
    rows = [torch.tensor(ids) for ids in sequences]
    ones = [torch.ones_like(row) for row in rows]
    ids = pad_sequence(rows, batch_first=True, padding_value=filler, padding_side=side)
    mask = pad_sequence(ones, batch_first=True, padding_side=side)
    return ids.to(device), mask.to(device)


def stop_rule(tokenizer: PreTrainedTokenizerBase, stop: str | None) -> StopRule | None:
    """Whether an answer contains the text that ends it (`STOP_RULE`); None without such a text."""
    if not stop:
        return None
    if stop.isspace():
        # some models begin with a new line, which would leave an empty answer
        return lambda answer_ids: stop in str(tokenizer.decode(answer_ids)).lstrip()
    return lambda answer_ids: stop in tokenizer.decode(answer_ids)


def generate_answers(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    names: Sequence[str],
    decoding: Decoding,
    stop: StopRule | None = None,
) -> list[list[int]]:
    """Answer a batch of prompts.

    `names`: the question id of each prompt, which decides its samples. `stop`: whether an answer
    that begins with these token ids ends with the last of them.

    Returns token ids of the answers, `num_samples` per prompt, one prompt after the other; each at
    least one token: the token that ends it is left out unless it is the first. Raises SchemaError
    for a model that would answer from positions that are not its own, or mix its beams.
    """
    check_positions(model)
    if decoding.num_beams > 1 and not _goes_on_as_alone(model, (4, 4)):
        raise SchemaError(
            f"model {model.name_or_path!r}: expected one that goes on with several beams as with "
            f"each alone, found {type(model).__name__}; leave out --num-beams"
        )
    rows = [prompt for prompt in prompts for _ in range(decoding.num_rows)]
    numbers: Sequence[Tensor | None] = [None] * len(rows)
    if decoding.is_sampled:
        drawn = random_numbers(decoding, names, decoding.max_new_tokens)
        numbers = list(drawn.to(model.device))
    found = run_apart(
        partial(_answer_rows, model, decoding, stop),
        list(zip(rows, numbers, strict=True)),
        together=go_together(model, rows, decoding.max_new_tokens),
    )
    return [answer for answers in found for answer in answers]


def _answer_rows(
    model: PreTrainedModel,
    decoding: Decoding,
    stop: StopRule | None,
    rows: Sequence[tuple[list[int], Tensor | None]],
) -> list[list[list[int]]]:
    """The answers to each prompt, which comes with the random numbers of its sample."""
    ends = end_ids(model)
    prompts = [prompt for prompt, _ in rows]
    numbers = [of_row for _, of_row in rows if of_row is not None]
    width = max(map(len, prompts))
    processors = LogitsProcessorList()
    if numbers:
        processors.append(Sampler(decoding, torch.stack(numbers), width))
    stopping = StoppingCriteriaList()
    if stop is not None:
        stopping.append(_Stop(stop, width))
    written = _generate(
        model,
        prompts,
        ends,
        max_new_tokens=decoding.max_new_tokens,
        logits_processor=processors,
        stopping_criteria=stopping,
        **decoding.settings,
    )
    answers = [cut_at_end(answer, ends, stop) for answer in written[:, width:].tolist()]
    n = len(answers) // len(rows)
    return [answers[first : first + n] for first in range(0, len(answers), n)]


def _generate(
    model: PreTrainedModel, prompts: Sequence[list[int]], ends: set[int], **settings: object
) -> Any:
    """What `generate` gives for a batch of prompts."""
    filler = min(end_ids(model), default=0)  # masked before a prompt, cut off after an answer
    ids, mask = pad(prompts, "left", filler, model.device)
    with torch.inference_mode(), _plain_settings(model, ends, filler):
        return cast(Any, model).generate(  # which PreTrainedModel does not declare
            input_ids=ids, attention_mask=mask, **settings
        )


def next_logits(
    model: PreTrainedModel, prompts: Sequence[list[int]], n: int = 1, **settings: object
) -> Tensor:
    """The logits (B, n, V) of the tokens behind a batch of prompts, which are drawn greedily."""
    found = _generate(
        model,
        prompts,
        set(),
        max_new_tokens=n,
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
        **GREEDY,
    )
    return torch.stack(found.logits, dim=1).float()


def go_together(model: PreTrainedModel, prompts: Sequence[list[int]], n_new: int) -> bool:
    """Whether prompts are answered in a batch as they are alone."""
    if len(prompts) > 1 and not heeds_padding(model):
        return False
    return share_factors(model, [len(prompt) for prompt in prompts], n_new)


def heeds_padding(model: PreTrainedModel) -> bool:
    """Whether a model goes on with padded prompts as with each alone; recurrent ones may not."""
    return _goes_on_as_alone(model, (6, 2))


@once_a_model
def _goes_on_as_alone(model: PreTrainedModel, lengths: tuple[int, ...]) -> bool:
    """Whether a model goes on with a batch of prompts of these lengths as with each alone.

    Two tokens tell: a pass over the prompts, and one with its cache.
    """
    prompts = [_ordinary_ids(model, i, n) for i, n in enumerate(lengths)]

    forced = {"logits_processor": LogitsProcessorList([_one_token])}
    together = next_logits(model, prompts, 2, **forced)
    alone = torch.cat([next_logits(model, [prompt], 2, **forced) for prompt in prompts])
    # written so that NaN, of a model that overflows, is no difference
    return not (together - alone).abs().max() > ROUNDING * alone.abs().max()


@once_a_model
def check_positions(model: PreTrainedModel) -> None:
    """Raise SchemaError if a model begins to count positions elsewhere than `generate`, at 0."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return
    ids = torch.tensor([_ordinary_ids(model, 0, 4)], device=model.device)
    from_0 = torch.arange(4, device=model.device)[None]
    with torch.inference_mode():
        own = model(input_ids=ids, use_cache=False).logits.float()
        found = model(input_ids=ids, position_ids=from_0, use_cache=False).logits.float()
    if (own - found).abs().max() > ROUNDING * own.abs().max():
        raise SchemaError(
            f"model {model.name_or_path!r}: expected positions from 0, from where transformers "
            f"generates, found {type(model).__name__}, which counts otherwise; it can neither "
            "answer nor judge, and only given answers can be extracted of it"
        )


def _ordinary_ids(model: PreTrainedModel, start: int, n: int) -> list[int]:
    """Ids from the middle of the vocabulary, where no special tokens are."""
    n_ids = model.config.get_text_config().vocab_size
    return [(n_ids // 2 + i) % n_ids for i in range(start, start + n)]


def _one_token(ids: Tensor, scores: Tensor) -> Tensor:
    """Leave one token: the same for all, whatever the scores (B, V) are."""
    left = torch.full_like(scores, -inf)
    left[:, scores.shape[1] // 2] = 0.0
    return left


@contextmanager
def _plain_settings(model: PreTrainedModel, ends: set[int], filler: int) -> Iterator[None]:
    """Leave out the model's own settings.

    generate() takes from them whatever it is not given, and a repetition penalty there (Qwen2 ships
    1.1) or a suppressed token would silently change greedy decoding.
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
    """Decides for each answer of a batch whether it is at its end."""

    def __init__(self, stop: StopRule, width: int) -> None:
        self._stop = stop
        self._width = width

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> torch.BoolTensor:
        """(B, T) token ids -> bool (B,)."""
        ended = [self._stop(answer) for answer in input_ids[:, self._width :].tolist()]
        return cast(torch.BoolTensor, torch.tensor(ended, device=input_ids.device))


def end_ids(model: PreTrainedModel) -> set[int]:
    """The ids that end an answer; a model has none, one or several."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return set()
    return {ends} if isinstance(ends, int) else set(ends)


def cut_at_end(answer: list[int], ends: set[int], stop: StopRule | None) -> list[int]:
    """Keep what comes before the first token that ends it; that token if nothing does."""
    # without an id that ends answers, transformers fills up shorter beams with -1
    are_ends = (token in ends or token < 0 for token in answer)
    n_tokens = next((n for n, is_end in enumerate(are_ends) if is_end), len(answer))
    if stop is not None and stop(answer[:n_tokens]):
        n_tokens = next(n for n in range(n_tokens) if stop(answer[: n + 1]))
    return answer[: max(n_tokens, 1)]
