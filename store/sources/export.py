"""A table of a store's texts and numbers: CSV, JSON lines or Parquet, one line for each trace.

Rows are read and written in blocks, so memory does not grow with the store. The file appears at its
path whole or not at all.
"""

import csv
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from store.errors import NotFoundError, SchemaError, StoreError, closest
from store.format.schema import TRACE_ID, Column, Schema
from store.read.batch import Batch
from store.read.store import TraceStore
from store.write.files import replacing

__all__ = ["export_table", "exportable"]

QUESTION_ID = "question_id"
REFERENCES = "references"
BLOCK_ROWS = 1024  # texts of so many rows are in memory at once

Progress = Callable[[int], None]


class TableWriter(Protocol):
    """Writes blocks of a table to one file."""

    def write(self, block: dict[str, list[Any]]) -> None:
        """Write rows: column -> a str, int, float, bool or None for each."""

    def close(self) -> None:
        """Bring all of it to the file."""


def exportable(schema: Schema) -> list[str]:
    """The columns that a cell can hold: one text or one number in each row."""
    return [name for name, column in schema.columns.items() if column.is_single]


def export_table(
    store: TraceStore,
    target: Path,
    columns: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = lambda done: None,
) -> list[str]:
    """Write columns of a store to a file.

    Parameters
    ----------
    store
        The store.
    target
        The file; its ending, `.csv`, `.jsonl` or `.parquet`, chooses the format. NaN is an empty
        cell, or null; JSON lines hold infinities as Python's json writes them, and `references` as
        a list.
    columns
        Names of columns of one text or one number a row; None: all of them. `trace_id` and, if
        there is one, `question_id` are always written, first.
    rows
        Row numbers, in the order wanted; None: all.
    overwrite
        Replace the file if it is there.
    progress
        Called with the number of rows written after each block.

    Returns
    -------
    The names of the columns written.

    Raises
    ------
    SchemaError
        A column is an array, the ending is not known, the file is there, or it would lie within the
        store.
    NotFoundError
        There is no such column, or no such directory.
    StoreError
        Parquet is asked for, and pyarrow is not installed.
    """
    open_writer = _format_of(target)
    chosen = _chosen(store, columns)
    _check_target(store, target, overwrite)
    wanted = range(len(store)) if rows is None else rows
    with replacing(target) as temporary:
        writer = open_writer(temporary, {name: store.schema.stored[name] for name in chosen})
        try:
            for start in range(0, len(wanted), BLOCK_ROWS):
                block = wanted[start : start + BLOCK_ROWS]
                batch = store.read(block, chosen)
                writer.write({name: _cells(batch, name) for name in chosen})
                progress(start + len(block))
        finally:
            writer.close()
    return chosen


def _format_of(target: Path) -> Callable[[Path, dict[str, Column]], TableWriter]:
    """The writer that the ending of a file asks for."""
    ending = target.suffix.lower()
    if ending not in FORMATS:
        raise SchemaError(
            f"{target}: expected a file that ends in {', '.join(FORMATS)}, found {ending or 'no ending'!r}"
        )
    if ending == ".parquet":
        _import_pyarrow("pyarrow")
    return FORMATS[ending]


def _chosen(store: TraceStore, columns: Sequence[str] | None) -> list[str]:
    """The columns to write, the ids first; raises if one is not there or is no cell."""
    known = exportable(store.schema)
    for name in columns or ():
        if name == TRACE_ID or name in known:
            continue
        if name in store.schema.columns:
            raise SchemaError(
                f"{store.path}: column {name!r} holds an array in each row, which no cell of a table holds; "
                f"columns that can be exported: {', '.join(known)}"
            )
        raise NotFoundError(
            f"{store.path}: expected some of its columns {', '.join(known)}, found {name!r:.200}{closest(name, known)}"
        )
    ids = [TRACE_ID]
    if QUESTION_ID in known:
        ids.append(QUESTION_ID)
    return list(dict.fromkeys([*ids, *(known if columns is None else columns)]))


