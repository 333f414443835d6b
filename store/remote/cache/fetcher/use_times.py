"""When the chunks of a store are needed, as readers announce it.

Under a known order the next use of a chunk is exact, and evicting the one that is needed last is
Belady's optimum (IBM Systems Journal 5, 1966). A chunk whose next use is not known counts as needed
later than all others, and the least recently used of those goes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from store.remote.cache.messages import UNKNOWN

__all__ = ["Reader", "UseTimes", "Uses"]


class Uses(NamedTuple):
    """Announced uses of cells, int64 `(n,)`: when each is, and when the cell is used `again` after
    that, float64 `(n,)`; `UNKNOWN` if that is not known."""

    cells: np.ndarray
    when: np.ndarray
    again: np.ndarray

    def part(self, which: np.ndarray | slice) -> "Uses":
        """Some of them: indices, a mask or a slice."""
        return Uses(*(field[which] for field in self))

    def in_order(self) -> "Uses":
        """The first before others."""
        return self.part(np.argsort(self.when, kind="stable"))


NOTHING = Uses(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


@dataclass(eq=False)
class Reader:
    """Who announces: what is added to its own times, and how far it is.

    It `is_alive` until its connection ends.
    """

    offset: float
    now: float
    is_alive: bool = True


class UseTimes:
    """When the chunks of a store are needed, whose `sizes` are uint32 `(n_cells,)`.

    Attributes
    ----------
    next_use
        float64 `(n_cells,)`: when a chunk is needed; 0: not announced.
    announced
        Uses that are not over, of each reader the first before others.
    ahead_bytes
        Of the chunks that were fetched for a use that is not over.
    """

    def __init__(self, sizes: np.ndarray) -> None:
        self.sizes = sizes
        self.next_use = np.zeros(len(sizes))
        self.announced: dict[Reader, Uses] = {}
        self.ahead_bytes = 0
        self._is_ahead = np.zeros(len(sizes), bool)

    def announce(self, reader: Reader, uses: Uses, clock: float) -> None:
        """Note uses of a reader; those of a chunk that were to come before stay."""
        known = self.next_use[uses.cells]
        is_sooner = (known >= clock) & (known < uses.when)
        self.next_use[uses.cells] = np.where(is_sooner, known, uses.when)
        both = zip(self.announced.get(reader, NOTHING), uses, strict=True)
        self.announced[reader] = Uses(*map(np.concatenate, both)).in_order()

    def end_before(self, past_of: Callable[[Reader], float]) -> None:
        """Take uses before what is past of their reader as over: most reads are not reported."""
        for reader, uses in list(self.announced.items()):
            self._end(reader, uses.when < past_of(reader))

    def note_read(self, cells: np.ndarray, now: float, tick: float, *, is_announced: bool) -> None:
        """Cells have been read, at a tick: if it was announced, the first use of each is over."""
        rest = cells
        for reader, uses in list(self.announced.items()) if is_announced else ():
            is_first = uses.when <= self.next_use[uses.cells]
            is_over = is_first & np.isin(uses.cells, rest)
            self._end(reader, is_over)
            rest = np.setdiff1d(rest, uses.cells[is_over])  # others will read them too
        use = self.next_use[cells]
        is_to_come = (use >= now) & (use < UNKNOWN / 2)
        # of those that nobody has announced, the least recently used is needed last
        self.next_use[cells] = np.where(is_to_come, use, UNKNOWN - tick)

    def order(self, cells: np.ndarray, past: float) -> np.ndarray:
        """By what cells are evicted, the largest first; what was to be before `past` is over.

        So is what nobody has announced, as what an earlier process left of other columns.
        """
        uses = self.next_use[cells]
        return np.where((uses < past) | (uses == 0), UNKNOWN, uses)

    def _end(self, reader: Reader, is_over: np.ndarray) -> None:
        if not is_over.any():
            return
        uses = self.announced.pop(reader)
        over = uses.part(is_over)
        if not is_over.all():
            self.announced[reader] = uses.part(~is_over)
        self.next_use[over.cells] = over.again
        self.end_ahead(np.unique(over.cells))
        for uses in self.announced.values():
            np.minimum.at(self.next_use, uses.cells, uses.when)

    def begin_ahead(self, cells: np.ndarray) -> None:
        """Cells, each once, are fetched for announced uses."""
        self.end_ahead(cells)
        self._is_ahead[cells] = True
        self.ahead_bytes += int(self.sizes[cells].sum())

    def end_ahead(self, cells: np.ndarray) -> None:
        """Cells, each once, are not needed any more for what they were fetched for."""
        ended = cells[self._is_ahead[cells]]
        self._is_ahead[ended] = False
        self.ahead_bytes -= int(self.sizes[ended].sum())
