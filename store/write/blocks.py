"""Blocks of rows: the values of many rows, checked against the schema and encoded together."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from store.errors import SchemaError
from store.format.schema import TRACE_ID, Column, Schema
from store.format.values import encode_items, encode_text, is_arrow, nested_array, ragged_parts
from store.read.batches.batch import Batch
from store.read.batches.tensors import Ragged, ragged_arrays
from store.write.rows import MAX_ID_BYTES, Items, check_names, encode_id

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Columns", "encode_block"]

Columns: TypeAlias = "Batch | Mapping[str, Any] | pyarrow.Table"


class Block(NamedTuple):
    """Many rows, checked: the items of every stored column, `(n, *item_shape)`, and how many of
    them each row has on every ragged axis, int64 `(n_rows,)`.
    """

    items: Items
    lengths: dict[str, np.ndarray]


def encode_block(ids: Sequence[str], columns: Columns, schema: Schema) -> Block:
    """Check and encode rows; raises SchemaError if anything does not fit the schema."""
    given = _by_name(columns)
    given.pop(TRACE_ID, None)  # as a batch or a table has them: `ids` are the new ones
    check_names(given, schema.columns, "rows")
    values, lengths = _join_ids(ids)
    block = Block({TRACE_ID: values}, {TRACE_ID: lengths})
    for name, column in schema.columns.items():
        where = f"rows, column {name!r}"
        values, row_lengths = _encode(given[name], column, where)
        n_rows = len(values) if row_lengths is None else len(row_lengths)
        if n_rows != len(ids):
            raise SchemaError(f"{where}: expected {len(ids)} rows like ids, found {n_rows}")
        block.items[name] = values
        if row_lengths is not None:
            axis = column.axis or name
            expected = block.lengths.setdefault(axis, row_lengths)
            _check_alike(expected, row_lengths, f"{where}, axis {axis!r}")
    return block


def _by_name(columns: Columns) -> dict[str, Any]:
    if isinstance(columns, Batch):
        return dict(columns.columns)
    if isinstance(columns, Mapping):
        return dict(columns)
    names = columns.column_names
    if len(set(names)) < len(names):
        raise SchemaError(f"rows: expected each column once, found {names!r:.200}")
    return dict(zip(names, columns.columns, strict=True))


def _encode(values: Any, column: Column, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The items of a column and, of a ragged one or texts, the length of each row."""
    none = None
    if is_arrow(values):  # in which no lists do not say how long the lists of items are
        values = _from_arrow(values, column, where)
        none = np.empty((0, *column.item_shape), column.storage_dtype)
    if column.is_text:
        return _join_texts(values, where)
    if column.axis is None:
        return _items(values, column, where, none), None
    if not isinstance(values, Ragged):
        found = type(values).__name__
        raise SchemaError(f"{where}: expected Ragged(values, offsets), found {found}")
    items = _items(values.values, column, where, none)
    return items, _lengths(values.offsets, len(items), where)


def _items(values: Any, column: Column, where: str, none: np.ndarray | None) -> np.ndarray:
    return encode_items(values, column, where) if none is None or len(values) else none


def _from_arrow(values: Any, column: Column, where: str) -> Any:
    """What a batch would hold of the column; raises SchemaError for nulls, or unequal lists."""
    array = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    try:
        if column.is_text:
            return array.to_pylist()
        return ragged_arrays(*ragged_parts(array)) if column.axis else nested_array(array)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error


def _join_ids(ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(ids, str):  # its letters are texts as well
        raise SchemaError(f"trace_ids: expected a list of ids, found the string {ids!r:.200}")
    values, lengths = _join_texts(ids, "trace_id")
    wrong = np.flatnonzero((lengths == 0) | (lengths > MAX_ID_BYTES))
    if len(wrong):
        encode_id(ids[int(wrong[0])])  # raises
    return values, lengths


def _join_texts(texts: Sequence[str], where: str) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 of texts, one after the other, and the bytes of each; raises SchemaError."""
    try:
        encoded = [text.encode() for text in texts]
    except (AttributeError, UnicodeEncodeError):
        for i, text in enumerate(texts):
            encode_text(text, f"{where}, row {i}")  # raises for the first that is no text
        raise
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.frombuffer(b"".join(encoded), np.uint8), lengths


def _lengths(offsets: object, n_items: int, where: str) -> np.ndarray:
    """The length of each row; raises SchemaError unless offsets go from 0 to the end."""
    array = np.asarray(offsets)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise SchemaError(
            f"{where}: expected offsets, integers (n_rows + 1,), found {array.dtype} {array.shape}"
        )
    lengths = np.diff(array.astype(np.int64))
    if array[0] != 0 or array[-1] != n_items or (lengths < 0).any():
        raise SchemaError(
            f"{where}: expected offsets that never fall, from 0 to its {n_items} items, found "
            f"them from {array[0]} to {array[-1]}"
        )
    return lengths


def _check_alike(expected: np.ndarray, found: np.ndarray, where: str) -> None:
    """Raise SchemaError unless the columns of an axis have rows of the same lengths."""
    differs = np.flatnonzero(expected != found)
    if len(differs):
        row = int(differs[0])
        raise SchemaError(
            f"{where}: expected {expected[row]} items in row {row} like the axis's other columns, "
            f"found {found[row]}"
        )
