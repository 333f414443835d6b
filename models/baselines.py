"""The baselines that a detector has to beat: simple models of little information.

Each is a probe, a logistic regression on features of one kind: a constant (the majority), how sure
the language model was of its answer (log-probabilities and entropies of the answer's tokens,
reduced in several ways, and all of these together), one layer of `hs_last`, and one layer of the
mean over the answer's states. All of them give probabilities, so every metric applies to them.

`logprob[t]`, `entropy[t]` and `topk_logprob[t]` are of the distribution that predicted token t from
the tokens before it, so the entries at the answer's tokens are about the answer's choices; nothing
predicted token 0: NaN there.

Two controls are such probes as well: of the prompt's state, and of the answer's length. A detector
that knows no more than they do has learned which questions are hard, or which answers are long.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models.probe import Probe
from models.samples import number_of
from models.tokens import reduce_over_answer
from store import Batch, Ragged

__all__ = [
    "ANSWER_LENGTH",
    "ENTROPY",
    "FIRST_LOGPROB",
    "LOGREG_BEST",
    "LOGREG_FIRST",
    "LOGREG_MEAN",
    "MAJORITY",
    "MARGIN",
    "MAX_ENTROPY",
    "MEAN_LOGPROB",
    "MIN_LOGPROB",
    "PERPLEXITY",
    "PROMPT_STATE",
    "SUM_LOGPROB",
    "UNCERTAINTY",
    "states_by_layer",
    "uncertainty",
]


def constant(batch: Batch) -> Tensor:
    """Zeros (B, 1, 1): the regression can only learn the base rate of train."""
    return torch.zeros(len(batch), 1, 1)


def reduced(batch: Batch, name: str, how: str, n_tokens: int | None = None) -> Tensor:
    """A column of numbers (n_tokens,) over the answer, (B, 1, 1) float32; NaN of an empty one.

    `how` and `n_tokens` are those of `reduce_over_answer`.
    """
    return reduce_over_answer(batch, batch.ragged(name), how, n_tokens)[:, None, None]


# Log-probabilities and entropies in nats. The negative of the first is the log of the perplexity,
# the simplest of the uncertainty scores.
mean_logprob = partial(reduced, name="logprob", how="mean")
sum_logprob = partial(reduced, name="logprob", how="sum")
min_logprob = partial(reduced, name="logprob", how="amin")
first_logprob = partial(reduced, name="logprob", how="sum", n_tokens=1)
mean_entropy = partial(reduced, name="entropy", how="mean")
max_entropy = partial(reduced, name="entropy", how="amax")


def perplexity(batch: Batch) -> Tensor:
    """exp(-mean log-probability of the answer's tokens), (B, 1, 1) float32.

    It ranks traces as `mean_logprob` does; the regression sees it on another scale. NaN for an
    empty answer.
    """
    return (-mean_logprob(batch)).exp()


def mean_margin(batch: Batch) -> Tensor:
    """Mean difference of the two largest probabilities at the answer's tokens, (B, 1, 1) float32.

    NaN for an empty answer, and where the store keeps a single candidate of each token.
    """
    return reduce_over_answer(batch, margins(batch), "mean")[:, None, None]


def margins(batch: Batch) -> Ragged:
    """Difference of the two largest probabilities at each token, (n_tokens,) float32.

    NaN where the store keeps a single candidate of each token.
    """
    values, offsets = batch.ragged("topk_logprob")  # (n_tokens, K), (B + 1,)
    if values.shape[1] < 2:
        return Ragged(torch.full((len(values),), torch.nan), offsets)
    first, second = values[:, :2].float().exp().unbind(1)
    return Ragged(first - second, offsets)


def surprise(batch: Batch) -> Tensor:
    """Minus the log-probability of each token in nats, (n_tokens,)."""
    return -batch.ragged("logprob").values


def token_entropy(batch: Batch) -> Tensor:
    """Entropy of the distribution that predicted each token in nats, (n_tokens,)."""
    return batch.ragged("entropy").values


def closeness(batch: Batch) -> Tensor:
    """How little the likeliest token was preferred to the second, (n_tokens,)."""
    return -margins(batch).values


def uncertainty(batch: Batch) -> Tensor:
    """Everything that log-probabilities and entropies tell of the answer, (B, 1, 22) float32.

    Of each of the log-probability, the entropy, the margin and the probability that the candidates
    have together: the sum, the mean, the least, the largest and the value at the first token. Then
    the length of the answer, and the log-probability of its end, NaN where the store has none. All
    but these two are NaN for an empty answer.
    """
    candidates = batch.ragged("topk_logprob")  # (n_tokens, K), (B + 1,)
    together = candidates.values.float().exp().sum(dim=1)
    columns = [
        batch.ragged("logprob"),
        batch.ragged("entropy"),
        margins(batch),
        candidates._replace(values=together),
    ]
    numbers = [number for column in columns for number in reductions(batch, column)]
    length = batch.fixed("answer_len").float()
    end = torch.full_like(length, torch.nan)
    if "eos_logprob" in batch.columns:
        end = batch.fixed("eos_logprob").float()
    return torch.stack([*numbers, length, end], dim=1)[:, None]


def reductions(batch: Batch, column: Ragged) -> list[Tensor]:
    """Sum, mean, least, largest and first value over the answer's tokens, (B,) float32 each."""
    numbers = [reduce_over_answer(batch, column, how) for how in ("sum", "mean", "amin", "amax")]
    return [*numbers, reduce_over_answer(batch, column, "sum", n_tokens=1)]


def first_layer(batch: Batch) -> Tensor:
    """State of the last token at the lowest layer (B, 1, d): how much the input alone tells."""
    return batch.fixed("hs_last")[:, :1]


def states_by_layer(column: str, **options: Any) -> Probe:
    """The probe of one state a trace at each layer (B, L, d), as stored."""
    return Probe((column,), partial(Batch.fixed, name=column), by_layer=True, **options)


MAJORITY = Probe(("question_id",), constant)
ANSWER = ("prompt_len", "answer_len")
of_answer = partial(Probe, tokens_read="answer")
# scores of tokens only once: those of the other log-probabilities and entropies would be the same
MEAN_LOGPROB = of_answer(("logprob", *ANSWER), mean_logprob, of_tokens=surprise)
PERPLEXITY = of_answer(("logprob", *ANSWER), perplexity)
ENTROPY = of_answer(("entropy", *ANSWER), mean_entropy, of_tokens=token_entropy)
SUM_LOGPROB = of_answer(("logprob", *ANSWER), sum_logprob)
MIN_LOGPROB = of_answer(("logprob", *ANSWER), min_logprob)
FIRST_LOGPROB = Probe(("logprob", *ANSWER), first_logprob, tokens_read="first of answer")
MARGIN = of_answer(("topk_logprob", *ANSWER), mean_margin, of_tokens=closeness)
MAX_ENTROPY = of_answer(("entropy", *ANSWER), max_entropy)
LOGREG_FIRST = Probe(("hs_last",), first_layer, layers_read=(0,))
LOGREG_BEST = states_by_layer("hs_last")
LOGREG_MEAN = states_by_layer("hs_mean")
UNCERTAINTY = of_answer(
    ("logprob", "entropy", "topk_logprob", *ANSWER), uncertainty, optional=("eos_logprob",)
)


PROMPT_STATE = states_by_layer("hs_prompt", sees="prompt")
ANSWER_LENGTH = replace(number_of("answer_len"), sees="length")
