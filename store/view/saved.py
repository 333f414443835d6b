"""Rows as files: their ids, and their values as CSV or JSON lines, block by block."""

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.schema import TRACE_ID
from store.view.columns import Table, json_number

__all__ = ["FORMATS", "check_ids", "positions_of", "saved_lines"]

FORMATS = {"ids": "ids.txt", "csv": "traces.csv", "tsv": "traces.tsv", "jsonl": "traces.jsonl"}
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
    chosen = [TRACE_ID] if kind == "ids" else [*names] or [*table.kinds]
    if kind in DELIMITERS:
        yield csv_text([chosen], DELIMITERS[kind])
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS].astype(np.int64)
        values = [whole_values(table, name, block) for name in chosen]
        if kind == "ids":
            yield "".join(f"{trace_id}\n" for (trace_id,) in zip(*values, strict=True))
        elif kind in DELIMITERS:
            yield csv_text(zip(*values, strict=True), DELIMITERS[kind])
        else:
            records = (dict(zip(chosen, row, strict=True)) for row in zip(*values, strict=True))
            yield "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def whole_values(table: Table, name: str, rows: np.ndarray) -> list:
    """A column in some rows: whole texts without halves of characters, numbers, None for NaN."""
    if table.kind(name) == "text":
        texts = table.texts(name, rows)
        return [text.encode("utf-8", "replace").decode() for text in texts]
    return [json_number(value) for value in table.numbers(name)[rows].tolist()]


def csv_text(lines: Iterable[Iterable[Any]], delimiter: str) -> str:
    """Lines of values as CSV has them."""
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(lines)
    return file.getvalue()
