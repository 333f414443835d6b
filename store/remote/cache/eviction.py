"""Which chunks leave a cache that is full. Pure.

Under a known order the next use of a chunk is exact, and evicting the one that is needed last is
Belady's optimum (IBM Systems Journal 5, 1966). A chunk whose next use is not known counts as needed
later than all others, and the least recently used of those goes first.
"""

import numpy as np

__all__ = ["UNKNOWN", "choose_victims", "unknown_use"]

UNKNOWN = 2.0**52  # later than any use that is known, and whole numbers below are exact


def unknown_use(tick: float) -> float:
    """The next use of a chunk that was used at `tick`, which nobody has announced."""
    return UNKNOWN - tick


def choose_victims(next_use: np.ndarray, n_bytes: np.ndarray, wanted: int) -> np.ndarray:
    """The chunks to evict, so that `wanted` bytes are free: indices, int64.

    `next_use` is when each is needed next, float64 `(n,)`, `n_bytes` what it takes, int64 `(n,)`.
    They are the fewest of those needed last; all, if it is not enough.
    """
    order = np.argsort(-next_use, kind="stable")
    total = np.cumsum(n_bytes[order])
    return order[: int(np.searchsorted(total, wanted)) + 1]
