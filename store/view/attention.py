"""Attention in one trace: the strongest edges of its graph, and what each head does."""

import math
from typing import Any, NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.view.traces import RECEIVED, read_column, received, token_columns

__all__ = ["attention_edges", "edges_of_head", "has_attention", "head_columns", "head_edges"]
__all__ += ["head_summary", "head_values"]

MAPS = "attn_mean"
EDGES = "attn_edges"  # of single heads, the strong ones
ENDS = "attn_edge_ends"
SQUARES = "attentions"  # of single heads, all
MAX_EDGES = 200
HEADS = (LAYERS_AXIS, "heads")


class Edges(NamedTuple):
    """Edges of a graph, the strongest first."""

    queries: np.ndarray  # tokens that attend: int64 (n,)
    keys: np.ndarray  # and those that are attended to
    weights: np.ndarray  # float32 (n,)
    n_above: int  # edges above the threshold, those left out included


def strongest(
    triangle: np.ndarray, threshold: float, skip_first: bool, n: int = MAX_EDGES
) -> Edges:
    """The strongest edges between different tokens.

    `triangle` has the attention of token i to token j at `i * (i + 1) / 2 + j`: float32
    `(T * (T + 1) / 2,)`. Edges have at least the weight `threshold`; `skip_first` leaves out edges
    to token 0, which often takes what attention has no other use for.
    """
    places = np.flatnonzero(triangle >= threshold)
    # float64 is exact here: a trace of 10^5 tokens has 5 * 10^9 pairs
    queries = ((np.sqrt(8.0 * places + 1) - 1) / 2).astype(np.int64)
    keys = places - queries * (queries + 1) // 2
    return _strongest_of(queries, keys, triangle[places], skip_first, n)


def _strongest_of(
    queries: np.ndarray, keys: np.ndarray, weights: np.ndarray, skip_first: bool, n: int
) -> Edges:
    """Of edges `(n_edges,)` those between different tokens, at most `n`, the strongest first."""
    is_edge = keys != queries
    if skip_first:
        is_edge &= keys != 0
    edges = np.flatnonzero(is_edge)
    n_above = len(edges)
    if n_above > n:
        strong = np.argpartition(-weights[edges], n)[:n]
        edges = edges[strong]
    order = np.argsort(-weights[edges], kind="stable")
    edges = edges[order]
    return Edges(queries[edges], keys[edges], weights[edges].astype(np.float32), n_above)


def has_attention(schema: Schema) -> bool:
    """Whether a store has maps that `attention_edges` reads."""
    column = schema.columns.get(MAPS)
    return column is not None and column.axis is not None and column.axis_names == (LAYERS_AXIS,)


def attention_edges(
    store: TraceStore,
    row: int,
    layer: int,
    threshold: float,
    skip_first: bool = False,
    n: int = MAX_EDGES,
) -> Edges:
    """The strongest edges of a trace in a layer; reads this layer only.

    `layer` is a position in the store, from 0. Raises NotFoundError if the store has no maps of
    attention, and IndexError if there is no such row or layer.
    """
    if not has_attention(store.schema):
        raise NotFoundError(f"{store.location}: expected the column {MAPS} with layers, found none")
    triangle = read_column(store, row, MAPS, layer)[:, 0]
    return strongest(triangle, threshold, skip_first, n)


def head_edges(store: TraceStore) -> dict[str, Any] | None:
    """The column that has the edges of single heads, its `layers` and its number of `heads`."""
    for name in (EDGES, SQUARES):
        column = store.schema.columns.get(name)
        if column is not None and column.axis is not None and column.axis_names == HEADS:
            return {"column": name, "layers": store.layers(name), "heads": column.item_shape[1]}
    return None


def edges_of_head(
    store: TraceStore, row: int, layer: int, head: int, threshold: float, skip_first: bool = False
) -> Edges:
    """The strongest edges of one head of a trace: of its stored edges, else of its whole map.

    `layer` is a position in the column, from 0. Raises NotFoundError if the store has neither, and
    IndexError if there is no such row, layer or head.
    """
    known = head_edges(store)
    if known is None:
        raise NotFoundError(
            f"{store.location}: expected the edges of single heads, in {EDGES} and {ENDS}, or in "
            f"{SQUARES}; found neither"
        )
    if not 0 <= head < known["heads"]:
        raise IndexError(f"head: expected 0 to {known['heads'] - 1}, found {head}")
    weights = read_column(store, row, known["column"], layer)[:, 0, head]
    if known["column"] == EDGES:
        ends = store.read_arrays([row], [ENDS]).numbers(ENDS).astype(np.int64)
        is_kept = weights >= threshold
        queries, keys = ends[is_kept].T
        return _strongest_of(queries, keys, weights[is_kept], skip_first, MAX_EDGES)
    n_tokens = math.isqrt(len(weights))
    square = weights.reshape(n_tokens, n_tokens)
    return strongest(square[np.tril_indices(n_tokens)], threshold, skip_first)


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
    _check_heads(store, name)
    values = read_column(store, row, name, layer)[:, 0]
    return received(values) if name == RECEIVED else values


def head_summary(store: TraceStore, row: int, name: str) -> np.ndarray:
    """A number for each layer and head of a trace: float32 `(L, H)`, NaN without tokens.

    It is the mean over the tokens; of `attn_colsum`, whose mean is the same for all heads, the
    share of all attention that goes to the first token. Raises what `head_values` does.
    """
    _check_heads(store, name)
    values = read_column(store, row, name)
    if not len(values):
        return np.full(store.schema.columns[name].item_shape, np.nan, np.float32)
    if name == RECEIVED:
        return values[0] / np.float32(len(values))
    return values.mean(0, dtype=np.float32)


def _check_heads(store: TraceStore, name: str) -> None:
    if name not in head_columns(store.schema):
        raise NotFoundError(f"{store.location}: expected a column of heads, found {name!r:.80}")
