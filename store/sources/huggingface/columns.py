"""The columns of a trace, from one forward pass: states, reduced attention maps, predictions."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from store.errors import SchemaError
from store.format.schema import Column, Schema
from store.sources import reductions

__all__ = [
    "ATTENTION",
    "PREDICTIONS",
    "STATES",
    "ForwardOutput",
    "HalfRangeError",
    "build_schema",
    "needs_maps",
    "prediction_columns",
    "trace_columns",
]

Arrays = dict[str, Tensor | NDArray[Any]]

STATES = frozenset({"hs_last", "hidden_states"})
ATTENTION = frozenset({"attn_mean", "attn_diag", "attn_colsum", "attn_pmass"})
PREDICTIONS = frozenset({"logprob", "entropy", "topk_logprob", "topk_id"})


class HalfRangeError(SchemaError, OverflowError):
    """Hidden states beyond the range of their column: run the model in another precision."""


class ForwardOutput(Protocol):
    """What a model returns for a batch of B traces, as far as the columns need it.

    Attributes
    ----------
    hidden_states
        (B, T, d) of every layer, the embedding output first.
    attentions
        (B, H, T, T) of every layer.
    logits
        (B, T, V).
    """

    hidden_states: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]
    logits: Tensor


def build_schema(
    n_layers: int, n_heads: int, hidden_size: int, top_k: int, state_dtype: str = "float16"
) -> Schema:
    """Build the schema of a trace.

    Parameters
    ----------
    n_layers : int
        L, layers that are kept.
    n_heads, hidden_size : int
        H and d of the model.
    top_k : int
        K, number of candidates kept for each predicted token.
    state_dtype : str
        'float16' or 'bfloat16', of the hidden states.

    Returns
    -------
    Schema
        Columns of one trace; T tokens are the axis "tokens", T * (T + 1) / 2 pairs of tokens the
        axis "pairs".
    """
    last = Column(state_dtype, item_shape=(n_layers, hidden_size), axis_names=("layers", "hidden"))
    pairs = Column("float16", item_shape=(n_layers,), axis="pairs", axis_names=("layers",))
    per_head = Column(
        "float16",
        item_shape=(n_layers, n_heads),
        axis="tokens",
        axis_names=("layers", "heads"),
    )
    candidates = Column("float16", item_shape=(top_k,), axis="tokens", axis_names=("candidates",))
    return Schema(
        {
            "question_id": Column("utf8"),
            "tokens": Column("int32", axis="tokens"),
            "prompt_len": Column("int32"),
            "answer_len": Column("int32"),
            "question": Column("utf8"),
            "answer": Column("utf8"),
            "references": Column("utf8"),
            "score": Column("float32"),
            "label": Column("int8"),
            "context_start": Column("int32"),
            "context_len": Column("int32"),
            "token_label": Column("int8", axis="tokens"),
            "hs_last": last,
            "hidden_states": replace(last, axis="tokens"),
            "attn_mean": pairs,
            "attn_diag": per_head,
            "attn_colsum": per_head,
            "attn_pmass": per_head,
            "logprob": Column("float32", axis="tokens"),
            "entropy": Column("float32", axis="tokens"),
            "topk_logprob": candidates,
            "topk_id": replace(candidates, dtype="int32"),
        }
    )


def needs_maps(columns: Collection[str] | None) -> bool:
    """Whether attention maps must be computed, which takes the eager implementation."""
    return columns is None or not ATTENTION.isdisjoint(columns)


def trace_columns(
    out: ForwardOutput | None,
    i: int,
    tokens: Sequence[int],
    prompt_len: int,
    layers: Sequence[int],
    top_k: int,
    columns: Collection[str],
) -> Arrays:
    """Make the columns of trace number `i` of a batch.

    Parameters
    ----------
    out : ForwardOutput or None
        What `run_forward` returned; None if it gave nothing that `columns` need.
    i : int
        Number of the trace in its batch.
    tokens : sequence of int, (T,)
        Its token ids.
    prompt_len : int
        Tokens of the prompt.
    layers : sequence of int
        Layers to keep, from 1 to L.
    top_k : int
        Candidates to keep.
    columns : collection of str
        The columns that are kept.

    Returns
    -------
    dict
        At least those of `columns` that come from the model.

    Raises
    ------
    HalfRangeError
        A hidden state is beyond the range of its column.
    """
    row: Arrays = {}
    if out is None:
        return row
    n = len(tokens)
    if not STATES.isdisjoint(columns):
        _check_states(out.hidden_states, layers)
        states = torch.stack([out.hidden_states[layer][i, :n] for layer in layers], dim=1)
        row |= _state_columns(states if "hidden_states" in columns else states[-1:], layers)
    if not ATTENTION.isdisjoint(columns):
        maps = torch.stack([out.attentions[layer - 1][i, :, :n, :n] for layer in layers])
        row |= _attention_columns(maps.float(), prompt_len, columns)
    if not PREDICTIONS.isdisjoint(columns):
        row |= prediction_columns(out.logits[i, :n], tokens, top_k)
    return row


def _check_states(hidden: Sequence[Tensor], layers: Sequence[int]) -> None:
    """Some models end in a projection, so that the last layer is of another size."""
    size = hidden[layers[0]].shape[-1]
    for layer in layers:
        if hidden[layer].shape[-1] != size:
            raise SchemaError(
                f"layers: expected states of one size, found another in layer {layer}; leave it "
                "out (--layers)"
            )


def prediction_columns(logits: Tensor, tokens: Sequence[int], top_k: int) -> Arrays:
    """Describe the distributions that predicted the tokens of a trace.

    Parameters
    ----------
    logits : Tensor, (T, V)
        Row t predicts token t + 1.
    tokens : sequence of int, (T,)
        Token ids.
    top_k : int
        K, candidates to keep.

    Returns
    -------
    dict
        `logprob` and `entropy` float32 (T,), in nats; `topk_logprob` float16 (T, K), falling;
        `topk_id` int32 (T, K). Entry t is about the distribution that predicted token t; at t = 0
        there is none: NaN, and -1 for the ids.
    """
    distribution = logits[:-1].float().log_softmax(dim=-1)  # (T - 1, V), row t - 1 predicts token t
    target = torch.tensor(tokens[1:], device=logits.device)
    logprob = distribution.gather(1, target[:, None])[:, 0]
    entropy = torch.special.entr(distribution.exp()).sum(dim=-1)
    best = distribution.topk(top_k, dim=-1)
    return {
        "logprob": _after_first(logprob, math.nan),
        "entropy": _after_first(entropy, math.nan),
        "topk_logprob": _after_first(best.values.half(), math.nan),
        "topk_id": _after_first(best.indices.int(), -1),
    }


def _after_first(values: Tensor, first: float) -> NDArray[Any]:
    """(T - 1, ...) -> (T, ...), with `first` for token 0, which nothing predicted."""
    head = values.new_full((1, *values.shape[1:]), first)
    return torch.cat([head, values]).cpu().numpy()


def _state_columns(hidden: Tensor, layers: Sequence[int]) -> Arrays:
    """Hidden states (T, L, d) and those of the last token: bfloat16 tensors, or float16 arrays."""
    is_bfloat16 = hidden.dtype == torch.bfloat16
    states = hidden.cpu() if is_bfloat16 else hidden.half().cpu()
    fits = states.isfinite().all(dim=2).all(dim=0)  # (L,)
    if not fits.all():
        first = int(fits.int().argmin())
        largest = hidden[:, first].abs().max()
        limit = "no finite number" if is_bfloat16 else "beyond float16 (65504)"
        raise HalfRangeError(
            f"hidden_states: layer {layers[first]} has the value {largest:g}, {limit}"
        )
    stored = states if is_bfloat16 else states.numpy()
    return {"hidden_states": stored, "hs_last": stored[-1]}


def _attention_columns(maps: Tensor, prompt_len: int, columns: Collection[str]) -> Arrays:
    """Reduce the maps (L, H, T, T) of one trace in float32, then cast."""
    reduce_to: dict[str, Callable[[Tensor], Tensor]] = {
        "attn_mean": reductions.mean_triangle,
        "attn_diag": reductions.diagonal,
        "attn_colsum": reductions.column_sums,
        "attn_pmass": partial(reductions.prompt_mass, prompt_len=prompt_len),
    }
    return {
        name: reduction(maps).half().cpu().numpy()
        for name, reduction in reduce_to.items()
        if name in columns
    }
