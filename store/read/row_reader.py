"""Reads rows of one committed state of a store: finds them, announces them, reads them.

Its arrays are opened when first needed. A process that was forked opens its own: it shares pages
through the kernel, never this object's state.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from store.errors import CorruptError, DamagedItemsError, NotFoundError
from store.format.contents import StoredArray, column_array, offsets_array
from store.format.manifest import Manifest, read_manifest
from store.format.ranges import join_ranges, packed_offsets
from store.format.schema import Schema
from store.format.values import decode_texts
from store.read.arrays.array import Array
from store.read.arrays.buffers import BufferPool
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.read_options import UNSCHEDULED, ReadOptions, Schedule
from store.read.batches.batch import Batch, as_torch
from store.read.batches.tensors import ColumnValues, as_numbers, as_tensor, ragged_arrays
from store.read.id_table import IdTable
from store.read.plan import ColumnPart, ReadPlan
from store.read.row_location import LocatedRows, Offsets, find_rows, locate_rows
from store.read.source import StoreSource

if TYPE_CHECKING:
    import torch

__all__ = ["RowReader"]

# of a store, shared by its arrays, which may hold as many again that were closed lately
MAX_STORE_MAPS = 16_384
CACHE_BYTES = 64 * 1024 * 1024
Timed = TypeVar("Timed", ReadOptions, Schedule)


class RowReader:
    """The arrays of a store by name, what they share, and reads of many rows at once.

    Rows are int64 `(n,)` and in range. Where they are is found before they are read: that touches
    offsets alone, and is done for several batches in one go. Shared are the cache of decoded chunks
    of compressed columns, the hashes of the trace ids, and a pool of memory of batches, used again
    after the last tensor over it is gone. With `check`, every chunk is checked against its checksum
    before it is first used.
    """

    def __init__(
        self, source: StoreSource, manifest: Manifest, cache_bytes: int | None, check: bool
    ) -> None:
        self.source = source
        self.manifest = manifest
        self.cache_bytes = _check_cache_bytes(cache_bytes, manifest.schema)
        self.check = check
        self.n_bytes_read = 0  # of items, decoded, that reads of rows asked for in this process
        self._forget()

    def __reduce__(self) -> tuple:
        return RowReader, (self.source, self.manifest, self.cache_bytes, self.check)

    def _forget(self) -> None:
        """Hold nothing: no map, no chunk, no memory, no lock of another process."""
        self.cache = ChunkCache(self.cache_bytes)
        self.id_table = IdTable(self.source, self.manifest, self.check)
        self.pool = BufferPool()
        self._count = Lock()
        self._arrays: dict[str, Array] = {}
        self._axes: dict[str, Offsets] = {}
        self._pid = os.getpid()  # last: another thread trusts the rest from here on

    def column(self, name: str) -> Array:
        """The array of a column's items."""
        array = self._arrays.get(name) if self._pid == os.getpid() else None
        if array is None:
            array = self._open(name, column_array(self.manifest, name))
        return array

    def offsets(self, axis: str) -> Offsets:
        """The offsets of the rows on a ragged axis."""
        offsets = self._axes.get(axis) if self._pid == os.getpid() else None
        if offsets is None:
            array = self._open(f"offsets of {axis}", offsets_array(axis, self.manifest.n_rows))
            offsets = Offsets(axis, array, self.manifest.n_items.get(axis, 0))
            self._axes[axis] = offsets
        return offsets

    def _open(self, key: str, array: StoredArray) -> Array:
        if self._pid != os.getpid():
            self._forget()
        max_maps = MAX_STORE_MAPS // (len(self.manifest.schema.stored) * 2 + 8)
        check = self.manifest if self.check else None
        opened = self.source.open_array(array, self.cache, max_maps, check)
        return self._arrays.setdefault(key, opened)

    def locate(self, plan: ReadPlan, rows: np.ndarray, batch_size: int) -> list[LocatedRows]:
        """Find where the rows of several batches are; see `locate_rows`."""
        return locate_rows(plan, rows, batch_size, self.offsets, self.column)

    def locate_batch(self, plan: ReadPlan, rows: np.ndarray) -> LocatedRows:
        """Find where the rows of one batch are."""
        (located,) = self.locate(plan, rows, max(1, len(rows)))
        return located

    def read(
        self,
        plan: ReadPlan,
        located: LocatedRows,
        options: ReadOptions | None = None,
        arrays: str = "torch",
    ) -> Batch:
        """Read the rows of a batch; without options into recycled memory."""
        options = options or self.recycled()
        values: dict[str, ColumnValues | np.ndarray] = {}
        for part in plan.parts:
            axis = part.span.axis
            array = self.column(part.name)
            if part.name in located.places:
                own = self._timed(options, axis)
                read = partial(array.read_located, located.places[part.name], part.select, own)
            else:
                tokens = located.tokens
                numbers = located.rows if axis is None or tokens is None else tokens.items
                read = partial(array.take, numbers, part.select, options)
            try:
                items = read()
            except CorruptError as error:
                raise self.explain(error, axis) from error
            with self._count:
                self.n_bytes_read += items.nbytes
            values[part.name] = _packed(part, items, located.offsets.get(part.span))
        positions = None if located.tokens is None else located.tokens.positions
        batch = Batch(located.rows, values, positions)
        return batch if arrays == "numpy" else as_torch(batch)

    def value(self, name: str, row: int) -> "np.ndarray | torch.Tensor | str":
        """One column of one row; see `Trace`."""
        column = self.manifest.schema.stored[name]
        axis = self.manifest.schema.axis_of(name)
        start, stop = row, row + 1
        if axis is not None:
            start, stop = self.offsets(axis).item_range(row)
        with self.explained(axis):
            items = self.column(name).read(start, stop)
        if column.is_text:
            offsets = np.array([0, len(items)])
            (text,) = decode_texts(items, offsets, f"column {name!r}, row {row}")
            return text
        value = as_numbers(items, column.dtype)
        if column.axis is None:
            value = value[0]
        if column.dtype == "bfloat16" and value.ndim:
            return as_tensor(value.copy())
        return value

    def text_items(
        self, name: str, rows: np.ndarray, n_bytes: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of a utf8 column in some rows, or the first of each, uint8 `(n_bytes,)`, and
        their offsets, int64 `(n_rows + 1,)`."""
        starts, stops = self.offsets(name).item_ranges(rows)
        if n_bytes is not None:
            stops = np.minimum(stops, starts + n_bytes)
        with self.explained(name):
            items = self.column(name).read_ranges(*join_ranges(starts, stops))
        return items, packed_offsets(starts, stops)

    def whole_column(self, name: str) -> np.ndarray | list[str]:
        """A fixed or utf8 column of all rows: a view of the file where one shard holds it."""
        axis = self.manifest.schema.axis_of(name)
        with self.explained(axis):
            items = self.column(name).read(0, self.manifest.n_items_of(name))
        if axis is None:
            return as_numbers(items, self.manifest.schema.stored[name].dtype)
        return decode_texts(items, self.offsets(axis).read_checked(), f"column {name!r}")

    def _timed(self, times: Timed, axis: str | None) -> Timed:
        """What says when rows are needed again, for their items on an axis."""
        if times.next_use is None or axis is None:
            return times
        return times._replace(next_use=self.offsets(axis).next_use_of_items(times.next_use))

    def recycled(self) -> ReadOptions:
        """To read into the store's own memory, used again after the last tensor over it is gone."""
        return ReadOptions(self.pool.empty)

    def n_bytes(self, plan: ReadPlan, located: LocatedRows) -> float:
        """Bytes of the arrays that a batch will have, before texts are decoded."""
        total = 0.0
        for part in plan.parts:
            cuts = located.offsets.get(part.span)
            n_items = len(located.rows) if cuts is None else int(cuts[-1])
            total += n_items * part.item_bytes
        return total

    def advise(self, plan: ReadPlan, rows: np.ndarray, schedule: Schedule = UNSCHEDULED) -> None:
        """Announce that these rows will be read, and perhaps when; returns before they are."""
        ranges = find_rows(plan, rows, self.offsets).ranges
        for part in plan.parts:
            times = self._timed(schedule, part.span.axis)
            self.column(part.name).advise(*ranges[part.span], part.select, times)

    def is_here(self, plan: ReadPlan) -> bool:
        """Whether all chunks of what a plan reads are on this machine."""
        return all(self.column(part.name).is_here() for part in plan.parts)

    def reads_files(self, plan: ReadPlan, rows: np.ndarray) -> bool:
        """Whether `ReadOptions.files`, if it is given, reads a column of these rows."""
        ranges = find_rows(plan, rows, self.offsets).ranges
        arrays = ((self.column(part.name), part) for part in plan.parts)
        return any(
            array.reads_files(*array.places(*ranges[part.span]), part.select)
            for array, part in arrays
        )

    def is_cached(self, plan: ReadPlan, rows: np.ndarray) -> bool:
        """Whether the kernel seems to hold these rows: a page a row of the largest column."""

        def n_bytes(part: ColumnPart) -> int:
            return self.manifest.n_items_of(part.name) * part.column.item_bytes

        part = max(plan.parts, key=n_bytes, default=None)
        if part is None:
            return True
        ranges = find_rows(plan, rows, self.offsets).ranges
        starts, stops = ranges[part.span]
        array = self.column(part.name)
        return all(array.is_cached(item) for item in starts[stops > starts].tolist())

    @contextmanager
    def explained(self, axis: str | None = None) -> Iterator[None]:
        """A block that reads one column, whose errors are explained; see `explain`."""
        try:
            yield
        except CorruptError as error:
            raise self.explain(error, axis) from error

    def explain(self, error: CorruptError, axis: str | None = None) -> CorruptError:
        """The error with the rows of damaged items, and whether the store has changed since."""
        message = str(error)
        if isinstance(error, DamagedItemsError):
            first, stop = error.items
            last = stop - 1
            if axis is not None:
                first, last = self.offsets(axis).rows_of((first, last)).tolist()
            rows = f"row {first}" if first == last else f"rows {first} to {last}"
            message = f"{message}; {rows}"
        return CorruptError(f"{self._change_hint()}{message}")

    def _change_hint(self) -> str:
        """What to do first if the store is no longer what was opened."""
        path = self.source.directory.now()
        try:
            now = read_manifest(path)
        except NotFoundError:  # what was read says so
            return ""
        if (now.uuid, now.generation) == (self.manifest.uuid, self.manifest.generation):
            return ""
        return f"{path}: it was changed meanwhile: open the store again; if that does not help: "


def _packed(
    part: ColumnPart, items: np.ndarray, cuts: np.ndarray | None
) -> "ColumnValues | np.ndarray":
    """The items that were read of a column, as a batch holds them."""
    if part.column.is_text and cuts is not None:
        return decode_texts(items, cuts, f"column {part.name!r}")
    values = as_numbers(items, part.column.dtype)
    return values if cuts is None else ragged_arrays(values, cuts)


def _check_cache_bytes(cache_bytes: int | None, schema: Schema) -> int:
    """The cache's size; raises ValueError if it could not hold one chunk."""
    compressed = [schema.layout(name) for name, column in schema.columns.items() if column.codec]
    largest = max((layout.chunk_bytes for layout in compressed), default=0)
    if cache_bytes is None:
        return max(CACHE_BYTES, largest)
    if cache_bytes and cache_bytes < largest:
        expected = f"0, or at least one chunk of {largest} bytes"
        raise ValueError(f"cache_bytes: expected {expected}, found {cache_bytes}")
    return cache_bytes
