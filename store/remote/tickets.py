"""What the keeper of a cache directory is asked for, what it has to fetch, and what it counts."""

from dataclasses import dataclass

import numpy as np

from store.errors import StoreError
from store.remote.mirrored_array import MirroredArray

__all__ = ["Counts", "Job", "Ticket"]


@dataclass
class Counts:
    """Since the process started.

    Attributes
    ----------
    hits, misses
        Chunks asked for that were there, and that were not.
    fetched_bytes, fetched_twice_bytes, evicted_bytes
        From the object store; those of them that had been here before; and what had to go.
    waits
        Requests that waited for room.
    used_bytes
        Of files and of the landing memory, now.
    """

    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    fetched_twice_bytes: int = 0
    evicted_bytes: int = 0
    waits: int = 0
    used_bytes: int = 0


@dataclass(eq=False)
class Ticket:
    """A request: cells of an array that a reader copies."""

    array: MirroredArray
    cells: np.ndarray
    error: StoreError | None = None
    since: float = 0.0


@dataclass(eq=False)
class Job:
    """Cells of one shard, to be fetched in one go."""

    array: MirroredArray
    shard: int
    cells: np.ndarray
