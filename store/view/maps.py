"""The states of a store that a map can be made of, and the colours of its points."""

from typing import Any, NamedTuple

import numpy as np

from store.read.store import TraceStore
from store.traces.layers import LAYERS_AXIS
from store.traces.maps import FLOATS

__all__ = ["MISSING", "levels_of", "map_states"]

STATES = ("hs_last", "hs_mean", "hs_prompt")  # columns to project, the usual one first
STATES_OF_TOKENS = "hidden_states"
MISSING = 255
N_LEVELS = 255
MAX_CLASSES = 10
MAX_SPREAD = 1 << 16  # between the lowest and the highest whole number of a column of classes


class Levels(NamedTuple):
    """A column of numbers as colours."""

    # uint8 (n_rows,): the place in `classes`, or from 0 (`low` and less) to 254 (`high` and more);
    # 255 is a value that is not finite
    levels: np.ndarray
    low: float  # NaN if no value is finite
    high: float
    classes: tuple[int, ...] = ()  # ascending, of a column with a few whole numbers

    @property
    def headers(self) -> dict[str, str]:
        """What the colours mean."""
        meaning = {"X-Low": str(self.low), "X-High": str(self.high)}
        return meaning | {"X-Classes": ",".join(map(str, self.classes))}


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
