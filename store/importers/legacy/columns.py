"""The columns of imported traces: their schema, and the check of each row against it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import Column, Schema
from store.format.values import encode_value
from store.importers.legacy.fields import Row
from store.traces.columns import TRACE_COLUMNS, columns_of
from store.traces.trace_ids import MAX_ID_BYTES

__all__ = ["check_row", "choose_columns", "schema_of"]

COLUMNS = columns_of(command="import")


def schema_of(row: Row) -> Schema:
    """Return the columns of a row; its arrays give dtypes and shapes."""
    return Schema({name: _column(name, row[name]) for name in COLUMNS if name in row})


def _column(name: str, value: Any) -> Column:
    if isinstance(value, str):
        return Column("utf8")
    of_trace = TRACE_COLUMNS[name]
    array = np.asarray(value)
    shape = array.shape[1:] if of_trace.axis else array.shape
    return Column(array.dtype.name, shape, of_trace.axis, of_trace.item_axes)


def choose_columns(schema: Schema, columns: Sequence[str] | None) -> Schema:
    """Return the columns to keep, with those that an import cannot do without."""
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.columns:
            like = closest(name, schema.columns)
            raise NotFoundError(
                f"columns: expected some of {list(schema.columns)}, found {name!r:.200}{like}"
            )
    kept = {"question_id", "source_file", *columns}
    return Schema({name: column for name, column in schema.columns.items() if name in kept})


def check_row(row: Row, schema: Schema) -> Row:
    """Return the columns of a row that are kept; raise SchemaError if one does not fit."""
    question_id = row["question_id"]
    if not 0 < len(question_id.encode()) <= MAX_ID_BYTES:
        raise SchemaError(
            f"question_id: expected 1 to {MAX_ID_BYTES} bytes, found {question_id!r:.100}"
        )
    checked = {}
    for name, column in schema.columns.items():
        value = row.get(name, _nothing(column))
        if value is None:
            raise SchemaError(f"expected a value for {name!r} as in the traces before, found none")
        encode_value(value, column, f"column {name!r}")
        checked[name] = value
    return checked


def _nothing(column: Column) -> np.ndarray | str | None:
    """Return what a row has for a value that its record need not have."""
    if column.is_text:
        return ""
    return np.empty((0, *column.item_shape), column.storage_dtype) if column.axis else None
