"""Columns of the states and attention maps of one trace. Pure: arrays in, arrays out.

Axes: L layers, H heads, T tokens, d hidden size.
"""

from typing import Any

import numpy as np

from store.errors import SchemaError
from store.importers.source import Row

__all__ = ["attention_columns", "state_columns", "without_embedding"]


def without_embedding(states: list[np.ndarray], n_layers: int) -> list[np.ndarray]:
    """Return the states of the layers that have attention maps.

    transformers gives the output of the embedding before that of the first layer.
    """
    if len(states) not in (n_layers, n_layers + 1):
        raise SchemaError(
            f"hidden_states: expected states of the {n_layers} layers of attentions, "
            f"or one more before them, the embedding's, found {len(states)}"
        )
    return states[-n_layers:]


def state_columns(states: list[np.ndarray], n_tokens: int) -> Row:
    """Return hidden_states `(T, L, d)` and hs_last `(L, d)` of `(T, d)` for each layer."""
    first = states[0]
    shape = (n_tokens, first.shape[1])
    for layer in states:
        if layer.shape != shape or layer.dtype != first.dtype:
            raise SchemaError(
                f"hidden_states: expected shape {shape} of {first.dtype} in every layer, "
                f"one row a token, found {layer.shape} of {layer.dtype}"
            )
    if not first.size:
        raise SchemaError(
            f"hidden_states: expected numbers for one token at least, found shape {shape}"
        )
    hidden = np.stack(states, axis=1)
    return {"hs_last": hidden[-1], "hidden_states": hidden}


def attention_columns(
    maps: list[np.ndarray], n_tokens: int, prompt_len: int | None, keep: bool
) -> Row:
    """Return the reductions of `(H, T, T)` for each layer, and with `keep` the maps themselves.

    One layer after the other is reduced in float32 and cast to float16.
    """
    shape = (len(maps[0]), n_tokens, n_tokens)
    if not shape[0]:
        raise SchemaError("attentions: expected one head at least, found none")
    for layer in maps:
        if layer.shape != shape:
            raise SchemaError(
                f"attentions: expected shape {shape} in every layer, found {layer.shape}"
            )
    reduced = [_reduce(layer, prompt_len) for layer in maps]
    columns: Row = {
        name: np.concatenate([layer[name] for layer in reduced], axis=1) for name in reduced[0]
    }
    if keep:
        squares = np.stack(maps).transpose(2, 3, 0, 1)  # (T, T, L, H)
        columns["attentions"] = squares.reshape(-1, len(maps), shape[0])
    return columns


def _reduce(layer: np.ndarray, prompt_len: int | None) -> dict[str, np.ndarray]:
    """Return the columns of the maps `(H, T, T)` of one layer, in float16."""
    import torch  # only full maps need it

    from store.sources import reductions

    attention = torch.from_numpy(layer)[None].float()  # (1, H, T, T)
    columns: dict[str, Any] = {
        "attn_mean": reductions.mean_triangle(attention),
        "attn_diag": reductions.diagonal(attention),
        "attn_colsum": reductions.column_sums(attention),
    }
    if prompt_len is not None:
        columns["attn_pmass"] = reductions.prompt_mass(attention, prompt_len)
    return {name: values.half().numpy() for name, values in columns.items()}
