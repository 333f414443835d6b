"""Where items are: item ranges -> pieces of shards. Pure, no I/O."""

from typing import NamedTuple

import numpy as np

__all__ = ["Piece", "packed_offsets", "plan_pieces", "split_ranges"]


class Piece(NamedTuple):
    """Items `start:stop` of shard `shard`, which go to items `out:` of the packed batch."""

    shard: int
    start: int
    stop: int
    out: int


def packed_offsets(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Offsets of a packed batch: int64 `(n + 1,)`, from the item ranges `starts`, `stops`."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    return offsets


def plan_pieces(starts: np.ndarray, stops: np.ndarray, shard_items: int) -> list[Piece]:
    """The pieces that, copied in turn, put the ranges `starts:stops` one after the other.

    Ranges that touch are joined, empty ones vanish, and a range is cut where a shard ends.

    Parameters
    ----------
    starts, stops
        int64 `(n,)`, items of the whole array, `starts <= stops`.
    shard_items
        Items a shard.
    """
    fields = split_ranges(starts, stops, shard_items)
    return list(map(Piece, *(field.tolist() for field in fields)))


def split_ranges(
    starts: np.ndarray, stops: np.ndarray, shard_items: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The fields of the pieces of `plan_pieces`, each int64 `(n_pieces,)`."""
    filled = stops > starts
    starts = starts[filled]
    stops = stops[filled]
    if not len(starts):
        return starts, starts, starts, starts
    gaps = np.flatnonzero(starts[1:] != stops[:-1]) + 1  # ranges that do not touch the one before
    starts = starts[np.r_[0, gaps]]
    stops = stops[np.r_[gaps - 1, len(stops) - 1]]
    first = starts // shard_items
    last = (stops - 1) // shard_items
    owner = np.repeat(np.arange(len(starts)), last - first + 1)  # range of each piece
    shard = first[owner] + np.arange(len(owner)) - np.searchsorted(owner, owner)
    base = shard * shard_items
    begin = np.maximum(starts[owner], base)
    end = np.minimum(stops[owner], base + shard_items)
    return shard, begin - base, end - base, packed_offsets(begin, end)[:-1]
