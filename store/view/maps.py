"""Columns that place each trace on a map, and the colours of its points. Pure, but for `find_maps`,
which looks at a store's schema and provenance.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from store.format.schema import Column
from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.transform.projection import recorded_projections

__all__ = ["MISSING", "Levels", "Map", "find_maps", "levels_of", "map_states"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
DIMENSIONS = "dimensions"  # the axis of coordinates, as `python -m store project` names it
MAX_DIMENSIONS = 3  # of a column that another program wrote: more are a state
STATES = ("hs_last", "hs_mean", "hs_prompt")  # columns to project, the usual one first
STATES_OF_TOKENS = "hidden_states"
MISSING = 255
N_LEVELS = 255
MAX_CLASSES = 10
MAX_SPREAD = 1 << 16  # between the lowest and the highest whole number of a column of classes


class Map(NamedTuple):
    """A column whose first two numbers place each trace on a map; None: the store does not say."""

    name: str
    column: str | None = None  # what was projected
    layer: int | None = None
    method: str | None = None
    # of the first two principal components, their parts of the variance; () for other methods
    variance: tuple[float, ...] = ()


class Levels(NamedTuple):
    """A column of numbers as colours."""

    # uint8 (n_rows,): the place in `classes`, or from 0 (`low` and less) to 254 (`high` and more);
    # 255 is a value that is not finite
    levels: np.ndarray
    low: float  # NaN if no value is finite
    high: float
    classes: tuple[int, ...] = ()  # ascending, of a column with a few whole numbers


def find_maps(store: TraceStore) -> dict[str, Map]:
    """The columns of a store that can be drawn as a map, those of `store project` first."""
    recorded = recorded_projections(store.provenance)
    fitting = [name for name, column in store.schema.columns.items() if _has_points(column)]
    made = {name: _describe(name, recorded[name]) for name in fitting if name in recorded}
    others = {
        name: Map(name)
        for name in fitting
        if name not in made and _is_of_points(store.schema.columns[name])
    }
    return made | others


def _has_points(column: Column) -> bool:
    """Whether each row has two floating numbers or more, on one axis."""
    is_list = column.axis is None and len(column.item_shape) == 1
    return is_list and column.dtype in FLOATS and column.item_shape[0] >= 2


def _is_of_points(column: Column) -> bool:
    """Whether a column of lists looks like coordinates that nothing recorded."""
    return column.axis_names == (DIMENSIONS,) or column.item_shape[0] <= MAX_DIMENSIONS


def _describe(name: str, made: Mapping[str, Any]) -> Map:
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


def map_states(store: TraceStore) -> dict[str, Any] | None:
    """The states that `python -m store project` would make a map of; None: there are none.

    It has the `column`, its `layers` ([] without an axis of layers), and whether it `is_there`, or
    has to be derived from the states of each token first.
    """
    columns = store.schema.columns
    for name in STATES:
        if name in columns and columns[name].axis is None and columns[name].dtype in FLOATS:
            has_layers = LAYERS_AXIS in columns[name].axis_names
            layers = store.layers(name) if has_layers else []
            return {"column": name, "layers": layers, "is_there": True}
    if STATES_OF_TOKENS in columns:
        return {"column": STATES[0], "layers": store.layers(STATES_OF_TOKENS), "is_there": False}
    return None


def levels_of(values: np.ndarray) -> Levels:
    """Turn numbers `(n_rows,)` into colours.

    A few whole numbers are classes. Others are spread from the 1st to the 99th percentile: one
    huge number would give the rest one colour.
    """
    return _classes(values) or _spread(values)


def _classes(values: np.ndarray) -> Levels | None:
    """A few whole numbers as classes; None for other numbers."""
    if values.dtype.kind not in "iub" or not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    if high - low > MAX_SPREAD:
        return None
    # numbers of 64 bits lie close together here; a difference of shorter ones may not fit in them
    wide = values if values.dtype.itemsize == 8 else values.astype(np.int64)
    places = (wide - wide.min()).astype(np.int64)
    is_there = np.bincount(places) > 0
    classes = tuple(low + place for place in np.flatnonzero(is_there).tolist())
    if len(classes) > MAX_CLASSES:
        return None
    ranks = np.cumsum(is_there) - 1
    return Levels(ranks.astype(np.uint8)[places], low, high, classes)


def _spread(values: np.ndarray) -> Levels:
    """Numbers between their percentiles, in equal steps."""
    levels = np.full(len(values), MISSING, np.uint8)
    is_finite = np.isfinite(values)
    # in 16 bits differences are not exact; those of quarters never overflow
    kind = np.float32 if values.dtype.itemsize <= 4 else np.float64
    quarters = values[is_finite].astype(kind) / 4
    if not len(quarters):
        return Levels(levels, np.nan, np.nan)
    low, high = np.percentile(quarters, [1, 99]).tolist()
    if low == high:
        low, high = float(quarters.min()), float(quarters.max())
    step = (high - low) / (N_LEVELS - 1) or 1.0
    levels[is_finite] = np.rint((np.clip(quarters, low, high) - kind(low)) / step)
    return Levels(levels, 4 * low, 4 * high)
