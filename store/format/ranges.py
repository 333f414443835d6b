"""Ranges of numbers: joined, cut at multiples of a size, counted. Pure."""

import numpy as np

__all__ = [
    "chunks_touched",
    "count_touched",
    "cut_ranges",
    "join_ranges",
    "packed_offsets",
]


def packed_offsets(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Offsets of a packed batch: int64 `(n + 1,)`, from the item ranges `starts`, `stops`."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    return offsets


def join_ranges(starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ranges without empty ones, each joined with the one before if they touch."""
    filled = stops > starts
    if not filled.all():
        starts, stops = starts[filled], stops[filled]
    if not len(starts):
        return starts, stops
    is_border = np.ones(len(starts) + 1, bool)  # before and after each range: none touches another
    np.not_equal(starts[1:], stops[:-1], out=is_border[1:-1])
    return starts[is_border[:-1]], stops[is_border[1:]]


def cut_ranges(
    starts: np.ndarray, stops: np.ndarray, n: int
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
    """Ranges cut at multiples of `n`, e.g. the items of a shard; empty ones may vanish.

    Returns, all int64 `(n_pieces,)`: which range each piece is of, or None if the ranges are the
    pieces; starts and stops of the pieces; and before which multiple of `n` each ends, the first
    being 0.
    """
    first = starts // n
    if np.count_nonzero(first == (stops - 1) // n) == len(first):
        return None, starts, stops, first
    owners, numbers = chunks_touched(starts, stops, n)
    bases = numbers * n
    return owners, np.maximum(starts[owners], bases), np.minimum(stops[owners], bases + n), numbers


def chunks_touched(starts: np.ndarray, stops: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The chunks of `n` items that ranges touch, range by range: int64 ranges, int64 chunks."""
    first = starts // n
    counts = count_touched(starts, stops, n)
    i = np.repeat(np.arange(len(starts)), counts)
    ends = np.cumsum(counts)
    return i, np.arange(len(i)) + np.repeat(first - (ends - counts), counts)


def count_touched(starts: np.ndarray, stops: np.ndarray, n: int) -> np.ndarray:
    """How many chunks of `n` items each range touches: int64 `(n_ranges,)`."""
    return np.where(stops > starts, -(-stops // n) - starts // n, 0)
