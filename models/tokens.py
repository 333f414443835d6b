"""Arithmetic over the tokens of packed traces: trace and position of a token, means over a trace.

Ragged columns of the axis "tokens" come as values (n_tokens, ...) and offsets (B + 1,). The answer
of a trace are its tokens from `prompt_len` on, `answer_len` of them. A trace whose prompt length is
not known has no answer to average over: sources leave the two columns out, and a negative length
says so for one trace.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from store import Batch, Ragged

__all__ = [
    "SKIPPED",
    "TOKENS_READ",
    "answer_or_all_tokens",
    "answer_tokens",
    "count_by_trace",
    "keep_tokens",
    "largest_by_trace",
    "max_by_trace",
    "mean_by_trace",
    "mean_or_zero",
    "mean_over_answer",
    "offsets_of_kept",
    "positions",
    "positions_in_trace",
    "reduce_over_answer",
    "softmax_by_trace",
    "sum_by_trace",
    "trace_of_token",
]


Numbers = NDArray[np.int64]
# Column of a batch that lacks tokens: int64 (B,), those of each trace before the first that it has.
SKIPPED = "n_skipped"
# What may be read of a trace -> its first and its last token but one, from prompt_len and
# answer_len; where the prompt's length is unknown, that of "prompt end" is the last, of all others
# all tokens.
TOKENS_READ: dict[str, Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]] = {
    "answer": lambda prompt, answer: (prompt, prompt + answer),
    "answer and before": lambda prompt, answer: ((prompt - 1).clip(0), prompt + answer),
    "last of answer": lambda prompt, answer: (prompt + (answer - 1).clip(0), prompt + answer),
    "first of answer": lambda prompt, answer: (prompt, prompt + answer.clip(max=1)),
    "prompt end": lambda prompt, answer: ((prompt - 1).clip(0), prompt),
}


def trace_of_token(offsets: Tensor) -> Tensor:
    """Number in the batch of each token's trace, (n_tokens,) int64."""
    return torch.repeat_interleave(offsets.diff())


def positions(offsets: Tensor) -> Tensor:
    """Position of each token in its trace from 0 on, (n_tokens,) int64."""
    trace = trace_of_token(offsets)
    return torch.arange(len(trace), device=offsets.device) - offsets[trace]


def positions_in_trace(batch: Batch, offsets: Tensor) -> Tensor:
    """As `positions`, of a batch that may lack the first tokens of its traces."""
    place = positions(offsets)
    if SKIPPED not in batch:
        return place
    return place + batch.fixed(SKIPPED)[trace_of_token(offsets)]


def mean_by_trace(values: Tensor, offsets: Tensor, counted: Tensor | None = None) -> Tensor:
    """Mean over the tokens of each trace.

    `values` (n_tokens, ...) are of any float, and summed as float32; `offsets`, (B + 1,) int64, say
    where each trace starts; `counted`, of the same shape, says which of them count (by default
    all). Returns (B, ...) float32, NaN where no value counts.
    """
    if counted is None:
        counted = torch.ones_like(values, dtype=torch.bool)
    total = sum_by_trace(torch.where(counted, values.float(), 0), offsets)
    return total / sum_by_trace(counted.float(), offsets)  # 0 / 0 is NaN


def mean_or_zero(values: Tensor, offsets: Tensor) -> Tensor:
    """Mean over the tokens of each trace: (n_tokens, ...) -> (B, ...) float32, 0 of no token."""
    n_tokens = offsets.diff().clamp(min=1)  # (B,)
    total = sum_by_trace(values.float(), offsets)
    return total / n_tokens.view(-1, *[1] * (values.ndim - 1))


def mean_over_answer(batch: Batch, column: Ragged, n_tokens: int | None = None) -> Tensor:
    """Mean over the answer's tokens of a ragged column, NaN values left out.

    The batch has `prompt_len` and `answer_len`; the values of `column` are (n_tokens, ...). With
    `n_tokens` only so many first tokens of the answer are read. Returns (B, ...) float32, NaN where
    nothing counts: an empty answer, or a prompt of unknown length.
    """
    in_answer = answer_tokens(batch, column.offsets, n_tokens)
    in_answer = in_answer.view(-1, *[1] * (column.values.ndim - 1))
    return mean_by_trace(column.values, column.offsets, in_answer & ~column.values.isnan())


