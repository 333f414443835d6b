"""What readers have announced that they will need. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from store.remote.cache.cached_column import CachedColumn
from store.remote.cache.eviction import Uses

__all__ = ["Want", "cut_wants"]


@dataclass(order=True)
class Want:
    """Announced uses, ordered by when the `first` is.

    `is_wanted` says whether who announced them still reads.
    """

    first: float
    column: CachedColumn = field(compare=False)
    uses: Uses = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False)
    tie: int = field(default_factory=count().__next__)

    def missing(self) -> np.ndarray:
        """The cells that are not here, and needed when it was announced; their shards are open."""
        index = self.column.index
        cells = self.uses.cells
        # what was read meanwhile is needed later
        missing = index.missing(cells[index.times.next_use[cells] <= self.uses.when])
        return missing[self.column.sizes(missing) > 0]


def cut_wants(
    column: CachedColumn, uses: Uses, most_bytes: int, is_wanted: Callable[[], bool]
) -> Iterator[Want]:
    """What is announced, each of a few chunks."""
    uses = uses.in_order()
    n = max(1, most_bytes // column.layout.chunk_bytes)
    for first in range(0, len(uses.cells), n):
        part = uses.part(slice(first, first + n))
        yield Want(float(part.when[0]), column, part, is_wanted)
