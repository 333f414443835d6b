"""Trace ids -> rows: hashes of ids, and the runs of the id table. Pure.

The id table is a short list of *runs*. A run covers a range of rows and holds their 64-bit id
hashes in ascending order beside the rows. A commit adds one run and merges it with its neighbours
while they are less than twice its size, as a log-structured merge tree does: at most log2(n) runs,
and every id is written O(log n) times however often one commits.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from store.errors import CorruptError

__all__ = [
    "Run",
    "build_run",
    "hash_ids",
    "hashes_by_row",
    "plan_runs",
    "rows_of_hashes",
    "rows_with_hash",
]

Run = tuple[int, int]
"""The rows that a run of the id table covers: the first, and the one after the last."""


def hash_ids(ids: Iterable[str]) -> np.ndarray:
    """64-bit BLAKE2b of every id's UTF-8 bytes: uint64 `(n,)`."""
    texts = (trace_id.encode(errors="surrogatepass") for trace_id in ids)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8")


def build_run(hashes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort a run: (hashes ascending, their rows), equal hashes in row order."""
    order = np.lexsort((rows, hashes))
    return hashes[order], rows[order]


def hashes_by_row(run: Run, hashes: np.ndarray, rows: np.ndarray, where: object) -> np.ndarray:
    """The hashes of a run in the order of its rows.

    Raises CorruptError unless it has each row once, in the order of the hashes.
    """
    order = np.argsort(rows)
    if not np.array_equal(rows[order], np.arange(*run)) or (hashes[1:] < hashes[:-1]).any():
        raise CorruptError(
            f"{where}, id table, rows {run[0]}-{run[1]}: expected each row once, in the order of "
            "the hashes, found otherwise; restore it from a copy"
        )
    return hashes[order]


def rows_with_hash(hashes: np.ndarray, rows: np.ndarray, wanted: np.uint64) -> list[int]:
    """Rows of a run whose id has this hash (almost always none or one)."""
    start = int(np.searchsorted(hashes, wanted))
    stop = start
    while stop < len(hashes) and hashes[stop] == wanted:
        stop += 1
    return rows[start:stop].tolist()


def rows_of_hashes(hashes: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The first row of a run for each of many hashes: int64 `(n,)`, -1 where there is none.

    The run, `hashes` and `rows`, is by ascending hash; `wanted` is uint64 `(n,)`, ascending: a
    search then goes through the run once.
    """
    found = np.full(len(wanted), -1, np.int64)
    if len(hashes):
        places = np.searchsorted(hashes, wanted)
        places[places == len(hashes)] = 0
        is_here = hashes[places] == wanted
        found[is_here] = rows[places[is_here]]
    return found


def plan_runs(runs: Sequence[Run], n_rows: int) -> tuple[tuple[Run, ...], int]:
    """Which runs to keep when rows were added, and the first row of the run to build.

    The new run covers rows `first:n_rows`; it takes in every old run that is not kept.
    """
    _, first = runs[-1] if runs else (0, 0)
    n_kept = len(runs)
    for start, stop in reversed(runs):
        if stop - start >= 2 * (n_rows - first):
            break
        first = start
        n_kept -= 1
    return tuple(runs[:n_kept]), first
