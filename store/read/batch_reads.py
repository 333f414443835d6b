"""Batches of rows, read by plans: found, announced, read."""

from typing import NamedTuple

import numpy as np

from store.errors import CorruptError
from store.format.ranges import packed_offsets
from store.format.values import decode_texts
from store.read.array import pairs
from store.read.arrays import Arrays
from store.read.packed import PackedColumn, PackedRows
from store.read.plan import ColumnPart, ReadPlan, Span
from store.read.read_options import Located, ReadOptions, Schedule

__all__ = ["BatchReads", "LocatedRows"]


class LocatedRows(NamedTuple):
    """The rows of one batch, and where the items of its ragged columns are.

    Attributes
    ----------
    rows
        int64 `(n_rows,)`.
    offsets
        Of each ragged span in the packed batch: int64 `(n_rows + 1,)`.
    places
        Ragged column -> what its array reads.
    """

    rows: np.ndarray
    offsets: dict[Span, np.ndarray]
    places: dict[str, Located]


class BatchReads:
    """Reads of many rows at once.

    Rows are int64 `(n,)` and in range. Where they are is found before they are read: that touches
    offsets alone, and is done for several batches in one go.

    Parameters
    ----------
    arrays
        Of the store.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def locate(self, plan: ReadPlan, rows: np.ndarray, batch_size: int) -> list[LocatedRows]:
        """Find where the rows of several batches are, at once: Python's part of a read, which for
        a small batch takes as long as copying it, is then paid once for all of them.

        Parameters
        ----------
        plan, rows
            See `read_batch`.
        batch_size
            Rows a batch, but for the last one.

        Raises
        ------
        CorruptError
            The offsets of one of these rows are damaged.
        """
        n_batches = max(1, -(-len(rows) // batch_size))
        cuts = np.minimum(np.arange(n_batches + 1) * batch_size, len(rows))
        ranges = {span: self.arrays.ranges(span, rows) for span in plan.spans}
        offsets = {
            span: packed_offsets(*bounds)
            for span, bounds in ranges.items()
            if span.axis is not None
        }
        places = {
            part.name: self.arrays.column(part.name).locate(*ranges[part.span], cuts)
            for part in plan.parts
            if part.span.axis is not None
        }
        return [
            LocatedRows(
                rows[a:b].copy(),  # the tensor over it is kept, and all rows with it
                {span: all_of[a : b + 1] - all_of[a] for span, all_of in offsets.items()},
                {name: located[i] for name, located in places.items()},
            )
            for i, (a, b) in enumerate(pairs(cuts))
        ]

    def locate_batch(self, plan: ReadPlan, rows: np.ndarray) -> LocatedRows:
        """Find where the rows of one batch are; see `locate`."""
        (located,) = self.locate(plan, rows, max(1, len(rows)))
        return located

    def read_packed(self, plan: ReadPlan, located: LocatedRows, options: ReadOptions) -> PackedRows:
        values: dict[str, PackedColumn | list[str]] = {}
        for part in plan.parts:
            items = self._read_part(part, located, options)
            if part.picked:
                items = options.place(part.pick(items))
            cuts = located.offsets.get(part.span)
            if part.column.is_text and cuts is not None:
                values[part.name] = decode_texts(items, cuts, f"column {part.name!r}")
            else:
                values[part.name] = PackedColumn(items, cuts, part.column.dtype)
        return PackedRows(located.rows, values)

    def n_bytes(self, plan: ReadPlan, located: LocatedRows) -> float:
        """Bytes of the arrays that a batch will have, before texts are decoded."""
        total = 0.0
        for part in plan.parts:
            cuts = located.offsets.get(part.span)
            n_items = len(located.rows) if cuts is None else int(cuts[-1])
            total += n_items * part.item_bytes
        return total

    def recycled(self) -> ReadOptions:
        """To read into the store's own memory, used again after the last tensor over it is gone."""
        return ReadOptions(self.arrays.pool.empty)

    def _read_part(
        self, part: ColumnPart, located: LocatedRows, options: ReadOptions
    ) -> np.ndarray:
        array = self.arrays.column(part.name)
        axis = part.span.axis
        try:
            if axis is None:
                return array.take(located.rows, part.select, options)
            options = self._item_options(axis, options)
            return array.read_located(located.places[part.name], part.select, options)
        except CorruptError as error:
            raise self.arrays.explain(error, axis) from error

    def _item_options(self, axis: str, options: ReadOptions) -> ReadOptions:
        """The options of a read of rows, for a read of their items on an axis."""
        next_row_use = options.next_use
        if next_row_use is None:
            return options

        def next_item_use(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            return next_row_use(i, *self.arrays.offsets(axis).rows_of((first, last)))

        return options._replace(next_use=next_item_use)

    def advise(self, plan: ReadPlan, rows: np.ndarray, schedule: Schedule | None = None) -> None:
        """Announce that these rows will be read; returns before they are.

        Announced to the kernel, or to the mirror that lacks some; `schedule` says when.
        """
        ranges = {span: self.arrays.ranges(span, rows) for span in plan.spans}
        for part in plan.parts:
            starts, stops = ranges[part.span]
            times = schedule
            if schedule is not None and part.span.axis is not None:
                options = ReadOptions(next_use=schedule.next_use)
                next_use = self._item_options(part.span.axis, options).next_use
                times = schedule._replace(next_use=next_use)
            self.arrays.column(part.name).advise(starts, stops, part.select, times)

    def is_mirrored_whole(self, plan: ReadPlan) -> bool:
        """Whether the mirror, if this is one, holds all chunks of what a plan reads."""
        holders = (self.arrays.column(part.name).holder for part in plan.parts)
        return all(holder is None or holder.is_whole() for holder in holders)

    def reads_files(self, plan: ReadPlan, rows: np.ndarray) -> bool:
        """Whether `ReadOptions.files`, if it is given, reads a column of these rows."""
        ranges = {span: self.arrays.ranges(span, rows) for span in plan.spans}
        return any(
            self.arrays.column(part.name).reads_files(*ranges[part.span], part.select)
            for part in plan.parts
        )

    def is_cached(self, plan: ReadPlan, rows: np.ndarray) -> bool:
        """Whether the kernel seems to hold these rows: a page a row of the largest column."""

        def n_bytes(part: ColumnPart) -> int:
            return self.arrays.manifest.n_items_of(part.name) * part.column.item_bytes

        part = max(plan.parts, key=n_bytes, default=None)
        if part is None:
            return True
        starts, stops = self.arrays.ranges(part.span, rows)
        array = self.arrays.column(part.name)
        return all(array.is_cached(item) for item in starts[stops > starts].tolist())
