"""What readers have announced: chunks shard by shard, those that are needed first before others.

Nothing here has a lock: the keeper calls it under its own.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from store.remote.eviction import UNKNOWN
from store.remote.mirrored_array import ABSENT, UNCHECKED, MirroredArray

__all__ = ["Want", "Wants"]


@dataclass(order=True)
class Want:
    """Announced cells of one shard, ordered by when they are needed.

    Attributes
    ----------
    use
        When the first of them is needed.
    tie
        Orders those of the same time.
    array, shard
        Where they are.
    cells, uses
        Which, int64 `(n,)`, and when each is needed, float64 `(n,)`.
    is_wanted
        Whether who announced them still reads.
    """

    use: float
    tie: int
    array: MirroredArray = field(compare=False)
    shard: int = field(compare=False)
    cells: np.ndarray = field(compare=False)
    uses: np.ndarray = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False)

    def missing(self) -> np.ndarray:
        """The cells that are not here, and needed when it was announced; their shard is open."""
        array = self.array
        # what was read meanwhile, and has gone again, is needed later
        some = array.existing(self.cells[array.next_use[self.cells] <= self.uses])
        return some[(array.status[some] == ABSENT) | (array.status[some] == UNCHECKED)]


class Wants:
    """Announcements that nothing was done about yet."""

    def __init__(self) -> None:
        self._heap: list[Want] = []
        self._ties = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, want: Want) -> None:
        heapq.heappush(self._heap, want)

    def pop(self) -> Want:
        """What is needed first."""
        return heapq.heappop(self._heap)

    def announce(
        self, array: MirroredArray, uses: np.ndarray, clock: float, is_wanted: Callable[[], bool]
    ) -> None:
        """Note when cells are needed, and have them fetched.

        Parameters
        ----------
        uses
            A cell, when it is needed, and when again after that (`UNKNOWN`: not known): float64
            `(n, 3)`.
        clock
            The time now.
        is_wanted
            Whether who announces still reads.
        """
        uses = uses[np.argsort(uses[:, 1], kind="stable")]
        some = uses[:, 0].astype(np.int64)
        use = uses[:, 1]
        after = np.where(uses[:, 2] < UNKNOWN / 2, uses[:, 2], 0)
        known = array.next_use[some]
        is_sooner = (known >= clock) & (known < use)
        array.after[some] = np.where(is_sooner, use, after)
        array.next_use[some] = np.where(is_sooner, known, use)
        array.is_wanted = is_wanted
        self._push_shards(array, some, use)

    def announce_again(
        self, array: MirroredArray, some: np.ndarray, clock: float, until: float
    ) -> None:
        """Have cells fetched that had to go for some that are needed sooner.

        Not those that are needed after `until`: they would go again, and be fetched for nothing.
        """
        use = array.next_use[some]
        is_announced = (use > clock) & (use < until)
        self._push_shards(array, some[is_announced], use[is_announced])

    def _push_shards(self, array: MirroredArray, some: np.ndarray, use: np.ndarray) -> None:
        shards = some // array.shard_cells
        for shard in dict.fromkeys(shards.tolist()):
            here = shards == shard
            first = float(use[here].min())
            of_shard = (some[here], use[here], array.is_wanted)
            self.push(Want(first, next(self._ties), array, shard, *of_shard))
