"""Columns of traces from one forward pass: states, reduced attention maps, predictions.

Sequences are padded on the right: padding comes after every token of a trace, so a causal model
never attends to it, and positions count from 0 as in a trace run alone. Only what a column that is
kept needs is computed.
"""

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from store.errors import SchemaError
from store.format.schema import Column, Schema
from store.sources import reductions
from store.sources.huggingface.generation import pad

__all__ = [
    "ATTENTION",
    "HalfRangeError",
    "build_schema",
    "prediction_columns",
    "run_forward",
    "trace_columns",
]

STATES = frozenset({"hs_last", "hidden_states"})
ATTENTION = frozenset({"attn_mean", "attn_diag", "attn_colsum", "attn_pmass"})
PREDICTIONS = frozenset({"logprob", "entropy", "topk_logprob", "topk_id"})


class HalfRangeError(SchemaError, OverflowError):
    """Hidden states of a trace that their column cannot hold: run the model in another
    precision."""


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
    states = {"item_shape": (n_layers, hidden_size), "axis_names": ("layers", "hidden")}
    per_head = {
        "item_shape": (n_layers, n_heads),
        "axis": "tokens",
        "axis_names": ("layers", "heads"),
    }
    candidates = {"item_shape": (top_k,), "axis": "tokens", "axis_names": ("candidates",)}
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
            "hs_last": Column(state_dtype, **states),
            "hidden_states": Column(state_dtype, axis="tokens", **states),
            "attn_mean": Column(
                "float16", item_shape=(n_layers,), axis="pairs", axis_names=("layers",)
            ),
            "attn_diag": Column("float16", **per_head),
            "attn_colsum": Column("float16", **per_head),
            "attn_pmass": Column("float16", **per_head),
            "logprob": Column("float32", axis="tokens"),
            "entropy": Column("float32", axis="tokens"),
            "topk_logprob": Column("float16", **candidates),
            "topk_id": Column("int32", **candidates),
        }
    )


def run_forward(
    model: PreTrainedModel, traces: Sequence[list[int]], columns: Collection[str]
) -> ModelOutput | None:
    """Run whole traces through the model.

    Parameters
    ----------
    model : PreTrainedModel
        Causal model.
    traces : sequence of list of int
        Token ids of each trace.
    columns : collection of str
        The columns that are kept.

    Returns
    -------
    ModelOutput or None
        `hidden_states` (B, T, d) and `attentions` (B, H, T, T), a tuple over the layers each, and
        `logits` (B, T, V), as far as columns need them; None if none does.
    """
    columns = set(columns)
    if not columns & (STATES | ATTENTION | PREDICTIONS):
        return None
    ids, mask = pad(traces, [0] * len(traces), 0, model.device)
    optional: dict[str, Any] = {
        "position_ids": torch.arange(ids.shape[1], device=model.device).expand_as(ids)
    }
    if not columns & PREDICTIONS:
        optional["logits_to_keep"] = 1  # (B, T, V) may well be the largest tensor of all
    known = inspect.signature(model.forward).parameters
    with torch.inference_mode():
        return model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=False,
            output_hidden_states=bool(columns & STATES),
            output_attentions=bool(columns & ATTENTION),
            **{name: value for name, value in optional.items() if name in known},
        )


def trace_columns(
    out: ModelOutput | None,
    i: int,
    tokens: Sequence[int],
    prompt_len: int,
    layers: Sequence[int],
    top_k: int,
    columns: Collection[str],
) -> dict[str, Any]:
    """Make the columns of trace number `i` of a batch.

    Parameters
    ----------
    out : ModelOutput or None
        What `run_forward` gave.
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
    made: dict[str, Any] = {}
    n = len(tokens)
    if STATES & set(columns):
        _check_states(out.hidden_states, layers)
        states = torch.stack([out.hidden_states[layer][i, :n] for layer in layers], dim=1)
        made |= _state_columns(states if "hidden_states" in columns else states[-1:], layers)
    if ATTENTION & set(columns):
        attention = torch.stack(
            [out.attentions[layer - 1][i, :, :n, :n] for layer in layers]
        ).float()
        made |= _attention_columns(attention, prompt_len, columns)
    if PREDICTIONS & set(columns):
        made |= prediction_columns(out.logits[i, :n], tokens, top_k)
    return made


def _check_states(hidden: Sequence[Tensor], layers: Sequence[int]) -> None:
    """Some models end in a projection, so that the last layer is of another size."""
    sizes = [hidden[layer].shape[-1] for layer in layers]
    if len(set(sizes)) > 1:
        odd = layers[next(i for i, size in enumerate(sizes) if size != sizes[0])]
        raise SchemaError(
            f"layers: expected states of one size, found another in layer {odd}; leave it out (--layers)"
        )


def prediction_columns(logits: Tensor, tokens: Sequence[int], top_k: int) -> dict[str, NDArray]:
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
    best = distribution.topk(top_k, dim=-1)
    return {
        "logprob": _after_first(distribution.gather(1, target[:, None])[:, 0], np.nan, np.float32),
        "entropy": _after_first(
            torch.special.entr(distribution.exp()).sum(dim=-1), np.nan, np.float32
        ),
        "topk_logprob": _after_first(best.values.half(), np.nan, np.float16),
        "topk_id": _after_first(best.indices, -1, np.int32),
    }


def _after_first(values: Tensor, first: float, dtype: type) -> NDArray:
    """(T - 1, ...) -> (T, ...), with `first` for token 0, which nothing predicted."""
    out = np.full((len(values) + 1, *values.shape[1:]), first, dtype)
    out[1:] = values.cpu().numpy()
    return out


def _state_columns(hidden: Tensor, layers: Sequence[int]) -> dict[str, Tensor | NDArray]:
    """Hidden states (T, L, d) of one trace, and those of its last token: bfloat16 as tensors, all
    else as float16."""
    is_bfloat16 = hidden.dtype == torch.bfloat16
    states = hidden.cpu() if is_bfloat16 else hidden.half().cpu()
    fits = states.isfinite().all(dim=2).all(dim=0)  # (L,)
    if not fits.all():
        first = int(fits.int().argmin())
        largest = f"{hidden[:, first].abs().max():g}"
        limit = "no finite number" if is_bfloat16 else "beyond float16 (65504)"
        raise HalfRangeError(
            f"hidden_states: layer {layers[first]} has the value {largest}, {limit}"
        )
    states = states if is_bfloat16 else states.numpy()
    return {"hidden_states": states, "hs_last": states[-1]}


def _attention_columns(
    attention: Tensor, prompt_len: int, columns: Collection[str]
) -> dict[str, NDArray]:
    """Reduce the maps (L, H, T, T) of one trace in float32, then cast."""
    reduce = {
        "attn_mean": reductions.mean_triangle,
        "attn_diag": reductions.diagonal,
        "attn_colsum": reductions.column_sums,
        "attn_pmass": lambda maps: reductions.prompt_mass(maps, prompt_len),
    }
    return {
        name: made(attention).half().cpu().numpy()
        for name, made in reduce.items()
        if name in columns
    }
