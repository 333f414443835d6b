"""The strongest edges of a trace's attention graph, from the triangles of `attn_mean`."""

from typing import NamedTuple

import numpy as np

from store.errors import NotFoundError
from store.format.schema import Schema
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.view.traces import check_layer, check_row

__all__ = ["Edges", "attention_edges", "has_attention", "strongest"]

MAPS = "attn_mean"
MAX_EDGES = 200


class Edges(NamedTuple):
    """Edges of a graph, the strongest first.

    Attributes
    ----------
    queries, keys
        Tokens that attend, and that are attended to: int64 `(n,)`.
    weights
        float32 `(n,)`.
    n_above
        Edges above the threshold, those left out included.
    """

    queries: np.ndarray
    keys: np.ndarray
    weights: np.ndarray
    n_above: int


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
    is_edge = keys != queries
    if skip_first:
        is_edge &= keys != 0
    edges = np.flatnonzero(is_edge)
    n_above = len(edges)
    weights = triangle[places]
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
    store: TraceStore, row: int, layer: int, threshold: float, skip_first: bool = False
) -> Edges:
    """The strongest edges of a trace in a layer; reads this layer only.

    `layer` is a position in the store, from 0. Raises NotFoundError if the store has no maps of
    attention, and IndexError if there is no such row or layer.
    """
    check_row(store, row)
    if not has_attention(store.schema):
        raise NotFoundError(f"{store.path}: expected the column {MAPS} with layers, found none")
    check_layer(store.schema.columns[MAPS], layer)
    packed = store.read_arrays([row], [MAPS], {MAPS: {LAYERS_AXIS: layer}})
    triangle = packed.packed(MAPS).float32()[:, 0]
    return strongest(triangle, threshold, skip_first)
