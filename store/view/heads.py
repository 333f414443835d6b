"""What each head of attention does in one trace, from the columns with layers and heads."""

from typing import Any

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.view.traces import check_layer, check_row, received, token_columns

__all__ = ["head_columns", "head_summary", "head_values"]

HEADS = (LAYERS_AXIS, "heads")
RECEIVED = "attn_colsum"


def head_columns(schema: Schema) -> list[str]:
    """Columns with a number for each token, layer and head."""
    return [name for name in token_columns(schema) if schema.columns[name].axis_names == HEADS]


def head_values(store: TraceStore, row: int, name: str, layer: int) -> np.ndarray:
    """A number for each token and head of a layer: float32 `(T, H)`.

    Of `attn_colsum` it is the attention that a token receives from each token at or after it on
    average, as in `token_values`.

    `layer` is a position in the store, from 0. Raises NotFoundError if there is no such column of
    heads, and IndexError if there is no such row or layer.
    """
    _check(store, row, name)
    check_layer(store.schema.columns[name], layer)
    values = _read(store, row, name, {name: {LAYERS_AXIS: layer}})[:, 0]
    return received(values) if name == RECEIVED else values


def head_summary(store: TraceStore, row: int, name: str) -> np.ndarray:
    """A number for each layer and head of a trace: float32 `(L, H)`, NaN without tokens.

    It is the mean over the tokens; of `attn_colsum`, whose mean is the same for all heads, the
    share of all attention that goes to the first token. Raises what `head_values` does.
    """
    n_layers, n_heads = _check(store, row, name)
    values = _read(store, row, name, None)
    if not len(values):
        return np.full((n_layers, n_heads), np.nan, np.float32)
    if name == RECEIVED:
        return values[0] / np.float32(len(values))
    return values.mean(0, dtype=np.float32)


def _check(store: TraceStore, row: int, name: str) -> tuple[int, ...]:
    """Layers and heads of a column."""
    if name not in head_columns(store.schema):
        raise NotFoundError(f"{store.path}: expected a column of heads, found {name!r:.80}")
    check_row(store, row)
    return store.schema.columns[name].item_shape


def _read(store: TraceStore, row: int, name: str, select: dict[str, Any] | None) -> np.ndarray:
    """float32 `(T, L, H)`."""
    return store.read_arrays([row], [name], select).packed(name).float32()
