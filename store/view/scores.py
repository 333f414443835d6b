"""Scores of a detector: its mistakes, its ranks, and how often they come true. Pure."""

from typing import NamedTuple

import numpy as np

from store.view.histograms import bin_places, short_numbers

__all__ = ["Calibration", "Mistakes", "calibrate", "mistakes", "rank_density", "rank_limits"]

N_CELLS = 48  # of a density, in each direction
BLOCK_ROWS = 1 << 16  # counted at once, in the processor's cache
N_BINS = 15  # of a calibration, as in the reports of runs


class Mistakes(NamedTuple):
    """Rows that a detector is surest of, and wrong about; the worst first."""

    false_alarms: np.ndarray  # right answers with the highest scores: int64 (n,)
    misses: np.ndarray  # hallucinations with the lowest scores


def mistakes(scores: np.ndarray, labels: np.ndarray, n: int) -> Mistakes:
    """The rows whose scores contradict their labels most, at most `n` of each kind.

    A high score means a hallucination, label 1. No threshold is needed, so detectors whose scores
    are no probabilities have mistakes as well.

    `scores` and `labels` are `(n_rows,)`; rows without a score, and of other labels than 0 and 1,
    are left out.
    """
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)  # the opposite of an unsigned number is none
    is_scored = np.isfinite(scores)
    right = np.flatnonzero(is_scored & (labels == 0))
    wrong = np.flatnonzero(is_scored & (labels == 1))
    false_alarms = _lowest(-scores[right], n)
    misses = _lowest(scores[wrong], n)
    return Mistakes(right[false_alarms], wrong[misses])


def _lowest(values: np.ndarray, n: int) -> np.ndarray:
    """The places of the `n` lowest values, ascending by value."""
    places = np.arange(len(values))
    if len(values) > n:
        places = np.argpartition(values, n)[:n]
    return places[np.argsort(values[places], kind="stable")]


def rank_density(x: np.ndarray, y: np.ndarray, n_cells: int = N_CELLS) -> np.ndarray:
    """How many rows have which ranks in two scores: int64 `(n_cells, n_cells)`, y by x.

    Rows without one of the scores are left out. Equal scores lie in one cell, the
    middle one of theirs.
    """
    both = np.isfinite(x) & np.isfinite(y)
    x_borders, y_borders = (_cell_borders(values[both], n_cells) for values in (x, y))
    counts = np.zeros(n_cells**2, np.int64)
    for start in range(0, len(both), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        chosen = both[block]
        rows = _cells(y[block][chosen], y_borders)
        columns = _cells(x[block][chosen], x_borders)
        counts += np.bincount(rows * np.int64(n_cells) + columns, minlength=n_cells**2)
    return counts.reshape(n_cells, n_cells)


def rank_limits(x: np.ndarray, y: np.ndarray, n_cells: int = N_CELLS) -> np.ndarray:
    """The lowest and the highest score in each cell of `rank_density`: `(2, n_cells, 2)`, y first.

    NaN where no score is in a cell; float64.
    """
    both = np.isfinite(x) & np.isfinite(y)
    limits = np.full((2, n_cells, 2), np.nan)
    for found, values in zip(limits, (y[both], x[both]), strict=True):
        cells = _cells(values, _cell_borders(values, n_cells))
        np.fmin.at(found[:, 0], cells, values)
        np.fmax.at(found[:, 1], cells, values)
    return limits


def _cell_borders(values: np.ndarray, n_cells: int) -> np.ndarray:
    """The values between two cells, `(n_cells - 1,)`, as many values in one as in another."""
    places = np.arange(1, n_cells) * len(values) // n_cells
    return np.sort(values)[places] if len(values) else values


def _cells(values: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """The cell of each value: uint16 `(n,)`, the middle one of those whose borders it equals.

    To compare all values with some dozens of borders takes a fifth of the time of searching a
    border for each value.
    """
    twice = np.zeros(len(values), np.uint16)
    for border in borders:
        twice += values > border
        twice += values >= border
    return twice // 2


class Calibration(NamedTuple):
    """Shares of hallucinations among rows of about the same score, in the bins that have rows."""

    scores: np.ndarray  # mean score of each bin: float64 (n,)
    shares: np.ndarray  # share of its rows with label 1: float64 (n,)
    counts: np.ndarray  # its rows: int64 (n,)
    # where it begins and ends, in the precision of the scores: float64 (n, 2); it has its lower
    # edge and not its upper one, but the last of the 15 has both
    edges: np.ndarray
    # the expected calibration error, the mean over rows of the distance of a bin's share from its
    # mean score; 0 is perfect
    error: float


def calibrate(scores: np.ndarray, labels: np.ndarray) -> Calibration | None:
    """Compare scores with labels in 15 bins of one width on [0, 1].

    `scores` and `labels` are `(n_rows,)`; rows without a score, and of other labels than 0 and 1,
    are left out. Returns None if no row is left, or a score is no probability.
    """
    is_used = np.isfinite(scores) & ((labels == 0) | (labels == 1))
    chosen = scores[is_used]
    if not len(chosen) or chosen.min() < 0 or chosen.max() > 1:
        return None
    kind = chosen.dtype if chosen.dtype.kind == "f" else np.float64
    edges = short_numbers(np.linspace(0, 1, N_BINS + 1).astype(kind))  # as a filter compares
    used = chosen.astype(np.float64)
    bins = bin_places(chosen.astype(kind), edges)
    counts = np.bincount(bins, minlength=N_BINS)
    has_rows = counts > 0
    counts = counts[has_rows]
    means = np.bincount(bins, used, N_BINS)[has_rows] / counts
    shares = np.bincount(bins, labels[is_used], N_BINS)[has_rows] / counts
    error = float(np.abs(shares - means) @ counts / len(used))
    limits = np.column_stack([edges[:-1], edges[1:]])[has_rows]
    return Calibration(means, shares, counts, limits, error)
