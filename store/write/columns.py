"""Columns that are added to the rows of a store, or replaced in all of them."""

from collections.abc import Iterable, Mapping

import numpy as np

from store.errors import SchemaError
from store.format.manifest import Manifest
from store.format.schema import Column, Schema
from store.read.store import TraceStore
from store.write.rows import Row, RowArrays, axis_lengths, encode_values

__all__ = ["append_to_all", "schema_with"]


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
        _, _, number = old.layout(name).path.partition("@")
        last = max(manifest.generation, int(number or 0))
        arrays[name] = f"{name}@{last + 1}"
    return Schema({**old.columns, **columns}, arrays)


def append_to_all(
    arrays: RowArrays,
    schema: Schema,
    columns: Mapping[str, Column],
    rows: Iterable[Row],
    store: TraceStore,
) -> None:
    """Append the values of all rows of a store to the arrays of new columns.

    `arrays` are those of the new `columns`, with the offsets of the axes that the store does not
    have; `rows` has a value of each new column for every row. Raises SchemaError if a value does
    not fit, or there are more or fewer rows.
    """
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
        arrays.append(items, lengths)
        n_rows += 1
    if n_rows != len(store):
        raise SchemaError(
            f"{store.path}: expected values for its {len(store)} rows, found {n_rows}"
        )
