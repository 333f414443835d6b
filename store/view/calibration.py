"""Whether the scores of a detector are probabilities: how often they come true. Pure."""

from typing import NamedTuple

import numpy as np

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
    error
        The expected calibration error, the mean over rows of the distance of a bin's share from
        its mean score; 0 is perfect.
    """

    scores: np.ndarray
    shares: np.ndarray
    counts: np.ndarray
    error: float


def calibrate(scores: np.ndarray, labels: np.ndarray) -> Calibration | None:
    """Compare scores with labels in 15 bins of one width on [0, 1].

    Parameters
    ----------
    scores, labels
        `(n_rows,)`. Rows without a score, and of other labels than 0 and 1, are left out.

    Returns
    -------
    Calibration or None
        None if no row is left, or a score is no probability.
    """
    is_used = np.isfinite(scores) & ((labels == 0) | (labels == 1))
    used = scores[is_used].astype(np.float64)
    if not len(used) or used.min() < 0 or used.max() > 1:
        return None
    bins = np.minimum((used * N_BINS).astype(np.int64), N_BINS - 1)  # 1 is of the last one
    counts = np.bincount(bins, minlength=N_BINS)
    has_rows = counts > 0
    counts = counts[has_rows]
    means = np.bincount(bins, used, N_BINS)[has_rows] / counts
    shares = np.bincount(bins, labels[is_used], N_BINS)[has_rows] / counts
    error = float(np.abs(shares - means) @ counts / len(used))
    return Calibration(means, shares, counts, error)
