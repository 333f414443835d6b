"""Which chunks leave a mirror that is full: those that are needed last. Pure.

Under a known order the next use of a chunk is exact, and evicting the one that is needed last is
Belady's optimum (IBM Systems Journal 5, 1966). A chunk whose next use is not known counts as needed
later than all others, and the least recently used of those goes first.
"""

import numpy as np

__all__ = ["UNKNOWN", "choose_victims", "first_bytes", "unknown_use"]

UNKNOWN = 2.0**52  # later than any use that is known, and whole numbers below are exact


def unknown_use(tick: float) -> float:
    """The next use of a chunk that was used at `tick`, which nobody has announced."""
    return UNKNOWN - tick


def choose_victims(next_use: np.ndarray, n_bytes: np.ndarray, wanted: int) -> np.ndarray:
    """The chunks to give up.

    Parameters
    ----------
    next_use
        When each is needed next: float64 `(n,)`.
    n_bytes
        What each takes on the disk: int64 `(n,)`.
    wanted
        Bytes to free.

    Returns
    -------
    np.ndarray
        Indices, int64: the fewest of those needed last that free so much; all, if it is not enough.
    """
    return first_bytes(np.argsort(-next_use, kind="stable"), n_bytes, wanted)


def first_bytes(order: np.ndarray, n_bytes: np.ndarray, wanted: int) -> np.ndarray:
    """As few of the first chunks of an order, indices, as together have so many bytes; or all."""
    total = np.cumsum(n_bytes[order])
    return order[: int(np.searchsorted(total, wanted)) + 1]
