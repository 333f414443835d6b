"""How often a column has which values, in bins that a filter can name. Pure.

An edge is a number of the column's own precision, and a row is counted by the comparison that a
filter makes: the filter `x >= edge and x < next edge` finds as many rows as a bar counts.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

__all__ = ["bin_places", "histogram", "short_numbers"]

N_BINS = 60
BLOCK = 1 << 16  # values counted at once, in the processor's cache
EXACT_HALVES = 2**52  # up to here, halves of whole numbers are floats of 64 bits


class Histogram(NamedTuple):
    """How often a column has which values."""

    # (n_bins + 1,), rising: float64, or Python's whole numbers; empty if there is no finite value.
    # A bin has its lower edge and not its upper one, but the last one has both.
    edges: np.ndarray
    counts: np.ndarray  # int64 (n_groups, n_bins): a line for each group of rows
    n_missing: int  # values that are NaN or infinite


def histogram(values: np.ndarray, groups: Sequence[np.ndarray], n_bins: int = N_BINS) -> Histogram:
    """Count values in bins of one width between the lowest and the highest.

    `groups` are masks, bool `(n,)`, each of the rows that are counted in one line. Whole numbers
    that lie close together get fewer bins, so that no bin is empty by itself.
    """
    is_finite = np.isfinite(values)
    finite = values[is_finite]
    n_missing = len(values) - len(finite)
    if not len(finite):
        nothing = np.zeros((len(groups), 0), np.int64)
        return Histogram(np.zeros(0), nothing, n_missing)
    if values.dtype.kind == "f":
        edges = _float_edges(finite, n_bins)
        place = partial(bin_places, edges=edges)
    else:
        edges, inner = _whole_edges(finite, n_bins)
        place = partial(np.searchsorted, inner, side="right")
    counts = np.zeros((len(groups), len(edges) - 1), np.int64)
    for start in range(0, len(values), BLOCK):
        block = slice(start, start + BLOCK)
        chosen = is_finite[block]
        places = place(values[block][chosen])
        for line, group in zip(counts, groups, strict=True):
            is_of_group = group[block][chosen]
            line += np.bincount(places[is_of_group], minlength=len(line))
    return Histogram(edges, counts, n_missing)


def bin_places(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each value: int64 `(n,)`; the first and the last bin have what lies outside.

    `values` are floating numbers `(n,)`, none of them NaN; `edges` are float64 `(n_bins + 1,)`,
    which a filter and this take in the values' precision.
    """
    kind = np.float64 if values.dtype == np.float64 else np.float32  # NumPy is slow with 16 bits
    inner = edges[1:-1].astype(values.dtype).astype(kind)
    return np.searchsorted(inner, values.astype(kind, copy=False), side="right")


def short_numbers(numbers: np.ndarray) -> np.ndarray:
    """The numbers with the fewest digits that are these in their precision: float64, a copy.

    A filter has 0.06666667, which as float32 is the same as 0.06666667014360428.
    """
    return np.array([float(str(number)) for number in numbers])


def _float_edges(finite: np.ndarray, n_bins: int) -> np.ndarray:
    """Edges in the precision of the values, the first at most the lowest one: float64."""
    limits = np.finfo(finite.dtype)
    largest = float(limits.max)
    low, high = float(finite.min()), float(finite.max())
    # bins must be wider than the distance between two numbers
    size = max(abs(low), abs(high), 1e-300)
    needed = n_bins * float(limits.eps) * size
    # halves: the distance of the largest numbers is no number
    is_wide = high / 2 - low / 2 > needed
    margin = 0.0 if is_wide else max(needed, 0.5)
    first = max(low - margin, -largest)
    last = min(high + margin, largest)
    halves = np.linspace(first / 2, last / 2, n_bins + 1)
    edges = 2 * halves
    edges[[0, -1]] = first, last
    return short_numbers(np.unique(edges.astype(finite.dtype)))


def _whole_edges(values: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of bins that are as many whole numbers wide, and the first numbers of all but one."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // n_bins)
    starts = [*range(low, high + 1, width)]
    inner = np.array(starts[1:], values.dtype)
    has_halves = low > -EXACT_HALVES and high < EXACT_HALVES
    if width == 1 and has_halves:
        return np.arange(len(starts) + 1) + (low - 0.5), inner  # a bar has its number in the middle
    return np.array([*starts, starts[-1] + width], object), inner
