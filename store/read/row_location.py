"""Where rows lie: rows -> the items that offsets say they have -> places in shards.

`store.read.arrays.item_location` goes from items to shards and chunks. Nothing here reads but the
offsets, which are checked before they are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError
from store.format.ranges import packed_offsets
from store.read.arrays.array import Array
from store.read.arrays.item_location import Located, NextUse, pairs
from store.read.arrays.shard import RESTORE
from store.read.plan import ReadPlan, Span, slice_ranges
from store.read.token_choice import FoundTokens

__all__ = ["LocatedRows", "Offsets", "find_rows", "locate_rows"]


@dataclass(eq=False)
class Offsets:
    """Where the items of each row of a ragged axis are: row r owns `array[r] : array[r + 1]`.
    Offsets beyond the committed items, `n_items`, are damaged."""

    axis: str
    array: Array
    n_items: int

    def read(self) -> np.ndarray:
        """All of them, int64 `(n_rows + 1,)`, as they are on the disk."""
        return self.array.read(0, self.array.n_items)

    def read_checked(self) -> np.ndarray:
        """All of them, int64 `(n_rows + 1,)`; raises CorruptError, also if they do not go from 0 to
        the end."""
        offsets = self.cuts(0, self.array.n_items - 1)
        first, last = offsets[[0, -1]].tolist()
        if (first, last) != (0, self.n_items):
            raise self._wrong(first, last)
        return offsets

    def cuts(self, start: int, stop: int) -> np.ndarray:
        """Where the items of rows `start` to `stop` are: int64 `(n + 1,)`, with the last one's end.

        Raises CorruptError if they fall, or lie outside of the items.
        """
        offsets = self.array.read(start, stop + 1)
        self._check(np.arange(start, stop), offsets[:-1], offsets[1:])
        return offsets

    def item_range(self, row: int) -> tuple[int, int]:
        """The items of a row: first, and after the last; raises CorruptError."""
        start, stop = self.array.read(row, row + 2).tolist()
        if not 0 <= start <= stop <= self.n_items:
            raise self._wrong(start, stop, f", row {row}")
        return start, stop

    def item_ranges(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The items of rows: starts and stops, int64 `(n,)`; raises CorruptError."""
        starts = self.array.take(rows)
        stops = self.array.take(rows + 1)
        self._check(rows, starts, stops)
        return starts, stops

    def rows_of(self, items: Sequence[int] | tuple[np.ndarray, ...]) -> np.ndarray:
        """The row that holds each item: int64, of the shape of `items`."""
        return np.searchsorted(self.read(), items, side="right") - 1

    def next_use_of_items(self, next_use: NextUse) -> NextUse:
        """When items are needed again, of when rows are."""

        def of_items(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            return next_use(i, *self.rows_of((first, last)))

        return of_items

    def _check(self, rows: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
        is_wrong = (starts < 0) | (starts > stops) | (stops > self.n_items)
        if np.count_nonzero(is_wrong):
            i = np.argmax(is_wrong)
            raise self._wrong(int(starts[i]), int(stops[i]), f", row {rows[i]}")

    def _wrong(self, start: int, stop: int, where: str = "") -> CorruptError:
        expected = f"offsets from 0 to {self.n_items} that never fall"
        return CorruptError(
            f"axis {self.axis!r}{where}: expected {expected}, found {start} to {stop}; {RESTORE}"
        )


class FoundRows(NamedTuple):
    """The rows that are read, int64 `(n,)`: those asked for, or those of the tokens of these
    numbers; the tokens; and on each span the item ranges, starts and stops, int64 `(n,)`."""

    rows: np.ndarray
    tokens: FoundTokens | None
    ranges: dict[Span, tuple[np.ndarray, np.ndarray]]


def find_rows(plan: ReadPlan, rows: np.ndarray, offsets_of: Callable[[str], Offsets]) -> FoundRows:
    """Find the items of rows, or of tokens; raises CorruptError if offsets are damaged."""
    tokens = None if plan.tokens is None else plan.tokens.find(rows)
    rows = rows if tokens is None else tokens.rows
    ranges: dict[Span, tuple[np.ndarray, np.ndarray]] = {}
    for span in plan.spans:
        if span.axis is None:
            ranges[span] = rows, rows + 1
        elif tokens is not None and plan.is_of_tokens(span):
            ranges[span] = tokens.items, tokens.items + 1
        else:
            starts, stops = offsets_of(span.axis).item_ranges(rows)
            ranges[span] = slice_ranges(starts, stops, span, rows)
    return FoundRows(rows, tokens, ranges)


class LocatedRows(NamedTuple):
    """The rows of one batch, int64 `(n_rows,)`; the offsets of each ragged span in the packed
    batch, int64 `(n_rows + 1,)`; and what the array of each ragged column reads.

    A batch of `tokens` has the row of each of them, and no offsets of their axis."""

    rows: np.ndarray
    offsets: dict[Span, np.ndarray]
    places: dict[str, Located]
    tokens: FoundTokens | None = None


def locate_rows(
    plan: ReadPlan,
    rows: np.ndarray,
    batch_size: int,
    offsets_of: Callable[[str], Offsets],
    array_of: Callable[[str], Array],
) -> list[LocatedRows]:
    """Find where the rows of several batches are, at once: Python's part of a read, which for a
    small batch takes as long as copying it, is then paid once for all of them.

    A batch has `batch_size` rows, but for the last one. Raises CorruptError if the offsets of one
    of these rows are damaged.
    """
    n_batches = max(1, -(-len(rows) // batch_size))
    cuts = np.minimum(np.arange(n_batches + 1) * batch_size, len(rows))
    rows, tokens, ranges = find_rows(plan, rows, offsets_of)
    offsets = {
        span: packed_offsets(*bounds)
        for span, bounds in ranges.items()
        if span.axis is not None and not plan.is_of_tokens(span)
    }
    places = {
        part.name: array_of(part.name).locate(*ranges[part.span], cuts)
        for part in plan.parts
        if part.span in offsets
    }
    return [
        LocatedRows(
            rows[a:b].copy(),  # the tensor over it is kept, and all rows with it
            {span: all_of[a : b + 1] - all_of[a] for span, all_of in offsets.items()},
            {name: located[i] for name, located in places.items()},
            None if tokens is None else FoundTokens(*(part[a:b].copy() for part in tokens)),
        )
        for i, (a, b) in enumerate(pairs(cuts))
    ]
