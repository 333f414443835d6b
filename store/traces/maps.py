"""Columns that place each trace on a map, by a store's schema and provenance. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from store.format.schema import Column, Schema
from store.traces.origin import records_of

__all__ = [
    "FLOATS",
    "MAX_DIMENSIONS",
    "PROJECTIONS_KEY",
    "find_maps",
    "own_projections",
    "recorded_projections",
]

PROJECTIONS_KEY = "projections"  # in the provenance: column -> how it was projected
FLOATS = ("float16", "bfloat16", "float32", "float64")
DIMENSIONS = "dimensions"  # the axis of coordinates, as `python -m store project` names it
MAX_DIMENSIONS = 3  # of a column that another program wrote: more are a state


class Map(NamedTuple):
    """A column whose first two numbers place each trace on a map; None: the store does not say."""

    name: str
    column: str | None = None  # what was projected
    layer: int | None = None
    method: str | None = None
    # of the first two principal components, their parts of the variance; () for other methods
    variance: tuple[float, ...] = ()


def find_maps(schema: Schema, provenance: Mapping[str, object]) -> dict[str, Map]:
    """The columns of a store that can be drawn as a map, those of `store project` first."""
    recorded = recorded_projections(provenance)
    fitting = [name for name, column in schema.columns.items() if _has_points(column)]
    made = {name: _describe(name, recorded[name]) for name in fitting if name in recorded}
    others = {
        name: Map(name)
        for name in fitting
        if name not in made and _is_of_points(schema.columns[name])
    }
    return made | others


def _has_points(column: Column) -> bool:
    """Whether each row has two floating numbers or more, on one axis."""
    is_list = column.axis is None and len(column.item_shape) == 1
    return is_list and column.dtype in FLOATS and column.item_shape[0] >= 2


def _is_of_points(column: Column) -> bool:
    """Whether a column of lists looks like coordinates that nothing recorded."""
    return column.axis_names == (DIMENSIONS,) or column.item_shape[0] <= MAX_DIMENSIONS


def _describe(name: str, made: Mapping[str, object]) -> Map:
    """What a provenance says; what has another form than `store project` writes is left out."""
    column, layer, method = made.get("column"), made.get("layer"), made.get("method")
    shares = made.get("explained_variance") if method == "pca" else None
    known = shares[:2] if isinstance(shares, list) else []
    variance = [share for share in known if isinstance(share, float) and 0 <= share <= 1]
    return Map(
        name,
        column if isinstance(column, str) else None,
        layer if type(layer) is int else None,
        method if isinstance(method, str) else None,
        tuple(variance),
    )


def recorded_projections(provenance: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """The projections that a provenance names, and those of the stores that it was merged from."""
    parts = [*records_of(provenance), provenance]
    return {name: made for part in parts for name, made in own_projections(part).items()}


def own_projections(provenance: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """The same without merges; what is of another form is not ours."""
    recorded = provenance.get(PROJECTIONS_KEY)
    if not isinstance(recorded, dict):
        return {}
    return {name: made for name, made in recorded.items() if isinstance(made, dict)}
