"""Scores of a detector: its mistakes, ROC and ranks, and how often they come true. Pure."""

from typing import NamedTuple

import numpy as np

from store.view.histograms import bin_places, short_numbers

__all__ = ["N_MISTAKES", "calibrate", "farthest", "mistakes", "rank_density", "rank_limits", "roc"]

N_MISTAKES = 25  # that are listed
N_CELLS = 48  # of a density, in each direction
BLOCK_ROWS = 1 << 16  # counted at once, in the processor's cache
N_ROC = 100  # quantiles of each class whose rates are told
N_BINS = 15  # of a calibration, as in the reports of runs


class Mistakes(NamedTuple):
    """Rows that a detector is wrong about, by row."""

    false_alarms: np.ndarray  # right answers from the threshold on: int64 (n,)
    misses: np.ndarray  # hallucinations below it


def mistakes(scores: np.ndarray, labels: np.ndarray, threshold: float) -> Mistakes:
    """The rows on the wrong side of a threshold.

    A score of at least the threshold says hallucination, label 1; scores are compared in their own
    precision, as a filter does it.

    `scores` and `labels` are `(n_rows,)`; rows without a score, and of other labels than 0 and 1,
    are left out.
    """
    is_scored = np.isfinite(scores)
    with np.errstate(over="ignore"):  # beyond float16 is as far as infinity
        says_wrong = scores >= threshold
    false_alarms = np.flatnonzero(is_scored & says_wrong & (labels == 0))
    misses = np.flatnonzero(is_scored & ~says_wrong & (labels == 1))
    return Mistakes(false_alarms, misses)


def farthest(
    scores: np.ndarray, rows: np.ndarray, threshold: float, n: int = N_MISTAKES
) -> np.ndarray:
    """Of some rows, at most `n` whose scores are farthest from a threshold, the farthest first."""
    nearness = -np.abs(scores[rows].astype(np.float64) - threshold)
    places = np.arange(len(rows)) if len(rows) <= n else np.argpartition(nearness, n)[:n]
    return rows[places[np.argsort(nearness[places], kind="stable")]]


class Roc(NamedTuple):
    """How a detector ranks the rows of label 1 above those of label 0."""

    auroc: float  # the chance that a row of label 1 has the higher score, a tie as half
    # scores of rows, falling: float64 (n,); the rates are those of rows with at least this score
    thresholds: np.ndarray
    false_rates: np.ndarray  # of label 0: float64 (n,)
    true_rates: np.ndarray  # of label 1: float64 (n,)


def roc(scores: np.ndarray, labels: np.ndarray) -> Roc | None:
    """The area under the curve, exactly, and the curve at some quantiles of each class.

    `scores` and `labels` are `(n_rows,)`; rows without a score, and of other labels than 0 and 1,
    are left out. Returns None if none of a class is left.
    """
    is_scored = np.isfinite(scores)
    right, wrong = (np.sort(scores[is_scored & (labels == label)]) for label in (0, 1))
    if not len(right) or not len(wrong):
        return None
    below = np.searchsorted(right, wrong) + np.searchsorted(right, wrong, side="right")
    shares = np.linspace(0, 1, N_ROC)
    chosen = [np.quantile(part, shares, method="nearest") for part in (right, wrong)]
    thresholds = np.unique(np.concatenate(chosen))[::-1]
    rates = [1 - np.searchsorted(part, thresholds) / len(part) for part in (right, wrong)]
    return Roc(float(below.mean() / (2 * len(right))), short_numbers(thresholds), *rates)


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
