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

__all__ = ["PREDICTIONS", "entropies", "prediction_columns", "rows_at_once"]

# what stands for token 0, which nothing predicted
FIRST = {"logprob": math.nan, "entropy": math.nan, "topk_logprob": math.nan, "topk_id": -1}
PREDICTIONS = (*FIRST, "eos_logprob")
CHUNK_NUMBERS = 1 << 22  # logits that are float32 at once: 16 MiB, and twice that for their softmax


def prediction_columns(
    logits: Tensor,
    tokens: Sequence[int],
    top_k: int,
    ends: Collection[int],
    columns: Collection[str],
) -> dict[str, NDArray[Any]]:
    """Describe the distributions that predicted the tokens of a trace, and the one after them.

    Parameters
    ----------
    logits : Tensor, (T, V)
        Row t predicts token t + 1.
    tokens : sequence of int, (T,)
        Token ids.
    top_k : int
        K, candidates to keep.
    ends : collection of int
        Ids of the tokens that end an answer.
    columns : collection of str
        The columns to make; those of `PREDICTIONS` count.

    Returns
    -------
    dict
        `logprob` and `entropy` float32 (T,), in nats; `topk_logprob` float16 (T, K), falling;
        `topk_id` int32 (T, K). Entry t is about the distribution that predicted token t; at t = 0
        there is none: NaN, and -1 for the ids. `eos_logprob` float32 (): the log-probability that
        one of `ends` comes after the last token; NaN if there are none.
    """
    made: dict[str, NDArray[Any]] = {}
    if "eos_logprob" in columns:
        made["eos_logprob"] = _end_logprob(logits[-1], ends)
    wanted = [name for name in FIRST if name in columns]
    if not wanted:
        return made
    targets = torch.tensor(tokens[1:], dtype=torch.int64, device=logits.device)
    n_rows = rows_at_once(logits.shape[1])
    chunks = [
        _describe(rows, target, top_k, wanted)
        for rows, target in zip(logits[:-1].split(n_rows), targets.split(n_rows), strict=True)
    ]
    for name in wanted:
        values = torch.cat([chunk[name] for chunk in chunks])
        made[name] = _after_first(values, FIRST[name])
    return made


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


def _end_logprob(logits: Tensor, ends: Collection[int]) -> NDArray[np.float32]:
    """The log-probability of any of the tokens that end an answer; NaN without one."""
    known = [token for token in sorted(ends) if 0 <= token < len(logits)]
    if not known:
        return np.array(math.nan, np.float32)
    return logits.float().log_softmax(dim=-1)[known].logsumexp(dim=0).cpu().numpy()


def _after_first(values: Tensor, first: float) -> NDArray[Any]:
    """(T - 1, ...) -> (T, ...), with `first` for token 0, which nothing predicted."""
    head = values.new_full((1, *values.shape[1:]), first)
    return torch.cat([head, values]).cpu().numpy()
