"""Whether the scores of a detector are probabilities: how often they come true. Pure."""

from typing import NamedTuple

import numpy as np

from store.view.histograms import bin_places, short_numbers

__all__ = ["Calibration", "calibrate"]

N_BINS = 15  # as in the reports of runs


class Calibration(NamedTuple):
    """Shares of hallucinations among rows of about the same score.

    Attributes
    ----------
    scores
        Mean score of each bin that has rows: float64 `(n,)`.
    shares
        Share of its rows with label 1: float64 `(n,)`.
    counts
        Its rows: int64 `(n,)`.
    edges
        Where it begins and ends, in the precision of the scores: float64 `(n, 2)`. It has its lower
        edge and not its upper one, but the last of the 15 has both.
    error
        The expected calibration error, the mean over rows of the distance of a bin's share from
        its mean score; 0 is perfect.
    """

    scores: np.ndarray
    shares: np.ndarray
    counts: np.ndarray
    edges: np.ndarray
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
