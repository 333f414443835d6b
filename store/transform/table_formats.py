"""The formats of a table: rows of cells as CSV, JSON lines or Parquet, by one set of rules.

A cell is a str, int, float, bool or None. NaN is None: an empty cell, or null. In JSON lines
infinities are spelled 1e999, which is JSON and is read as infinity, and `references` is a list,
whose numbers are spelled so too.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.extras import needs_extra
from store.text_records import parse_list

__all__ = ["Block", "csv_text", "import_pyarrow", "json_text", "number_cells", "write_parquet"]

REFERENCES = "references"
# JSON has no words for these; readers round 1e999 to infinity
SPELLED = {"NaN": "null", "Infinity": "1e999", "-Infinity": "-1e999"}
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|NaN|-?Infinity')
# half precision, which few readers know, is float32
WIDER = {"float16": "float32", "bfloat16": "float32"}

Cells = Sequence[Any]
Block = dict[str, list[Any]]  # column -> a cell for each row


def number_cells(values: np.ndarray) -> list[Any]:
    """Numbers `(n,)` as cells: a float is that of the fewest digits that is it in its precision."""
    if values.dtype.kind != "f":
        return values.tolist()
    return [None if np.isnan(number) else float(str(number)) for number in values]


def csv_text(rows: Iterable[Cells], delimiter: str = ",") -> str:
    """Rows as comma-separated values: RFC 4180, but with Unix line ends."""
    file = io.StringIO()
    plain = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for cells in rows:
        # Python before 3.13 leaves a lone carriage return bare, and readers take it for the end of
        # the line
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        writer = quoting if has_return else plain
        writer.writerow(["" if cell is None else cell for cell in cells])
    return file.getvalue()


def json_text(names: Sequence[str], rows: Iterable[Cells]) -> str:
    """Rows as lines of JSON, an object each; half a character, which UTF-8 lacks, is escaped."""
    text = "".join(f"{_record(names, cells)}\n" for cells in rows)
    return text.encode(errors="backslashreplace").decode()


def _record(names: Sequence[str], cells: Cells) -> str:
    record = dict(zip(names, cells, strict=True))
    if REFERENCES in record:
        cell = record[REFERENCES]
        found = parse_list(cell)
        record[REFERENCES] = cell if found is None else found
    items = [f"{_json(name)}: {_json(cell)}" for name, cell in record.items()]
    return f"{{{', '.join(items)}}}"


def _json(cell: Any) -> str:
    """A cell in JSON, in which a number too large for a float is infinity."""
    text = json.dumps(cell, ensure_ascii=False)
    if isinstance(cell, str):
        return text
    return _TOKEN.sub(lambda token: SPELLED.get(token[0], token[0]), text)


def write_parquet(path: Path, dtypes: Mapping[str, str], blocks: Iterable[Block]) -> None:
    """Write columns of these dtypes as Apache Parquet; a row group for every block.

    Raises NotFoundError if pyarrow is not installed.
    """
    arrow = import_pyarrow()
    fields = [(name, WIDER.get(dtype, dtype)) for name, dtype in dtypes.items()]
    schema = arrow.schema(fields)
    with arrow.parquet.ParquetWriter(str(path), schema) as writer:
        for block in blocks:
            numbers = {name: _widened(cells, dtypes[name]) for name, cells in block.items()}
            writer.write_table(arrow.table(numbers, schema=schema))


def _widened(cells: list[Any], dtype: str) -> list[Any]:
    """Cells of a dtype as `WIDER` has them: the number itself, of which a cell has few digits."""
    if dtype != "float16":
        return cells
    return [None if cell is None else float(np.float16(cell)) for cell in cells]


def import_pyarrow() -> Any:
    with needs_extra("arrays", "export .csv or .jsonl, or install what Parquet needs: "):
        import pyarrow.parquet
    return pyarrow
