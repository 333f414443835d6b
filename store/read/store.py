"""Read a store: rows by number, traces by id, packed batches. Never writes, never decides an order.

Opening reads one small file. Shards are mapped when first needed; processes share the page cache. A
store pickles as its path and its manifest, never an array, so that a worker process sees the same
rows.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
import torch

from store.errors import CorruptError, DamagedItemsError, NotFoundError, SchemaError, closest
from store.format.contents import StoredArray, column_array, offsets_array
from store.format.ids import hash_ids, rows_with_hash
from store.format.layers import LAYERS_AXIS, layer_numbers
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.format.ranges import packed_offsets
from store.format.schema import TRACE_ID, Schema
from store.format.values import decode_texts
from store.read.array import Destination, NextUse
from store.read.batch import Batch, Ragged, as_tensor
from store.read.buffers import BufferPool
from store.read.chunk_cache import ChunkCache
from store.read.compressed_array import CompressedArray
from store.read.frames import frame_columns, make_frame
from store.read.id_table import check_run, read_run
from store.read.open_array import open_array
from store.read.plan import ColumnPart, ReadPlan, Select, Span, plan_read, slice_ranges
from store.read.raw_array import RawArray
from store.read.shard import RESTORE
from store.read.summary import column_lines, shape_text
from store.read.trace import Trace, TraceIds

if TYPE_CHECKING:
    import pandas

__all__ = ["Rows", "TraceStore"]

Rows = Sequence[int] | np.ndarray | slice | Sequence[str]  # rows by number, or by trace id

MAX_MAPS = 32_768  # of a store, shared by its arrays; the kernel allows a process 65,530
CACHE_BYTES = 64 * 1024 * 1024


class TraceStore:
    """A committed state of a store; use `open`.

    Attributes
    ----------
    path
        Where it is.
    schema
        Its columns.
    uuid
        Its identity, the same after appending.
    generation
        Which commit this is a view of.
    provenance
        Where its traces come from.
    check
        Whether every chunk is checked against its checksum before it is used.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        cache_bytes: int | None = None,
        check: bool = False,
        inode: int | None = None,
    ) -> None:
        self.path, self._manifest, self.check = Path(path).absolute(), manifest, check
        self.schema, self.uuid = manifest.schema, manifest.uuid
        self.generation, self.provenance = manifest.generation, manifest.provenance
        self.cache_bytes = _check_cache_bytes(cache_bytes, manifest.schema)
        # when the manifest was written that was read last, and whether it is another
        self._looked_at = (0, False)
        # a repair puts another directory here
        self._inode = self.path.stat().st_ino if inode is None else inode
        self._forget()

    def _forget(self) -> None:
        """Hold nothing: no map, no chunk, no memory, no lock of another process."""
        self._pid = os.getpid()
        self.cache, self._pool = ChunkCache(self.cache_bytes), BufferPool()
        self._arrays: dict[str, RawArray | CompressedArray] = {}
        self._run_ranges, self._run_sums = self._manifest.runs, self._manifest.run_sums
        self._runs: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def open(
        cls,
        path: "str | Path | TraceStore",
        cache_bytes: int | None = None,
        check: bool | None = None,
    ) -> "TraceStore":
        """Open the store at `path` (an open store is returned as it is, unless something shall be
        otherwise).

        Parameters
        ----------
        path
            Directory of the store.
        cache_bytes
            Decoded chunks of compressed columns to keep: 0, or at least one chunk; None chooses 64
            MiB. Raw columns need none, the kernel keeps their pages.
        check
            Check every chunk against its checksum before it is used, at every read: what has rotted
            on the disk is an error, never a value. None: not. (Compressed chunks and tables of
            shards are always checked.)

        Raises
        ------
        NotFoundError
            Nothing there.
        FormatError
            What is there is no store, is damaged, or is of a newer format.
        """
        if not isinstance(path, TraceStore):
            return cls(Path(path), read_manifest(path), cache_bytes, bool(check))
        if cache_bytes in (None, path.cache_bytes) and check in (None, path.check):
            return path
        kept = path.cache_bytes if cache_bytes is None else cache_bytes
        return cls(
            path.path, path._manifest, kept, path.check if check is None else check, path._inode
        )

    def refresh(self) -> "TraceStore":
        """The store as it is now: this one if nothing was committed since it was opened, else a new
        one.

        Whoever goes on with this one goes on seeing what it saw.
        """
        now = read_manifest(self.path)
        same = (now.uuid, now.generation) == (self.uuid, self.generation)
        return self if same else TraceStore(self.path, now, self.cache_bytes, self.check)

    def __len__(self) -> int:
        return self._manifest.n_rows

    def n_items(self, name: str) -> int:
        """Items of a column in all rows together (the number of rows, for a fixed column)."""
        self.schema.column(name, str(self.path))
        return self._manifest.n_items_of(name)

    def lengths(self, name: str) -> np.ndarray:
        """Items of a column in every row: int64 `(n_rows,)`; ones for a fixed column."""
        self.schema.column(name, str(self.path))
        axis = self.schema.axis_of(name)
        return np.diff(self.offsets(axis)) if axis else np.ones(len(self), np.int64)

    def layers(self, name: str) -> list[int]:
        """The layers of a column as the model numbers them, from 1 if the store records none; []
        for other columns."""
        column = self.schema.column(name, str(self.path))
        if LAYERS_AXIS not in column.axis_names:
            return []
        n_layers = column.item_shape[column.axis_names.index(LAYERS_AXIS)]
        return layer_numbers(self.provenance, n_layers)

    def offsets(self, axis: str) -> np.ndarray:
        """The borders of the rows on a ragged axis, int64 `(n_rows + 1,)`."""
        return self._offsets(axis).read(0, len(self) + 1)

    @property
    def ids(self) -> "TraceIds":
        """The trace ids, by row; reads what is asked for."""
        return TraceIds(self)

    def row_of(self, trace_id: str) -> int:
        """The row of a trace; time does not grow with the number of rows.

        Raises
        ------
        NotFoundError
            There is no such trace; the message names ids like it.
        """
        row = self._find(trace_id)
        if row is None:
            # enough to find a slip of the pen, at any size
            known = self.ids[: min(len(self), 20_000)]
            raise NotFoundError(
                f"{self.path}: expected one of its {len(self)} trace ids, "
                f"found {trace_id!r:.200}{closest(str(trace_id), known)}"
            )
        return row

    def _find(self, trace_id: str) -> int | None:
        if not isinstance(trace_id, str):
            return None
        try:
            rows = self.rows_with_hash(hash_ids([trace_id])[0])
            return next((row for row in rows if self.ids[row] == trace_id), None)
        except CorruptError as error:
            if not self._follow_runs():
                raise CorruptError(f"{error}{self._hint()}") from error
        return self._find(trace_id)

    def _follow_runs(self) -> bool:
        """After a commit merged the id table's runs: take the new ones, which hold our ids too;
        False if none are."""
        now = read_manifest(self.path)
        if now.uuid != self.uuid or now.runs == self._run_ranges:
            return False
        self._run_ranges, self._run_sums = now.runs, now.run_sums
        return True

    def __contains__(self, trace_id: str) -> bool:
        return self._find(trace_id) is not None

    def rows_with_hash(self, wanted: np.uint64) -> Iterator[int]:
        """Rows whose id has this hash, almost always none or one."""
        rows = (
            row
            for run in reversed(self._run_ranges)
            for row in rows_with_hash(*self.id_run(run), wanted)
        )
        return (row for row in rows if 0 <= row < len(self))

    def id_hashes(self) -> list[np.ndarray]:
        """The hashes of all ids: uint64 arrays, each sorted, mapped; of rows committed since,
        too."""
        return [self.id_run(run)[0] for run in self._run_ranges]

    def id_run(self, run: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """One run of the id table: hashes uint64 and rows int64, mapped; raises CorruptError."""
        if run not in self._runs:
            found = read_run(self.path, run, self._inode)
            if self.check:
                check_run(run, *found, self._run_sums)
            self._runs[run] = found
        return self._runs[run]

    @overload
    def __getitem__(self, key: str) -> "Trace": ...

    @overload
    def __getitem__(self, key: int) -> "Trace": ...

    def __getitem__(self, key: str | int) -> "Trace":
        """The trace with an id (str) or in a row (int); nothing is read until a column is asked
        for.

        Row -1 is the last one.

        Raises
        ------
        NotFoundError
            There is no trace of this id.
        IndexError
            There is no such row.
        """
        row = self.row_of(key) if isinstance(key, str) else int(self.check_rows([key])[0])
        return Trace(self, row)

    def __iter__(self) -> Iterator["Trace"]:
        """The traces one after the other, in constant memory."""
        return (Trace(self, row) for row in range(len(self)))

    def read_value(self, name: str, row: int) -> np.ndarray | torch.Tensor | str:
        """One column of one row; see `Trace`."""
        column = self.schema.column(name, str(self.path))
        start, stop = self._item_range(name, row)
        with self._naming_rows(self.schema.axis_of(name)):
            items = self._column(name).read(start, stop)
        if column.is_text:
            return decode_texts(items, np.array([0, len(items)]), f"column {name!r}, row {row}")[0]
        value = items if column.axis else items[0]
        if column.dtype == "bfloat16":
            return as_tensor(np.array(value), "bfloat16")
        return value if value.ndim else value[()]

    def _item_range(self, name: str, row: int) -> tuple[int, int]:
        axis = self.schema.axis_of(name)
        if axis is None:
            return row, row + 1
        start, stop = self._offsets(axis).read(row, row + 2).tolist()
        self._check_ranges(axis, start, stop)
        if stop < start:
            raise CorruptError(
                f"axis {axis!r}, row {row}: expected offsets that never fall; {RESTORE}"
            )
        return start, stop

    def read(
        self, rows: Rows, columns: Sequence[str] | None = None, select: Select | None = None
    ) -> Batch:
        """Read rows into one packed batch, in the order given (a row may be asked for twice).

        Parameters
        ----------
        rows
            Row numbers `(n,)`, where -1 is the last row; or a slice of them; or trace ids, a
            sequence of strings.
        columns
            Names; all columns of the schema if None.
        select
            Column -> axis name -> slice or index, e.g. `{"hidden_states": {"tokens": -1, "layers":
            slice(16, 20)}}`; only these bytes are read (of layers at uneven distances the smallest
            slice that holds them). A slice or index of length one keeps its axis. The ragged axis
            is sliced row by row as a list is: a row too short gives fewer items. Slices and indices
            are positions, from 0; layers may also be named as the model numbers them, by a text:
            `{"hs_last": {"layers": "8,16,24"}}` (the forms are those of `store.format.layers`).

        Raises
        ------
        IndexError
            A row or an index is out of range.
        NotFoundError
            There is no such trace, column or axis.
        TypeError
            `rows` is something else, e.g. one id or a mask.
        CorruptError
            The bytes on disk are not what the manifest promises.
        """
        return self.read_batch(self.plan(columns, select), self.check_rows(rows))

    def column(self, name: str) -> torch.Tensor | list[str]:
        """One fixed or utf8 column of all rows, read in one go.

        Parameters
        ----------
        name
            The column; `trace_id` is one as well.

        Returns
        -------
        A tensor `(n_rows, *item_shape)` of the column's dtype, a copy; of a utf8 column a list of
        `n_rows` strings.

        Raises
        ------
        NotFoundError
            There is no such column.
        SchemaError
            The column is ragged.
        """
        column = self.schema.column(name, str(self.path))
        axis = self.schema.axis_of(name)
        if column.axis is not None:
            raise SchemaError(
                f"{self.path}, column {name!r}: it is ragged, and may be larger than memory; read some rows with "
                f"read(rows, [{name!r}]), or all batch by batch with TraceLoader"
            )
        whole = np.array([0]), np.array([self._manifest.n_items_of(name)])
        with self._naming_rows(axis):
            items = self._column(name).read_ranges(*whole)
        if axis is None:
            return as_tensor(items, column.dtype)
        return decode_texts(items, self._whole_offsets(axis), f"column {name!r}")

    def _whole_offsets(self, axis: str) -> np.ndarray:
        """The offsets of an axis, checked; raises CorruptError."""
        offsets = self.offsets(axis)
        self._check_ranges(axis, int(offsets[0]), int(offsets[-1]))
        falls = np.flatnonzero(np.diff(offsets) < 0)
        if len(falls):
            raise CorruptError(
                f"axis {axis!r}, row {falls[0]}: expected offsets that never fall; {RESTORE}"
            )
        return offsets

    def to_pandas(self, columns: Sequence[str] | None = None) -> "pandas.DataFrame":
        """The columns with one number or one text a row as a DataFrame, indexed by `trace_id`.

        Parameters
        ----------
        columns
            Names; all columns of that kind if None.

        Returns
        -------
        A DataFrame of `n_rows` rows. Each column keeps its dtype, but bfloat16 becomes float32.

        Raises
        ------
        NotFoundError
            There is no such column, or pandas is not installed.
        SchemaError
            A named column is ragged, or has an array a row.
        """
        stored = self.schema.stored
        for name in columns or ():
            self.schema.column(name, str(self.path))
        has_one_value = {name: column.is_single for name, column in stored.items()}
        names = frame_columns(has_one_value, columns, str(self.path))
        # which is the index
        values = {name: self.column(name) for name in names if name != TRACE_ID}
        return make_frame(values, self.column(TRACE_ID), TRACE_ID)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        """Refused: as an array, or in `pandas.DataFrame(store)`, a store would be read whole, value
        by value."""
        raise TypeError(
            f"{self.path}: a store is no array; use to_pandas() for its scalars and texts, column(name) for one column"
        )

    def plan(self, columns: Sequence[str] | None = None, select: Select | None = None) -> ReadPlan:
        """Check once what every batch will read; see `read` for the arguments and errors."""
        return plan_read(self.schema, columns, select, str(self.path), self.provenance)

    def read_batch(
        self,
        plan: ReadPlan,
        rows: np.ndarray,
        next_use: NextUse | None = None,
        into: Destination | None = None,
    ) -> Batch:
        """Read checked rows, int64 `(n,)`, of a plan.

        Parameters
        ----------
        next_use
            When rows are needed after the i-th of `rows`, for the cache.
        into
            Where to; the store's own recycled memory if None.
        """
        ranges = {span: self._ranges(span, rows) for span in plan.spans}
        packed = {
            span: torch.from_numpy(packed_offsets(*both))
            for span, both in ranges.items()
            if span.axis
        }
        into = into or self.recycled()
        values = {}
        for part in plan.parts:
            items = self._read_part(part, rows, ranges[part.span], next_use, into)
            if part.picked:
                items = into.place(part.pick(items))
            if part.span.axis is None:
                values[part.name] = as_tensor(items, part.column.dtype)
            elif part.column.is_text:
                values[part.name] = decode_texts(
                    items, packed[part.span].numpy(), f"column {part.name!r}"
                )
            else:
                values[part.name] = Ragged(as_tensor(items, part.column.dtype), packed[part.span])
        return Batch(torch.from_numpy(rows), values)

    def recycled(self) -> Destination:
        """The store's own memory, used again when the last tensor over it is gone."""
        return Destination(self._pool.empty)

    def _read_part(
        self,
        part: ColumnPart,
        rows: np.ndarray,
        ranges: tuple[np.ndarray, np.ndarray],
        next_use: NextUse | None,
        into: Destination,
    ) -> np.ndarray:
        array = self._column(part.name)
        with self._naming_rows(part.span.axis):
            if part.span.axis is None:
                return array.take(rows, part.select, into, next_use)
            return array.read_ranges(
                *ranges, part.select, into, self._next_item_use(part.span.axis, next_use)
            )

    @contextmanager
    def _naming_rows(self, axis: str | None) -> Iterator[None]:
        """Say of damaged items which rows they belong to, and whether the store has changed since
        it was opened."""
        try:
            yield
        except DamagedItemsError as error:
            start, stop = error.items
            first, last = (
                (start, stop - 1)
                if axis is None
                else self.rows_of_items(axis, (start, stop - 1)).tolist()
            )
            rows = f"row {first}" if first == last else f"rows {first} to {last}"
            raise CorruptError(f"{error}; {rows}{self._hint()}") from error
        except CorruptError as error:
            raise CorruptError(f"{error}{self._hint()}") from error

    def _hint(self) -> str:
        """What to do if the store is no longer what was opened."""
        try:
            written = (self.path / GROUP_FILE).stat().st_mtime_ns
        except OSError:
            return "; the store is gone"
        if self._looked_at[0] != written:  # many errors ask, and it may be large
            now = read_manifest(self.path)
            self._looked_at = (written, (now.uuid, now.generation) != (self.uuid, self.generation))
        return "; it was changed meanwhile: open the store again" * self._looked_at[1]

    def rows_of_items(self, axis: str, items: Sequence[int] | tuple[np.ndarray, ...]) -> np.ndarray:
        """The row that holds each item of an axis: int64, of the shape of `items`."""
        return np.searchsorted(self.offsets(axis), items, side="right") - 1

    def _next_item_use(self, axis: str, next_use: NextUse | None) -> NextUse | None:
        """The same question asked of items of an axis."""
        if next_use is None:
            return None

        def of_items(i: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            return next_use(i, *self.rows_of_items(axis, (first, last)))

        return of_items

    def advise(self, plan: ReadPlan, rows: np.ndarray) -> None:
        """Tell the kernel that these rows will be read soon; returns before they are."""
        ranges = {span: self._ranges(span, rows) for span in plan.spans}
        for part in plan.parts:
            self._column(part.name).advise(*ranges[part.span], part.select)

    def is_cached(self, plan: ReadPlan, rows: np.ndarray) -> bool:
        """Whether the kernel seems to hold these rows: looks at one page a row of the plan's
        largest column."""
        part = max(
            plan.parts,
            key=lambda part: self.n_items(part.name) * part.column.item_bytes,
            default=None,
        )
        if part is None:
            return True
        starts, stops = self._ranges(part.span, rows)
        array = self._column(part.name)
        return all(array.is_cached(item) for item in starts[stops > starts].tolist())

    def _ranges(self, span: Span, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Item ranges of rows: starts and stops, int64 `(n,)`."""
        axis = span.axis
        if axis is None:
            return rows, rows + 1
        offsets = self._offsets(axis)
        starts, stops = offsets.take(rows), offsets.take(rows + 1)
        if len(rows):
            self._check_ranges(axis, int(starts.min()), int(stops.max()))
            if (stops < starts).any():
                bad = int(rows[np.argmax(stops < starts)])
                raise CorruptError(
                    f"axis {axis!r}, row {bad}: expected offsets that never fall; {RESTORE}"
                )
        return slice_ranges(starts, stops, span)

    def _check_ranges(self, axis: str, start: int, stop: int) -> None:
        n_items = self._manifest.n_items.get(axis, 0)
        if not 0 <= start <= n_items or not 0 <= stop <= n_items:
            found = f"{start} to {stop}"
            raise CorruptError(
                f"axis {axis!r}: expected offsets from 0 to {n_items}, found {found}; {RESTORE}"
            )

    def check_rows(self, rows: Rows) -> np.ndarray:
        """Row numbers from 0 on, int64 `(n,)`, a copy, of what `read` takes as rows.

        Raises
        ------
        IndexError
            A row is out of range.
        NotFoundError
            There is no trace of an id.
        TypeError
            `rows` is something else.
        """
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        is_list = isinstance(rows, list | tuple)
        if is_list and rows and isinstance(rows[0], str):
            return self._rows_of_ids(rows)
        array = np.asarray(rows)
        # an array, or an index of pandas
        if not is_list and array.ndim == 1 and array.dtype.kind in "OTU":
            return self._rows_of_ids(array.tolist())
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise self._no_rows(rows)
        if not array.size:
            return array.astype(np.int64)
        n_rows, lowest = len(self), array.min()
        if lowest < -n_rows or array.max() >= n_rows:
            bad = array[(array < -n_rows) | (array >= n_rows)][0]
            first = 0 if bad > 0 else -n_rows
            known = (
                f"a row from {first} to {n_rows - 1}" if n_rows else "no row, the store is empty"
            )
            raise IndexError(f"{self.path}: expected {known}, found {bad}")
        numbers = array.astype(np.int64)
        if lowest < 0:
            numbers[numbers < 0] += n_rows
        return numbers

    def _rows_of_ids(self, ids: Sequence[str]) -> np.ndarray:
        """The rows of traces, int64 `(n,)`; raises NotFoundError, or TypeError if one is no
        text."""
        if not all(isinstance(trace_id, str) for trace_id in ids):
            raise self._no_rows(ids)
        return np.array([self.row_of(trace_id) for trace_id in ids], np.int64)

    def _no_rows(self, rows: object) -> TypeError:
        """What to say of something that is no rows."""
        if isinstance(rows, str):
            return TypeError(
                f"{self.path}: rows: expected a sequence of trace ids, found one; pass [{rows!r:.200}]"
            )
        expected = "expected a sequence of integers, one of trace ids, or a slice"
        is_mask = np.asarray(rows).dtype == bool
        hint = "; of a mask, pass numpy.flatnonzero(mask)" if is_mask else ""
        return TypeError(f"{self.path}: rows: {expected}, found {rows!r:.100}{hint}")

    def _column(self, name: str) -> RawArray | CompressedArray:
        array = self._arrays.get(name) if self._pid == os.getpid() else None
        return array or self._open_array(
            name, column_array(self.schema, name, self._manifest.n_items_of(name))
        )

    def _offsets(self, axis: str) -> RawArray:
        array = self._arrays.get(f"offsets of {axis}") if self._pid == os.getpid() else None
        return array or self._open_array(f"offsets of {axis}", offsets_array(axis, len(self)))

    def _open_array(self, key: str, array: StoredArray) -> RawArray | CompressedArray:
        # a forked child shares pages through the kernel, never this object's state
        if self._pid != os.getpid():
            self._forget()
        max_maps = MAX_MAPS // (len(self.schema.stored) * 2 + 8)
        check = self._manifest if self.check else None
        opened = open_array(self.path, array, self.cache, max_maps, check, self._inode)
        return self._arrays.setdefault(key, opened)

    def __reduce__(self) -> tuple:
        return TraceStore, (self.path, self._manifest, self.cache_bytes, self.check, self._inode)

    def __repr__(self) -> str:
        head = f"TraceStore({str(self.path)!r}): {len(self):,} rows"
        return "\n".join(
            [head, *column_lines({name: self._describe(name) for name in self.schema.columns})]
        )

    def _describe(self, name: str) -> tuple[str, str]:
        """Dtype and shape of a column, for `repr`."""
        column = self.schema.columns[name]
        first = len(self) if column.axis is None else column.axis
        shape = "" if column.is_text else shape_text(first, column.item_shape, column.axis_names)
        return column.dtype, shape


def _check_cache_bytes(cache_bytes: int | None, schema: Schema) -> int:
    """The cache's size; raises ValueError if it could not hold one chunk."""
    compressed = [schema.layout(name) for name, column in schema.columns.items() if column.codec]
    largest = max((layout.chunk_bytes for layout in compressed), default=0)
    if cache_bytes is None:
        return max(CACHE_BYTES, largest)
    if cache_bytes and cache_bytes < largest:
        raise ValueError(
            f"cache_bytes: expected 0, or at least one chunk of {largest} bytes, found {cache_bytes}"
        )
    return cache_bytes
