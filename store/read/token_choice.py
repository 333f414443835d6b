"""Chosen tokens of the rows, numbered one after the other: number -> row, position and item."""

from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

__all__ = ["FoundTokens", "TokenChoice"]

MIN_BUCKETS, MAX_BUCKETS = 2**16, 2**20  # four bytes each


class FoundTokens(NamedTuple):
    """Where tokens are, all int64 `(n,)`: their rows, their positions in them, counted from 0, and
    their items on the axis."""

    rows: np.ndarray
    positions: np.ndarray
    items: np.ndarray


class TokenChoice:
    """Runs of tokens of the rows of a store: those from `firsts[i]` on in the row `rows[i]`.

    The tokens of run i have the numbers from `cuts[i]` to `cuts[i + 1]`. A row may have several
    runs, or none. Nothing grows with the number of tokens.

    Parameters
    ----------
    axis
        The ragged axis of the tokens.
    offsets
        Those of all rows on it, checked: int64 `(n_rows + 1,)`.
    cuts
        int64 `(n_runs + 1,)`, from 0; they never fall.
    rows, firsts
        int64 `(n_runs,)`; None: run i is of row i, and begins with its first token.
    """

    def __init__(
        self,
        axis: str,
        offsets: np.ndarray,
        cuts: np.ndarray,
        rows: np.ndarray | None = None,
        firsts: np.ndarray | None = None,
    ) -> None:
        self.axis = axis
        self.offsets = offsets
        self.cuts = cuts
        self.rows = rows
        self.firsts = firsts
        # Buckets of equal size, a power of two: a search among all runs takes five times as long.
        n_buckets = min(max(MIN_BUCKETS, 4 * len(cuts)), MAX_BUCKETS)
        self._bits = max(0, (len(self) // n_buckets).bit_length())
        ends = np.arange((len(self) >> self._bits) + 2) << self._bits
        buckets = (cuts.searchsorted(ends, "right") - 1).clip(max=len(cuts) - 2)
        self._buckets = buckets.astype(np.min_scalar_type(-len(cuts)))

    def __len__(self) -> int:
        return int(self.cuts[-1])

    def find(self, numbers: np.ndarray) -> FoundTokens:
        """Find tokens by number, int64 `(n,)`, each from 0 to the number of tokens less one."""
        runs = self._runs_of(numbers)
        positions = numbers - self.cuts[runs]
        if self.firsts is not None:
            positions += self.firsts[runs]
        rows = runs if self.rows is None else self.rows[runs]
        return FoundTokens(rows, positions, self.offsets[rows] + positions)

    def _runs_of(self, numbers: np.ndarray) -> np.ndarray:
        """The run of each token: the last that begins at or before it."""
        buckets = numbers >> self._bits
        low = self._buckets[buckets].astype(np.int64)
        high = self._buckets[buckets + 1].astype(np.int64)
        open_ = np.flatnonzero(low < high)
        while len(open_):
            middle = (low[open_] + high[open_] + 1) >> 1
            is_before = self.cuts[middle] <= numbers[open_]
            low[open_[is_before]] = middle[is_before]
            high[open_[~is_before]] = middle[~is_before] - 1
            open_ = open_[low[open_] < high[open_]]
        return low

    @cached_property
    def digest(self) -> str:
        """A text that another choice of tokens would not have."""
        hashed = blake2b(digest_size=8)
        for part in (self.cuts, self.rows, self.firsts):
            hashed.update(b"-" if part is None else np.ascontiguousarray(part).data)
        return hashed.hexdigest()
