"""The offsets of a ragged axis: rows -> ranges of items, checked before they are used."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from store.errors import CorruptError
from store.read.array import Array
from store.read.shard import RESTORE

__all__ = ["Offsets"]


@dataclass(eq=False)
class Offsets:
    """Where the items of each row of a ragged axis are.

    Parameters
    ----------
    axis
        Its name.
    array
        Its offsets: row r owns the items `offsets[r] : offsets[r + 1]`.
    n_items
        Committed items; offsets beyond them are damaged.
    """

    axis: str
    array: Array
    n_items: int

    def read(self) -> np.ndarray:
        """All of them, int64 `(n_rows + 1,)`, as they are on the disk."""
        return self.array.read(0, self.array.n_items)

    def read_checked(self) -> np.ndarray:
        """All of them, int64 `(n_rows + 1,)`; raises CorruptError."""
        offsets = self.read()
        self._check(np.arange(len(offsets) - 1), offsets[:-1], offsets[1:])
        return offsets

    def item_range(self, row: int) -> tuple[int, int]:
        """The items of a row: first, and after the last; raises CorruptError."""
        start, stop = self.array.read(row, row + 2).tolist()
        self._check_bounds(start, stop)
        if stop < start:
            raise self._fall(row)
        return start, stop

    def item_ranges(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The items of rows: starts and stops, int64 `(n,)`; raises CorruptError."""
        starts = self.array.take(rows)
        stops = self.array.take(rows + 1)
        self._check(rows, starts, stops)
        return starts, stops

    def cuts(self, start: int, stop: int) -> np.ndarray:
        """Where the items of rows `start` to `stop` are: int64 `(n + 1,)`, with the last one's end.

        Raises
        ------
        CorruptError
            They fall, or lie outside of the items.
        """
        offsets = self.array.read(start, stop + 1)
        self._check(np.arange(start, stop), offsets[:-1], offsets[1:])
        return offsets

    def rows_of(self, items: Sequence[int] | tuple[np.ndarray, ...]) -> np.ndarray:
        """The row that holds each item: int64, of the shape of `items`."""
        return np.searchsorted(self.read(), items, side="right") - 1

    def _check(self, rows: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
        if len(rows):
            self._check_bounds(int(starts.min()), int(stops.max()))
            falls = stops < starts
            if falls.any():
                raise self._fall(int(rows[np.argmax(falls)]))

    def _check_bounds(self, start: int, stop: int) -> None:
        if not 0 <= start <= self.n_items or not 0 <= stop <= self.n_items:
            expected = f"offsets from 0 to {self.n_items}"
            raise CorruptError(
                f"axis {self.axis!r}: expected {expected}, found {start} to {stop}; {RESTORE}"
            )

    def _fall(self, row: int) -> CorruptError:
        return CorruptError(
            f"axis {self.axis!r}, row {row}: expected offsets that never fall; {RESTORE}"
        )
