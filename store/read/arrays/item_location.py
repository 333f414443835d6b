"""Where items lie: item numbers -> places -> shards and chunks. Pure.

An array of several segments has its items at other places than their numbers say
(`store.format.segments`); shards and chunks are counted in places.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from store.format.ranges import cut_ranges, join_ranges, packed_offsets
from store.format.segments import Segments

__all__ = [
    "Located",
    "NextUse",
    "Part",
    "Piece",
    "next_use_of_places",
    "pairs",
    "plan_parts",
    "plan_pieces",
]

NextUse = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(i, first, last) -> when any of the items `first` to `last` is needed again after the i-th range
of this read; all `(n,)`."""


class Located(NamedTuple):
    """The ranges of places that one read copies, int64 `(n,)`, and the number of the shard, or of
    the chunk, that each lies in; None: they are not cut where one ends."""

    starts: np.ndarray
    stops: np.ndarray
    numbers: np.ndarray | None = None


class Piece(NamedTuple):
    """Items `start:stop` of shard `shard`, which go to items `out:` of the packed batch."""

    shard: int
    start: int
    stop: int
    out: int


def plan_pieces(starts: np.ndarray, stops: np.ndarray, shard_items: int) -> list[Piece]:
    """The pieces that, copied in turn, put the ranges `starts:stops` one after the other.

    Ranges that touch are joined, empty ones vanish, and a range is cut where a shard ends. `starts`
    and `stops` are int64 `(n,)`, items of the whole array, `starts <= stops`.
    """
    starts, stops = join_ranges(starts, stops)
    _, starts, stops, shards = cut_ranges(starts, stops, shard_items)
    bases = shards * shard_items
    fields = (shards, starts - bases, stops - bases, packed_offsets(starts, stops)[:-1])
    return list(map(Piece, *(field.tolist() for field in fields)))


Part = tuple[int, int, int, int]
"""(i, start, stop, at): of the i-th range, items `start:stop` of a chunk, which go to the items
`at:` of the packed batch."""


def plan_parts(starts: list[int], stops: list[int], chunk_items: int) -> dict[int, list[Part]]:
    """What ranges of items, which follow each other in the packed batch, need of each chunk.

    It is a plain loop: for one row, which a page or a script waits for, NumPy's calls cost five
    times as much, and for many the decoding costs more.
    """
    parts: dict[int, list[Part]] = {}
    at = 0
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        while start < stop:
            chunk, inside = divmod(start, chunk_items)
            n_items = min(stop - start, chunk_items - inside)
            parts.setdefault(chunk, []).append((i, inside, inside + n_items, at))
            start += n_items
            at += n_items
    return parts


def pairs(cuts: np.ndarray) -> Iterator[tuple[int, int]]:
    return pairwise(cuts.tolist())


def next_use_of_places(
    segments: Segments | None, starts: np.ndarray, next_use: NextUse | None
) -> NextUse | None:
    """When places are needed again, of when items are; `starts` begin the ranges of places."""
    if next_use is None or segments is None:
        return next_use
    numbers = segments.of_places(starts)
    shifts = segments.shifts[numbers]
    last_items = segments.stops[numbers] - 1

    def of_places(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        last_of_chunk = np.minimum(last - shifts[i], last_items[i])
        return next_use(i, first - shifts[i], last_of_chunk)

    return of_places
