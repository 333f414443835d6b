"""Rows: checked against the schema, encoded, and appended to the arrays of their columns."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from store.errors import SchemaError, closest
from store.format.contents import StoredArray, column_array, offsets_array
from store.format.manifest import Manifest
from store.format.schema import Column, Schema
from store.format.values import encode_text, encode_value
from store.format.zarr_json import array_infos
from store.read.store import TraceStore
from store.write.array_writer import ArrayWriter
from store.write.files import Files

__all__ = [
    "MAX_ID_BYTES",
    "Items",
    "Row",
    "RowArrays",
    "axis_lengths",
    "check_names",
    "encode_id",
    "encode_row",
    "schema_with",
]

MAX_ID_BYTES = 1024
Row = Mapping[str, object]
Items = dict[str, np.ndarray]


def encode_id(trace_id: object) -> np.ndarray:
    """A trace id as UTF-8, uint8 `(n_bytes,)`; raises SchemaError if it cannot be one."""
    if isinstance(trace_id, str):
        encoded = encode_text(trace_id, "trace_id")
        if 0 < len(encoded) <= MAX_ID_BYTES:
            return encoded
    raise SchemaError(
        f"trace_id: expected a string of 1 to {MAX_ID_BYTES} bytes, found {trace_id!r:.200}"
    )


def encode_row(row: Row, columns: Mapping[str, Column], where: str) -> Items:
    """The items of every column, `(n, *item_shape)`; raises SchemaError if a value does not fit."""
    check_names(row, columns, where)
    return encode_values(row, columns, where)


def check_names(row: Row, columns: Mapping[str, Column], where: str) -> None:
    """Raise SchemaError unless there is a value for every column, and for no other."""
    if isinstance(row, dict) and row.keys() == columns.keys():  # mostly
        return
    unknown = [name for name in row if name not in columns]
    if unknown:
        hint = closest(str(unknown[0]), columns)
        raise SchemaError(
            f"{where}: expected columns of the schema, found {unknown[0]!r:.200}{hint}"
        )
    missing = [name for name in columns if name not in row]
    if missing:
        raise SchemaError(f"{where}: expected a value for every column, found none for {missing}")


def encode_values(row: Row, columns: Mapping[str, Column], where: str) -> Items:
    """The items of every column, as `encode_row`, of a row that has them all."""
    return {
        name: encode_value(row[name], column, f"{where}, column {name!r}")
        for name, column in columns.items()
    }


def axis_lengths(items: Items, schema: Schema, where: str) -> dict[str, int]:
    """Items of a row on every ragged axis; raises SchemaError if columns of one axis disagree."""
    lengths: dict[str, int] = {}
    for name, value in items.items():
        axis = schema.axis_by_column[name]
        if axis is None:
            continue
        n = lengths.setdefault(axis, len(value))
        if n != len(value):
            first = next(other for other in items if schema.axis_of(other) == axis)
            raise SchemaError(
                f"{where}, column {name!r}: expected {n} items on axis {axis!r} "
                f"like column {first!r}, found {len(value)}"
            )
    return lengths


def schema_with(manifest: Manifest, columns: Mapping[str, Column]) -> Schema:
    """The schema of a store once columns are added or replaced.

    A replaced column gets a new array, so that readers of an older generation never see a mixture.

    Raises SchemaError for a replacement that does not keep the offsets: it is a string, or on
    another axis.
    """
    old = manifest.schema
    arrays = dict(old.arrays)
    for name, column in columns.items():
        if name not in old.columns:
            continue
        axis = old.axis_of(name)
        if column.is_text or column.axis != axis:
            expected = f"a column of axis {axis!r}" if axis else "a fixed column"
            raise SchemaError(
                f"column {name!r}: expected {expected}, and no string, to replace it, "
                f"found {column}; use another name"
            )
        # none of its arrays has had this number; a copied store has numbers ahead of its generation
        last = max(manifest.generation, old.array_number(name))
        arrays[name] = f"{name}@{last + 1}"
    return Schema({**old.columns, **columns}, arrays)


class RowArrays:
    """Arrays that grow by rows: some columns, and the offsets of some ragged axes.

    They continue where the manifest says that they end; `new`: not even an empty array is committed
    yet. `n_items` counts the items of each axis so far.
    """

    def __init__(
        self,
        root: Path,
        files: Files,
        manifest: Manifest,
        columns: Iterable[str],
        axes: Iterable[str],
        *,
        new: bool,
    ) -> None:
        schema = manifest.schema
        infos = array_infos(schema, manifest.segments)

        def writer(array: StoredArray) -> ArrayWriter:
            return ArrayWriter(root, files, array, infos[array.layout.path], manifest)

        self._columns = {name: writer(column_array(manifest, name)) for name in columns}
        n_rows = -1 if new else manifest.n_rows  # there is one offset more than rows
        self._offsets = {axis: writer(offsets_array(axis, n_rows)) for axis in axes}
        if new:
            for offsets in self._offsets.values():
                offsets.append(np.zeros(1, np.int64))
        self.n_items = {axis: manifest.n_items.get(axis, 0) for axis in self._offsets}

    @property
    def _all(self) -> list[ArrayWriter]:
        return [*self._columns.values(), *self._offsets.values()]

    def append(self, items: Items, lengths: Mapping[str, int]) -> None:
        """Add a row: the items of every column, and how many they are on every axis."""
        for axis, offsets in self._offsets.items():
            end = self.n_items[axis] + lengths[axis]
            self.n_items[axis] = end
            offsets.append(np.array([end], np.int64))
        for name, value in items.items():
            self._columns[name].append(value)

    def append_block(self, items: Items, lengths: Mapping[str, np.ndarray]) -> None:
        """Add rows: the items of every column, and how many each row has on every axis."""
        for axis, offsets in self._offsets.items():
            ends = self.n_items[axis] + np.cumsum(lengths[axis])
            offsets.append(ends)
            self.n_items[axis] += int(lengths[axis].sum())
        for name, values in items.items():
            self._columns[name].append(values)

    def append_to_all(self, schema: Schema, rows: Iterable[Row], store: TraceStore) -> None:
        """Append the values of all rows of a store to arrays of columns that it does not have.

        `rows` has a value of each for every row. Raises SchemaError if a value does not fit, or
        there are more or fewer rows.
        """
        columns = {name: schema.columns[name] for name in self._columns}
        axes = {column.axis for column in columns.values() if column.axis} & set(store.schema.axes)
        stored_lengths = {axis: np.diff(store.offsets(axis)) for axis in axes}
        n_rows = 0
        for row in rows:
            where = f"row {n_rows}"
            items = encode_values(row, columns, where)
            lengths = axis_lengths(items, schema, where)
            if n_rows < len(store):
                for axis, expected in stored_lengths.items():
                    if lengths[axis] != expected[n_rows]:
                        raise SchemaError(
                            f"{where}: expected {expected[n_rows]} items on axis {axis!r}, "
                            f"found {lengths[axis]}"
                        )
            self.append(items, lengths)
            n_rows += 1
        if n_rows != len(store):
            raise SchemaError(
                f"{store.path}: expected values for its {len(store)} rows, found {n_rows}"
            )

    def commit(self) -> dict[str, list[int]]:
        """Publish every array's items; return the checksums of their padded last chunks."""
        tails = {array.layout.path: array.commit() for array in self._all}
        return {path: sums for path, sums in tails.items() if sums}

    def take_over(self, other: "RowArrays") -> list[ArrayWriter]:
        """Continue with the arrays of another as well; return the arrays that they replace."""
        replaced = [self._columns[name] for name in other._columns if name in self._columns]
        self._columns |= other._columns
        self._offsets |= other._offsets
        self.n_items |= other.n_items
        return replaced

    def describe(self, manifest: Manifest) -> None:
        """Write for other Zarr clients what a changed schema says of the arrays."""
        infos = array_infos(manifest.schema, manifest.segments)
        for array in self._all:
            with suppress(OSError):  # the next writer writes what is missing
                array.describe(infos[array.layout.path])

    def close(self) -> None:
        """Release the working files; what was not committed is lost."""
        for array in self._all:
            array.close()

    def remove(self) -> None:
        """Remove the arrays, committed or not."""
        for array in self._all:
            array.remove()
