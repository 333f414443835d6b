"""What readers have announced that they will need. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from store.remote.cache.cached_column import CachedColumn

__all__ = ["Want", "cut_wants"]


@dataclass(order=True)
class Want:
    """Announced cells, int64 `(n,)`, ordered by when the first is needed: `use`.

    `uses` says when each is, float64 `(n,)`; `is_wanted`, whether who announced them still reads.
    """

    use: float
    column: CachedColumn = field(compare=False)
    cells: np.ndarray = field(compare=False)
    uses: np.ndarray = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False)
    tie: int = field(default_factory=count().__next__)

    def missing(self) -> np.ndarray:
        """The cells that are not here, and needed when it was announced; their shards are open."""
        index = self.column.index
        # what was read meanwhile is needed later
        some = index.missing(self.cells[index.next_use[self.cells] <= self.uses])
        return some[self.column.sizes(some) > 0]


def cut_wants(
    column: CachedColumn, uses: np.ndarray, most_bytes: int, is_wanted: Callable[[], bool]
) -> Iterator[Want]:
    """What is announced (see `WritableIndex.announced`), each of a few chunks."""
    uses = uses[np.argsort(uses[:, 1], kind="stable")]
    n = max(1, most_bytes // column.layout.chunk_bytes)
    for first in range(0, len(uses), n):
        some = uses[first : first + n, 0].astype(np.int64)
        use = uses[first : first + n, 1]
        yield Want(float(use[0]), column, some, use, is_wanted)
