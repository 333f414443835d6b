"""Runs a model's generation on a batch of prompts, and cuts the answers at their end.

Prompts are padded on the left, as generation needs it. Whatever the decoding, an answer does not
depend on what its question is batched with, rounding apart.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from store.sources.huggingface.decoding import Decoding, Sampler, random_numbers
from store.sources.huggingface.padding import pad

__all__ = ["StopRule", "end_ids", "generate_answers"]

StopRule = Callable[[list[int]], bool]


def generate_answers(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    names: Sequence[str],
    max_new_tokens: int,
    decoding: Decoding,
    stop: StopRule | None = None,
) -> list[list[int]]:
    """Answer a batch of prompts.

    Parameters
    ----------
    names : sequence of str
        The question id of each prompt, which decides its samples.
    stop : callable, optional
        Whether an answer that begins with these token ids ends with the last of them.

    Returns
    -------
    list of list of int
        Token ids of the answers, `num_samples` per prompt, one prompt after the other; each at
        least one token: the token that ends it is left out unless it is the first.
    """
    ends = end_ids(model)
    filler = min(ends, default=0)  # masked before a prompt, cut off after an answer: any id will do
    width = max(map(len, prompts))
    processors = LogitsProcessorList()
    if decoding.is_sampled:
        numbers = random_numbers(decoding, names, max_new_tokens).to(model.device)
        processors.append(Sampler(decoding, numbers, width))
        prompts = [prompt for prompt in prompts for _ in range(decoding.num_samples)]
    stopping = StoppingCriteriaList()
    if stop is not None:
        stopping.append(_Stop(stop, width))
    ids, mask = pad(prompts, "left", filler, model.device)
    with torch.inference_mode(), _plain_settings(model, ends, filler):
        written = cast(Any, model).generate(  # which PreTrainedModel does not declare
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            logits_processor=processors,
            stopping_criteria=stopping,
            **decoding.settings,
        )
    return [_cut_at_end(answer, ends, stop) for answer in written[:, width:].tolist()]


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


def _cut_at_end(answer: list[int], ends: set[int], stop: StopRule | None) -> list[int]:
    """Keep what comes before the first token that ends it; that token if nothing does."""
    n_tokens = next((n for n, token in enumerate(answer) if token in ends), len(answer))
    if stop is not None and stop(answer[:n_tokens]):
        n_tokens = next(n for n in range(n_tokens) if stop(answer[: n + 1]))
    return answer[: max(n_tokens, 1)]