def reduce_over_answer(
    batch: Batch, column: Ragged, how: str, n_tokens: int | None = None
) -> Tensor:
    """Mean, sum, least or largest value over the answer's tokens, NaN values left out.

    `how` is "mean", "sum", "amin" or "amax", as `Tensor.scatter_reduce` has them; the values of
    `column` are (n_tokens,), and the rest is as in `mean_over_answer`. Returns (B,) float32, NaN
    where nothing counts.
    """
    if how == "mean":
        return mean_over_answer(batch, column, n_tokens)
    values = column.values.float()
    counted = answer_tokens(batch, column.offsets, n_tokens) & ~values.isnan()
    trace = trace_of_token(column.offsets)[counted]
    nothing = torch.full((len(column.offsets) - 1,), torch.nan, device=values.device)
    return nothing.scatter_reduce(0, trace, values[counted], how, include_self=False)


def largest_by_trace(column: Ragged, top_k: int) -> Tensor:
    """The largest values over the tokens of each trace.

    The values of `column` are (n_tokens, L, H). Returns (B, L, H, top_k), in falling order, then
    zeros where a trace has fewer tokens.
    """
    lengths = column.lengths  # (B,)
    by_trace = column.values.split(lengths.tolist())
    # (B, longest, L, H)
    padded = pad_sequence(by_trace, batch_first=True, padding_value=-torch.inf)
    n_kept = min(top_k, padded.shape[1])
    largest = padded.topk(n_kept, dim=1).values.permute(0, 2, 3, 1)  # (B, L, H, n_kept), falling
    is_padding = torch.arange(n_kept, device=lengths.device) >= lengths[:, None, None, None]
    return pad(largest.masked_fill(is_padding, 0), (0, top_k - n_kept))


def answer_tokens(batch: Batch, offsets: Tensor, n_tokens: int | None = None) -> Tensor:
    """Whether each token is of its trace's answer, or of its first tokens, (n_tokens,) bool."""
    trace = trace_of_token(offsets)
    position = positions_in_trace(batch, offsets)
    length = batch.fixed("answer_len").long()
    if n_tokens is not None:
        length = length.clamp(max=n_tokens)
    start = batch.fixed("prompt_len").long()[trace]  # (n_tokens,)
    stop = start + length[trace]  # (n_tokens,)
    return (start >= 0) & (start <= position) & (position < stop)


def answer_or_all_tokens(batch: Batch, offsets: Tensor) -> Tensor:
    """Whether each token is of its trace's answer; all are where the prompt's length is unknown.

    Returns (n_tokens,) bool, no token of a trace with an empty answer.
    """
    unknown = batch.fixed("prompt_len") < 0  # (B,)
    return answer_tokens(batch, offsets) | unknown[trace_of_token(offsets)]


def keep_tokens(column: Ragged, keep: Tensor) -> Ragged:
    """A copy of a packed column with the tokens where `keep`, (n_tokens,) bool, is true.

    It has the same B traces, some of which may be empty now.
    """
    return Ragged(column.values[keep], offsets_of_kept(keep, column.offsets))


def offsets_of_kept(keep: Tensor, offsets: Tensor) -> Tensor:
    """Where the traces start among the tokens that are kept: (n_tokens,) bool -> (B + 1,) int64."""
    n_before = torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])
    return n_before[offsets]


def count_by_trace(counted: Tensor, offsets: Tensor) -> Tensor:
    """Number of tokens of each trace that count: (n_tokens,) bool -> (B,) int64."""
    return offsets_of_kept(counted, offsets).diff()


def sum_by_trace(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum over the tokens of each trace: (n_tokens, ...) float32 -> (B, ...), 0 of no token."""
    trace = trace_of_token(offsets)
    zeros = values.new_zeros(len(offsets) - 1, *values.shape[1:])
    return zeros.index_add(0, trace, values)


def max_by_trace(values: Tensor, offsets: Tensor) -> Tensor:
    """Largest value over the tokens of each trace: (n_tokens, ...) -> (B, ...), NaN of no token."""
    nothing = values.new_full((len(offsets) - 1, *values.shape[1:]), torch.nan)
    trace = trace_of_token(offsets).view(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return nothing.scatter_reduce(0, trace, values, "amax", include_self=False)


def softmax_by_trace(scores: Tensor, offsets: Tensor) -> Tensor:
    """Softmax over the tokens of each trace: (n_tokens,) float32 -> (n_tokens,)."""
    trace = trace_of_token(offsets)
    weights = (scores - max_by_trace(scores.detach(), offsets)[trace]).exp()
    return weights / sum_by_trace(weights, offsets)[trace]
