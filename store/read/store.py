"""Read a store: rows by number, traces by id, packed batches. Never writes, never decides an order.

Opening reads one small file. Shards are mapped when first needed; processes share the page cache. A
store pickles as its directory and its manifest, never an array, so that a worker process sees the
same rows. torch is imported when the first tensor is asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from store.errors import SchemaError
from store.format.manifest import Manifest
from store.format.schema import TRACE_ID
from store.format.values import is_integer, without_bfloat16
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.read_options import ReadOptions
from store.read.batches.batch import Batch
from store.read.batches.tabular import Tabular, Values, choose_single, column_lines, shape_text
from store.read.batches.tensors import as_tensor, check_arrays
from store.read.filters.filter import filter_rows
from store.read.filters.single_values import SingleValues
from store.read.plan import (
    ManyRows,
    ReadPlan,
    Rows,
    Select,
    check_ranges,
    is_many,
    plan_read,
    row_numbers,
)
from store.read.row_reader import RowReader
from store.read.source import MirrorLike, StoreSource, address_of, open_source
from store.read.trace_ids import TraceIds
from store.traces.layers import LAYERS_AXIS, layer_numbers
from store.traces.notebook import store_html, trace_html

if TYPE_CHECKING:
    import torch

__all__ = ["Rows", "Trace", "TraceStore"]

PAGE = "store.view.export"  # knows stores, and is known to them by name only


class Trace(Mapping[str, "np.ndarray | torch.Tensor | str"]):
    """One row, read when asked for: `trace[column]`.

    A ragged column is an array `(n, *item_shape)`, a fixed one `item_shape` or a NumPy scalar, a
    utf8 column a string. Arrays are read-only; where one shard holds the row they are views of the
    mapped file, no copy. NumPy has no bfloat16: an array of it comes as a torch tensor (a copy), a
    scalar as one of ml_dtypes.
    """

    def __init__(self, store: "TraceStore", row: int) -> None:
        self.store = store
        self.row = row

    @property
    def id(self) -> str:
        return self.store.ids[self.row]

    def __getitem__(self, name: str) -> "np.ndarray | torch.Tensor | str":
        self.store.schema.column(name, self.store.location)  # raises
        return self.store.reader.value(name, self.row)

    def __contains__(self, name: object) -> bool:
        return name in self.store.schema.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.schema.columns)

    def __len__(self) -> int:
        return len(self.store.schema.columns)

    def __repr__(self) -> str:
        return f"Trace({self.id!r}, row {self.row} of {self.store.location!r})"

    def _repr_html_(self) -> str:
        """For notebooks: its numbers, and its tokens shaded by their log-probabilities."""
        title = f"{self.id}, row {self.row} of {self.store.location}"
        return trace_html(title, self, self.store.schema.columns)


class TraceStore(Tabular):
    """A committed state of a store; use `open`.

    Attributes
    ----------
    uuid, generation
        Its identity, the same after appending; and which commit this is a view of.
    provenance
        Where its traces come from.
    check
        Whether every chunk is checked against its checksum before it is first used.
    reader
        Its arrays, and reads of many rows at once, as `TraceLoader` does them.
    """

    def __init__(
        self,
        source: StoreSource,
        manifest: Manifest,
        cache_bytes: int | None = None,
        check: bool = False,
    ) -> None:
        self.source = source
        self.directory = source.directory
        self.path = source.directory.path
        self.manifest = manifest
        self.check = check
        self.schema = manifest.schema
        self.uuid = manifest.uuid
        self.generation = manifest.generation
        self.provenance = manifest.provenance
        self.reader = RowReader(source, manifest, cache_bytes, check)

    @property
    def mirror(self) -> MirrorLike | None:
        """Of a store at an address: what brings its chunks to `path`; else None."""
        return self.source.mirror

    @property
    def cache_bytes(self) -> int:
        """What is kept of decoded chunks of compressed columns, at most."""
        return self.reader.cache_bytes

    @property
    def cache(self) -> ChunkCache:
        """Decoded chunks of compressed columns."""
        return self.reader.cache

    @classmethod
    def open(
        cls,
        path: "str | Path | TraceStore",
        cache_bytes: int | None = None,
        check: bool | None = None,
        *,
        cache_dir: str | Path | None = None,
    ) -> "TraceStore":
        """Open the store at `path`; an open one is returned unless `cache_bytes` or `check` differ.

        Parameters
        ----------
        path
            Directory of the store (`~` is expanded, file:// taken away), or its address (s3://,
            gs://, az://, https://), of which a cache is read.
        cache_bytes
            Decoded chunks of compressed columns to keep: 0, or at least one chunk; None chooses 64
            MiB. Raw columns need none, the kernel keeps their pages. Of an address: what all
            mirrors in the cache directory may take on the disk; None: what the environment variable
            TRACE_STORE_CACHE_BYTES says, or half of what is free.
        check
            Check every chunk against its checksum before this object uses it for the first time:
            what has rotted on the disk is an error, never a value. What rots later, while the
            object lives, is not seen. None: not. (Compressed chunks are checked in any case, when
            they are first read after their shard was opened; so are the tables of shards, and what
            comes into a mirror.)
        cache_dir
            Where the mirrors of stores at addresses are; every process of the node may name the
            same. None: what TRACE_STORE_CACHE_DIR says, or ~/.cache/trace-store.

        Raises
        ------
        NotFoundError, FormatError
            Nothing is there; or no store, or one that is damaged, or of a newer format.
        ValueError
            `cache_bytes` is no whole number, or less than works.
        """
        if cache_bytes is not None:
            cache_bytes = _whole_number(cache_bytes)
        if not isinstance(path, TraceStore):
            source, manifest = open_source(path, cache_bytes, cache_dir)
            decoded = cache_bytes if address_of(path) is None else None
            return cls(source, manifest, decoded, bool(check))
        store = path
        cache_bytes = store.cache_bytes if cache_bytes is None else cache_bytes
        check = store.check if check is None else check
        if (cache_bytes, check) == (store.cache_bytes, store.check):
            return store
        return type(store)(store.source, store.manifest, cache_bytes, check)

    @property
    def parts(self) -> "Sequence[TraceStore]":
        """The stores that it was joined of, or itself."""
        return [self]

    @property
    def location(self) -> str:
        """Its path, or its address."""
        return self.source.where

    def file_bytes(self, name: str | None = None) -> int:
        """What the files of a column, or of the whole store, take on the disk; or its objects."""
        return self.source.file_bytes("" if name is None else self.schema.layout(name).path)

    def refresh(self) -> "TraceStore":
        """The store as it is now: this object, which keeps its snapshot, if nothing was committed
        since and no copy has taken its place, else a new one."""
        source, now = self.source.committed()
        is_here = source.directory.is_same(self.directory)
        # copies of one store that grew on their own have its uuid, and may have one generation
        if is_here and now.checksum == self.manifest.checksum:
            return self
        return type(self)(source, now, self.cache_bytes, self.check)

    def __len__(self) -> int:
        return self.manifest.n_rows

    def n_items(self, name: str) -> int:
        """Items of a column in all rows together (the number of rows, for a fixed column)."""
        self.schema.column(name, self.location)
        return self.manifest.n_items_of(name)

    def lengths(self, name: str) -> np.ndarray:
        """Items of a column in every row: int64 `(n_rows,)`; ones for a fixed column."""
        self.schema.column(name, self.location)
        axis = self.schema.axis_of(name)
        return np.diff(self.offsets(axis)) if axis else np.ones(len(self), np.int64)

    def layers(self, name: str) -> list[int]:
        """Layers of a column by the model's numbers, from 1 if none are recorded; else []."""
        column = self.schema.column(name, self.location)
        sizes = dict(zip(column.axis_names, column.item_shape, strict=False))
        return layer_numbers(self.provenance, sizes.get(LAYERS_AXIS, 0))

    def offsets(self, axis: str) -> np.ndarray:
        """The offsets of the rows on a ragged axis, int64 `(n_rows + 1,)`, as they are on disk."""
        return self.reader.offsets(axis).read()

    @property
    def ids(self) -> TraceIds:
        """The trace ids, by row; reads what is asked for."""
        return TraceIds(self.reader)

    def row_of(self, trace_id: str) -> int:
        """The row of a trace; time does not grow with the number of rows.

        Raises NotFoundError if there is no such trace; the message names ids like it.
        """
        return self.ids.row_of(trace_id)

    def __contains__(self, trace_id: object) -> bool:
        return trace_id in self.ids

    @overload
    def __getitem__(self, key: str | int) -> Trace: ...

    @overload
    def __getitem__(self, key: ManyRows) -> list[Trace]: ...

    def __getitem__(self, key: str | int | ManyRows) -> Trace | list[Trace]:
        """The trace with an id (str) or in a row (int), or the traces of a slice, a list or a mask.

        Row -1 is the last one. Nothing is read until a column is asked for; `read` reads many.
        Raises NotFoundError for an unknown id, and IndexError for a row out of range.
        """
        if is_many(key):
            return [Trace(self, row) for row in self.check_rows(key).tolist()]
        if isinstance(key, str):
            return Trace(self, self.row_of(key))
        (row,) = self.check_rows([cast("int", key)]).tolist()
        return Trace(self, row)

    def __iter__(self) -> Iterator[Trace]:
        """The traces one after the other, in constant memory."""
        return (Trace(self, row) for row in range(len(self)))

    def read(
        self,
        rows: Rows,
        columns: Sequence[str] | None = None,
        select: Select | None = None,
        *,
        arrays: str = "torch",
    ) -> Batch:
        """Read rows into one packed batch, in the order given (a row may be asked for twice).

        Parameters
        ----------
        rows
            Row numbers `(n,)`, where -1 is the last row; or a slice of them; or a mask, bool
            `(n_rows,)`; or trace ids, a sequence of strings.
        columns
            Names; all columns of the schema if None.
        select
            Column -> axis name -> slice or index, e.g. `{"hidden_states": {"tokens": -1, "layers":
            slice(16, 20)}}`; only these bytes are read. A slice or index of length one keeps its
            axis. The ragged axis is sliced row by row as a list is: a row too short gives fewer
            items; or it has a range for each row of the store, a `RowRanges`. Slices and indices
            are positions, from 0; layers may also be named as the model numbers them, by a text:
            `{"hs_last": {"layers": "8,16,24"}}` (the forms are those of `store.traces.layers`).
        arrays
            What the batch holds: "torch" tensors, or "numpy" arrays, which need no torch; bfloat16
            is then of ml_dtypes.

        Raises
        ------
        IndexError, NotFoundError, TypeError
            A row or an index is out of range, or a mask has another length; there is no such
            trace, column or axis; `rows` is something else, e.g. one id.
        CorruptError
            The bytes on disk are not what the manifest promises.
        """
        check_arrays(arrays)
        return self.read_batch(self.plan(columns, select), self.check_rows(rows), arrays=arrays)

    def read_arrays(
        self, rows: Rows, columns: Sequence[str] | None = None, select: Select | None = None
    ) -> Batch:
        """As `read`, into NumPy arrays; takes no torch."""
        return self.read(rows, columns, select, arrays="numpy")

    def column(self, name: str) -> "torch.Tensor | list[str]":
        """One fixed or utf8 column of all rows, `trace_id` among them, read in one go.

        Returns
        -------
        A tensor `(n_rows, *item_shape)` of the column's dtype, a copy; of a utf8 column a list of
        `n_rows` strings.

        Raises
        ------
        NotFoundError, SchemaError
            There is no such column; it is ragged.
        """
        values = self._read_column(name)
        return values if isinstance(values, list) else as_tensor(values.copy())

    def column_array(self, name: str) -> np.ndarray | list[str]:
        """As `column`, as a NumPy array, where bfloat16 is float32; takes no torch.

        It is read-only: where one shard holds the column, a view of the mapped file.
        """
        values = self._read_column(name)
        return values if isinstance(values, list) else without_bfloat16(values)

    def _read_column(self, name: str) -> np.ndarray | list[str]:
        if self.schema.column(name, self.location).axis is not None:
            raise SchemaError(
                f"{self.location}, column {name!r}: it is ragged, and may be larger than memory; "
                f"read some rows with read(rows, [{name!r}]), or all batch by batch with "
                "TraceLoader"
            )
        return self.reader.whole_column(name)

    def where(self, filter: str) -> np.ndarray:
        """The rows that a filter means: int64 `(n,)`, ascending.

        `label == 1 and dataset in ('squad', 'coqa') and len(answer) > 20 and n_tokens <= 300`: the
        filters of `docs/filters.md`, as the page and `--where` take them. Nothing of one is run; an
        empty one means all rows. Only the columns that it names are read.

        Raises SchemaError for a text that is no filter: it says where, and what to write.
        """
        chosen = filter_rows(SingleValues(self), filter)
        return np.arange(len(self)) if chosen is None else np.flatnonzero(chosen)

    def text_bytes(
        self, name: str, rows: Rows, n_bytes: int | None = None
    ) -> tuple[bytes, np.ndarray]:
        """A utf8 column in some rows, not decoded; with `n_bytes` only so much of each text.

        Returns
        -------
        data, offsets
            The texts in UTF-8, one after the other, and int64 `(n + 1,)`: that of the i-th row is
            `data[offsets[i] : offsets[i + 1]]`. Its last character may be cut.

        Raises
        ------
        NotFoundError, SchemaError, IndexError
            There is no such column; it holds no texts; a row is out of range.
        """
        if not self.schema.column(name, self.location).is_text:
            raise SchemaError(f"{self.location}, column {name!r}: expected texts, found numbers")
        items, offsets = self.reader.text_items(name, self.check_rows(rows), n_bytes)
        return items.tobytes(), offsets

    def _table(self, columns: Sequence[str] | None) -> list[tuple[str, Values]]:
        for name in columns or ():
            self.schema.column(name, self.location)  # raises
        single = (name for name, column in self.schema.stored.items() if column.is_single)
        names = [TRACE_ID, *choose_single(columns, single, self.path)]
        return [(name, self.column_array(name)) for name in names]

    def plan(self, columns: Sequence[str] | None = None, select: Select | None = None) -> ReadPlan:
        """Check once what every batch will read; see `read` for the arguments and errors."""
        plan = plan_read(self.schema, columns, select, self.location, self.provenance)
        check_ranges(plan.spans, len(self), self.location)
        return plan

    def read_batch(
        self,
        plan: ReadPlan,
        rows: np.ndarray,
        options: ReadOptions | None = None,
        arrays: str = "torch",
    ) -> Batch:
        """Read checked rows, int64 `(n,)`, of a plan; see `read` for `arrays`.

        The options say where to, with which threads, and when rows are needed again after the i-th
        of `rows`. If None: into the store's own recycled memory.
        """
        return self.reader.read(plan, self.reader.locate_batch(plan, rows), options, arrays)

    def check_rows(self, rows: Rows) -> np.ndarray:
        """Row numbers from 0 on, int64 `(n,)`, a copy, of what `read` takes as rows, with its
        errors."""
        return row_numbers(rows, len(self), self.row_of, self.location)

    def __reduce__(self) -> tuple:
        return type(self), (self.source, self.manifest, self.cache_bytes, self.check)

    def __repr__(self) -> str:
        return column_lines(f"TraceStore({self.location!r}): {len(self):,} rows", self._described())

    def view(
        self,
        where: str = "",
        run: str | Path | Sequence[str | Path] | None = None,
        limit: int = 200,
        height: int = 700,
    ) -> object:
        """Look at traces within a notebook: the page of `python -m store view`, without a server.

        Parameters
        ----------
        where
            Filter of the traces.
        run
            Folder of a finished run, or of several, whose scores stand beside them.
        limit
            Traces, at most; their texts, numbers and pictures become part of the notebook.
        height
            Of the page, in pixels.

        Raises
        ------
        NotFoundError
            If the run is no finished one.
        SchemaError
            If the filter is wrong, no trace is left, or `limit` is less than 1.
        """
        export: Any = import_module(PAGE)
        runs = [run] if isinstance(run, (str, Path)) else run or ()
        return export.framed_page(self.path, [*map(Path, runs)], where, limit, height)

    def _repr_html_(self) -> str:
        """For notebooks: its columns."""
        return store_html(f"{self.location}: {len(self):,} rows", self._described())

    def _described(self) -> dict[str, tuple[str, str]]:
        """Column -> dtype and shape, which texts have none of."""
        shown = {}
        for name, column in self.schema.columns.items():
            shape = ""
            if not column.is_text:
                first = column.axis or len(self)
                shape = shape_text(first, column.item_shape, column.axis_names)
            shown[name] = (column.dtype, shape)
        return shown


def _whole_number(cache_bytes: object) -> int:
    if is_integer(cache_bytes) or (isinstance(cache_bytes, float) and cache_bytes.is_integer()):
        return int(cache_bytes)
    raise ValueError(
        f"cache_bytes: expected a number of bytes, as 200 * 10**9, found {cache_bytes!r:.40}"
    )
