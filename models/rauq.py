"""RAUQ: probabilities of the answer, carried on by attention (Vazhentsev et al. 2025).

arXiv:2505.20045. In each layer, the head whose attention of the answer's tokens to the token before
them is largest on average is chosen, trace by trace. The confidence of the first token is its
probability p_1; then c_i = alpha p_i + (1 - alpha) a_i c_{i-1}, with a_i the chosen head's
attention of token i to token i - 1. A layer's score is the mean of -log c_i, and the largest of the
layers in the middle third (as the authors' code has it, of the layers that are read) is the
trace's. Nothing is learned: the regression only turns the score into a probability.

The authors take an alpha of 0.2 for question answering and translation, and 0.5 for models that
follow instructions; here validation chooses between the two. (For summaries they take 0.) A token
without a log-probability, which is token 0 of a trace without a prompt, does not count.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from models.probe import Probe
from models.tokens import (
    SKIPPED,
    answer_tokens,
    count_by_trace,
    mean_by_trace,
    positions_in_trace,
    trace_of_token,
)
from store import Batch

__all__ = ["ALPHAS", "RAUQ", "attention_of_chosen_heads", "recurrent_uncertainty"]

ALPHAS = (0.2, 0.5)
# the smallest normal float32: a confidence that was rounded to 0 has a finite logarithm
FLOOR = torch.finfo(torch.float32).tiny


def recurrent_uncertainty(batch: Batch, alphas: Sequence[float] = ALPHAS) -> Tensor:
    """The largest uncertainty of the middle layers, (B, A, 1) float32; NaN for an empty answer."""
    logprob = batch.ragged("logprob")  # (n_tokens,), (B + 1,)
    p = logprob.values.float().exp()
    attention = middle_third(attention_of_chosen_heads(batch))  # (n_tokens, M)
    first, length = spans_of_answers(batch, logprob.offsets)  # (B,), (B,)

    alpha = torch.tensor(alphas)  # (A,)
    confidence = attention.new_zeros(len(batch), attention.shape[1], len(alphas))  # (B, M, A)
    total = torch.zeros_like(confidence)
    for i in range(int(length.max())):
        traces = (length > i).nonzero().squeeze(1)
        token = first[traces] + i
        own = p[token][:, None, None]
        if i == 0:
            confidence[traces] = own
        else:
            carried = attention[token][:, :, None] * confidence[traces]
            confidence[traces] = alpha * own + (1 - alpha) * carried
        logs = confidence[traces].clamp(min=FLOOR).log()
        total[traces] -= logs

    by_layer = total / length[:, None, None]  # 0 / 0 is NaN
    return by_layer.amax(dim=1)[:, :, None]


def spans_of_answers(batch: Batch, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """First token of each answer in the batch, and number of its tokens, both (B,) int64."""
    counted = answer_tokens(batch, offsets) & (positions_in_trace(batch, offsets) > 0)
    start = batch.fixed("prompt_len").long().clamp(min=1)
    n_lacking = batch.fixed(SKIPPED) if SKIPPED in batch else 0
    return offsets[:-1] + start - n_lacking, count_by_trace(counted, offsets)


def attention_of_chosen_heads(batch: Batch) -> Tensor:
    """Attention of each token to the one before in its trace's chosen heads, (n_tokens, L).

    A head is chosen by its mean over the answer's tokens but the first, whose token before is the
    prompt's; the first head of a layer where there are none.
    """
    column = batch.ragged("attn_prev")  # (n_tokens, L, H), (B + 1,)
    values = column.values.float()
    trace = trace_of_token(column.offsets)
    start = batch.fixed("prompt_len").long()[trace]
    is_later = positions_in_trace(batch, column.offsets) > start
    counted = answer_tokens(batch, column.offsets) & is_later
    counted = counted[:, None, None].expand_as(values)
    mean = mean_by_trace(values, column.offsets, counted)  # (B, L, H), NaN where none counts
    chosen = mean.nan_to_num().argmax(dim=2)  # (B, L)
    by_token = chosen[trace][:, :, None]
    return values.gather(2, by_token).squeeze(2)


def middle_third(by_layer: Tensor) -> Tensor:
    """(n, L) -> (n, M): the layers from a third to two thirds of the depth."""
    n_layers = by_layer.shape[1]
    return by_layer[:, n_layers // 3 : math.ceil(n_layers * 2 / 3) + 1]


RAUQ = Probe(
    ("attn_prev", "logprob", "prompt_len", "answer_len"),
    recurrent_uncertainty,
    tokens_read="answer",
    alternatives=tuple(f"alpha {alpha:g}" for alpha in ALPHAS),
)
