"""Where things are: rows -> item ranges -> pieces of shards, and trace ids -> rows. Pure, no I/O.

The id table is a short list of *runs*. A run covers a range of rows and holds their 64-bit id
hashes in ascending order beside the rows. A commit adds one run and merges it with its neighbours
while they are less than twice its size, as a log-structured merge tree does: at most log2(n) runs,
and every id is written O(log n) times however often one commits.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

__all__ = [
    "Piece",
    "build_run",
    "hash_ids",
    "packed_offsets",
    "plan_pieces",
    "plan_runs",
    "rows_with_hash",
]


class Piece(NamedTuple):
    """Items `start:stop` of shard `shard`, which go to items `out:` of the packed batch."""

    shard: int
    start: int
    stop: int
    out: int


def packed_offsets(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Offsets of a packed batch: int64 `(n + 1,)`, from the item ranges `starts`, `stops` int64
    `(n,)`."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    return offsets


def plan_pieces(starts: np.ndarray, stops: np.ndarray, shard_items: int) -> list[Piece]:
    """The pieces that, copied in turn, put the ranges `starts:stops` one behind the other.

    Ranges that touch are joined, empty ones vanish, and a range is cut where a shard ends.

    Parameters
    ----------
    starts, stops
        int64 `(n,)`, items of the whole array, `starts <= stops`.
    shard_items
        Items a shard.
    """
    filled = stops > starts
    starts, stops = starts[filled], stops[filled]
    if not len(starts):
        return []
    # where the next range does not touch the last
    border = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    starts = starts[np.r_[0, border]]
    stops = stops[np.r_[border - 1, len(stops) - 1]]
    first, last = starts // shard_items, (stops - 1) // shard_items
    owner = np.repeat(np.arange(len(starts)), last - first + 1)
    shard = first[owner] + np.arange(len(owner)) - np.searchsorted(owner, owner)
    begin = np.maximum(starts[owner], shard * shard_items)
    end = np.minimum(stops[owner], (shard + 1) * shard_items)
    out = packed_offsets(begin, end)[:-1]
    base = shard * shard_items
    columns = (shard.tolist(), (begin - base).tolist(), (end - base).tolist(), out.tolist())
    return [Piece(*values) for values in zip(*columns, strict=True)]


def hash_ids(ids: Iterable[str]) -> np.ndarray:
    """64-bit BLAKE2b of every id's UTF-8 bytes: uint64 `(n,)`."""
    digests = b"".join(
        hashlib.blake2b(i.encode(errors="surrogatepass"), digest_size=8).digest() for i in ids
    )
    return np.frombuffer(digests, "<u8")


def build_run(hashes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort a run: (hashes ascending, their rows), equal hashes in row order."""
    order = np.lexsort((rows, hashes))
    return hashes[order], rows[order]


def rows_with_hash(hashes: np.ndarray, rows: np.ndarray, wanted: np.uint64) -> Sequence[int]:
    """Rows of a run whose id has this hash (almost always none or one)."""
    start = int(np.searchsorted(hashes, wanted))
    stop = start
    while stop < len(hashes) and hashes[stop] == wanted:
        stop += 1
    return rows[start:stop].tolist()


def plan_runs(
    runs: Sequence[tuple[int, int]], n_rows: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Which runs to keep when rows were added, and the first row of the run to build.

    Returns
    -------
    kept, first
        The new run covers rows `first:n_rows`; it takes in every old run that is not kept.
    """
    kept = list(runs)
    first = kept[-1][1] if kept else 0
    while kept and kept[-1][1] - kept[-1][0] < 2 * (n_rows - first):
        first = kept.pop()[0]
    return tuple(kept), first
