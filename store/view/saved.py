"""Rows as files: their ids, and their values as CSV, JSON lines or Parquet, block by block."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import numpy as np

from store.errors import SchemaError
from store.format.schema import TRACE_ID
from store.transform.table_formats import Block, csv_text, json_text, number_cells, write_parquet
from store.view.columns import Table

__all__ = ["FORMATS", "check_ids", "positions_of", "save_parquet", "saved_lines"]

FORMATS = {"ids": "ids.txt"} | {
    kind: f"traces.{kind}" for kind in ("csv", "tsv", "jsonl", "parquet")
}
DELIMITERS = {"csv": ",", "tsv": "\t"}
BLOCK_ROWS = 8192  # read at once


def positions_of(text: str, n: int) -> np.ndarray:
    """Positions below `n` that ranges mean, both ends of each among them; raises ValueError."""
    if not re.fullmatch(r"\d{1,15}-\d{1,15}(,\d{1,15}-\d{1,15})*", text, re.ASCII):
        raise ValueError(f"positions: expected ranges, as in 3-7,12-12, found {text!r:.40}")
    is_meant = np.zeros(n, bool)
    for first, last in (map(int, part.split("-")) for part in text.split(",")):
        is_meant[first : last + 1] = True
    return np.flatnonzero(is_meant)


def check_ids(table: Table, rows: np.ndarray) -> None:
    """Raise SchemaError for an id that is more than a line."""
    for end in "\n\r":
        has_end = table.rows_with(TRACE_ID, end)[rows]
        if has_end.any():
            row = rows[[has_end.argmax()]].astype(np.int64)
            (trace_id,) = table.texts(TRACE_ID, row)
            raise SchemaError(
                f"row {row[0]}: expected ids of one line, found {trace_id!r:.80}; "
                "filter it out, and choose its rows in Python"
            )


async def saved_lines(
    table: Table, rows: np.ndarray, kind: str, names: Sequence[str]
) -> AsyncIterator[str]:
    """Rows as lines of ids, of CSV, of tabs or of JSON, in blocks; texts are whole."""
    chosen = [TRACE_ID] if kind == "ids" else [*names]
    if kind in DELIMITERS:
        yield csv_text([chosen], DELIMITERS[kind])
    for block in saved_blocks(table, rows, chosen):
        cells = zip(*block.values(), strict=True)
        if kind == "ids":
            yield "".join(f"{trace_id}\n" for (trace_id,) in cells)
        elif kind in DELIMITERS:
            yield csv_text(cells, DELIMITERS[kind])
        else:
            yield json_text(chosen, cells)


def save_parquet(path: Path, table: Table, rows: np.ndarray, names: Sequence[str]) -> None:
    """Write columns of some rows as Parquet; raises StoreError if pyarrow is not installed."""
    stored = table.store.schema.stored
    dtypes = {name: stored[name].dtype if name in stored else "float32" for name in names}
    write_parquet(path, dtypes, saved_blocks(table, rows, names))


def saved_blocks(table: Table, rows: np.ndarray, names: Sequence[str]) -> Iterator[Block]:
    """Columns in some rows, a block of rows at a time."""
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS].astype(np.int64)
        yield {name: whole_values(table, name, block) for name in names}


def whole_values(table: Table, name: str, rows: np.ndarray) -> list:
    """A column in some rows: whole texts without halves of characters, numbers, None for NaN."""
    if table.kind(name) == "text":
        texts = table.texts(name, rows)
        return [text.encode("utf-8", "replace").decode() for text in texts]
    return number_cells(table.numbers(name)[rows])
