"""Columns of what a model predicted: log-probabilities, entropies, candidates. Pure arithmetic.

Axes: T tokens, V ids of the vocabulary, K candidates.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from store.traces.columns import TRACE_COLUMNS, columns_of

__all__ = ["PREDICTIONS", "entropies", "prediction_columns", "rows_at_once"]

PREDICTIONS = columns_of("predictions")
# what stands for token 0, which nothing predicted
FIRST = {
    name: math.nan if TRACE_COLUMNS[name].dtype.startswith("float") else -1
    for name in PREDICTIONS
    if TRACE_COLUMNS[name].axis == "tokens"
}
CHUNK_NUMBERS = 1 << 22  # logits that are float32 at once: 16 MiB, and twice that for their softmax


def prediction_columns(
    logits: Tensor,
    traces: Sequence[Sequence[int]],
    top_k: int,
    ends: Collection[int],
    columns: Collection[str],
) -> list[dict[str, NDArray[Any]]]:
    """Describe the distributions that predicted the tokens of traces, and the one after them.

    Parameters
    ----------
    logits : Tensor, (B, T, V)
        Row t predicts token t + 1; traces are padded on the right.

    Returns
    -------
    list of dict
        Of each trace of T tokens `logprob` and `entropy` float32 (T,), in nats; `topk_logprob`
        float16 (T, K), falling; `topk_id` int32 (T, K). Entry t is about the distribution that
        predicted token t; at t = 0 there is none: NaN, and -1 for the ids. `eos_logprob` float32
        (): the log-probability that one of `ends` comes after the last token; NaN if there are
        none.
    """
    made: list[dict[str, NDArray[Any]]] = [{} for _ in traces]
    if "eos_logprob" in columns:
        last = torch.tensor([len(trace) - 1 for trace in traces], device=logits.device)
        of_ends = _end_logprobs(logits[torch.arange(len(traces), device=logits.device), last], ends)
        for row, value in zip(made, of_ends, strict=True):
            row["eos_logprob"] = np.array(value)
    wanted = [name for name in FIRST if name in columns]
    if not wanted:
        return made
    described = _describe_all(logits, traces, top_k, wanted)
    starts = np.cumsum([0, *(len(trace) for trace in traces)])
    for row, start, end in zip(made, starts[:-1], starts[1:], strict=True):
        row |= {name: values[start:end] for name, values in described.items()}
    return made


def _describe_all(
    logits: Tensor, traces: Sequence[Sequence[int]], top_k: int, wanted: Collection[str]
) -> dict[str, NDArray[Any]]:
    """The columns of all traces, one after the other; (N, ...) for N tokens."""
    width = logits.shape[1]
    # row before each token but the first: token t of trace i is predicted in row i * width + t - 1
    rows = [i * width + t for i, trace in enumerate(traces) for t in range(len(trace) - 1)]
    targets = [token for trace in traces for token in trace[1:]]
    is_first = np.concatenate([np.arange(len(trace)) == 0 for trace in traces])
    row_numbers, target_ids = torch.tensor([rows, targets], dtype=torch.int64, device=logits.device)
    flat = logits.flatten(end_dim=1)
    n_rows = rows_at_once(logits.shape[2])
    chunks = [
        _describe(flat[numbers], ids, top_k, wanted)
        for numbers, ids in zip(row_numbers.split(n_rows), target_ids.split(n_rows), strict=True)
    ]
    described: dict[str, NDArray[Any]] = {}
    for name in wanted:
        values = torch.cat([chunk[name] for chunk in chunks]).cpu().numpy()
        column = np.full((len(is_first), *values.shape[1:]), FIRST[name], values.dtype)
        column[~is_first] = values
        described[name] = column
    return described


def rows_at_once(n_ids: int) -> int:
    """How many rows of logits become float32 at once."""
    return max(1, CHUNK_NUMBERS // n_ids)


def _describe(
    logits: Tensor, targets: Tensor, top_k: int, wanted: Collection[str]
) -> dict[str, Tensor]:
    """The columns of some rows: (N, V) and the N tokens that came."""
    distribution = logits.float().log_softmax(dim=-1)
    made = {}
    if "logprob" in wanted:
        made["logprob"] = distribution.gather(1, targets[:, None])[:, 0]
    if "entropy" in wanted:
        made["entropy"] = entropies(distribution)
    if "topk_logprob" in wanted or "topk_id" in wanted:
        best = distribution.topk(top_k, dim=-1)
        made["topk_logprob"] = best.values.half()
        made["topk_id"] = best.indices.int()
    return made


def entropies(distribution: Tensor) -> Tensor:
    """Entropies of log-probabilities, in nats: (N, V) -> (N,)."""
    return torch.special.entr(distribution.exp()).sum(dim=-1)


def _end_logprobs(logits: Tensor, ends: Collection[int]) -> NDArray[np.float32]:
    """The log-probability of any token that ends an answer; (B, V) -> (B,); NaN without one."""
    known = [token for token in sorted(ends) if 0 <= token < logits.shape[1]]
    if not known:
        return np.full(len(logits), np.nan, np.float32)
    return logits.float().log_softmax(dim=-1)[:, known].logsumexp(dim=1).cpu().numpy()
