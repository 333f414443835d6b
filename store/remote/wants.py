"""What readers have announced, and which chunks leave a cache that is full. Pure.

Under a known order the next use of a chunk is exact, and evicting the one that is needed last is
Belady's optimum (IBM Systems Journal 5, 1966). A chunk whose next use is not known counts as needed
later than all others, and the least recently used of those goes first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from store.remote.cached_column import CachedColumn

__all__ = ["UNKNOWN", "Want", "choose_victims", "cut_wants", "unknown_use"]

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


@dataclass(order=True)
class Want:
    """Announced cells of one shard, int64 `(n,)`, ordered by when the first is needed: `use`.

    `uses` says when each is, float64 `(n,)`; `is_wanted`, whether who announced them still reads.
    """

    use: float
    column: CachedColumn = field(compare=False)
    shard: int = field(compare=False)
    cells: np.ndarray = field(compare=False)
    uses: np.ndarray = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False)
    tie: int = field(default_factory=count().__next__)

    def missing(self) -> np.ndarray:
        """The cells that are not here, and needed when it was announced; their shard is open."""
        index = self.column.index
        # what was read meanwhile is needed later
        some = index.missing(self.cells[index.next_use[self.cells] <= self.uses])
        return some[self.column.sizes(some) > 0]


def cut_wants(
    column: CachedColumn, uses: np.ndarray, most_bytes: int, is_wanted: Callable[[], bool]
) -> Iterator[Want]:
    """What is announced (see `WritableIndex.announced`), each of a few chunks of one shard."""
    uses = uses[np.argsort(uses[:, 1], kind="stable")]
    n = max(1, most_bytes // column.layout.chunk_bytes)
    for first in range(0, len(uses), n):
        some = uses[first : first + n, 0].astype(np.int64)
        use = uses[first : first + n, 1]
        shards = some // column.shard_cells
        for shard in dict.fromkeys(shards.tolist()):
            is_its = shards == shard
            yield Want(float(use[0]), column, shard, some[is_its], use[is_its], is_wanted)