def _check_target(store: TraceStore, target: Path, overwrite: bool) -> None:
    """Raise SchemaError or NotFoundError if the file cannot or must not be written there."""
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"{target}: there is no directory {target.parent}; make it first")
    if store.path.resolve() in target.resolve().parents:
        raise SchemaError(
            f"{target}: lies within the store, which holds its own files only; choose another place"
        )
    if target.exists() and (not overwrite or not target.is_file()):
        raise SchemaError(
            f"{target}: is there already, perhaps with labels that somebody gave; "
            "choose another name, or replace it with --overwrite"
        )


def _cells(batch: Batch, name: str) -> list[Any]:
    """The values of a column: texts, whole numbers, truth values, or floats with None for NaN."""
    values = batch[name]
    if isinstance(values, list):
        return values
    if not values.is_floating_point():
        return values.tolist()
    if values.dtype == torch.bfloat16:
        values = values.float()
    return [_shortest(number) for number in values.numpy()]


def _shortest(number: np.floating) -> float | None:
    """The float of the fewest digits that is this number in its own precision; None for NaN."""
    return None if np.isnan(number) else float(str(number))


class _CsvWriter:
    """Comma-separated values with a header, as RFC 4180 has them but for the line ends, which are
    those of Unix."""

    def __init__(self, path: Path, columns: dict[str, Column]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._plain = csv.writer(self._file, lineterminator="\n")
        self._quoting = csv.writer(self._file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        self._plain.writerow(columns)

    def write(self, block: dict[str, list[Any]]) -> None:
        for cells in zip(*block.values(), strict=True):
            # Python before 3.13 leaves a lone carriage return bare, and readers take it for the end
            # of the line
            has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            writer = self._quoting if has_return else self._plain
            writer.writerow(["" if cell is None else cell for cell in cells])

    def close(self) -> None:
        self._file.close()


class _JsonWriter:
    """One JSON object a line."""

    def __init__(self, path: Path, columns: dict[str, Column]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")

    def write(self, block: dict[str, list[Any]]) -> None:
        for cells in zip(*block.values(), strict=True):
            record = dict(zip(block, cells, strict=True))
            if REFERENCES in record:
                record[REFERENCES] = _decoded(record[REFERENCES])
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


def _decoded(value: Any) -> Any:
    """The list that a text spells in JSON; what is no such text as it is."""
    try:
        found = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return value
    return found if isinstance(found, list) else value


class _ParquetWriter:
    """Apache Parquet, by pyarrow; a row group for every block."""

    def __init__(self, path: Path, columns: dict[str, Column]) -> None:
        arrow, parquet = _import_pyarrow("pyarrow"), _import_pyarrow("pyarrow.parquet")
        fields = [(name, _arrow_type(arrow, column)) for name, column in columns.items()]
        self._table, self._schema = arrow.table, arrow.schema(fields)
        self._writer = parquet.ParquetWriter(str(path), self._schema)

    def write(self, block: dict[str, list[Any]]) -> None:
        self._writer.write_table(self._table(block, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _arrow_type(arrow: Any, column: Column) -> Any:
    """The Arrow type of a column; half precision, which few readers know, becomes float32."""
    if column.is_text:
        return arrow.string()
    if column.dtype in ("float16", "bfloat16"):
        return arrow.float32()
    if column.dtype == "bool":
        return arrow.bool_()
    return getattr(arrow, column.dtype)()


def _import_pyarrow(name: str) -> Any:
    """A module of pyarrow, which only Parquet needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise StoreError(
            f"Parquet needs pyarrow, which is not installed: pip install pyarrow, or export .csv or .jsonl ({error})"
        ) from error


FORMATS: dict[str, Callable[[Path, dict[str, Column]], TableWriter]] = {
    ".csv": _CsvWriter,
    ".jsonl": _JsonWriter,
    ".parquet": _ParquetWriter,
}
