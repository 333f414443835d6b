"""The formats of a table: rows of cells as CSV, JSON lines or Parquet, by one set of rules.

A cell is a str, int, float, bool or None. NaN is None: an empty cell, or null. In JSON lines
infinities are spelled 1e999, which is JSON and is read as infinity, and `references` that are a
list of texts are a list.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.extras import needs_extra
from store.text_records import parse_list

__all__ = ["Block", "csv_text", "import_pyarrow", "json_text", "number_cells", "write_parquet"]

REFERENCES = "references"
# JSON has no words for these; readers round 1e999 to infinity
SPELLED = {math.inf: "1e999", -math.inf: "-1e999"}
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
    # Python before 3.13 leaves a lone carriage return bare, which ends the line for readers
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows(rows)  # None is an empty cell
    return file.getvalue()


def json_text(names: Sequence[str], rows: Iterable[Cells]) -> str:
    """Rows as lines of JSON, an object each; half a character, which UTF-8 lacks, is escaped."""
    text = "".join(f"{_record(names, cells)}\n" for cells in rows)
    return text.encode(errors="backslashreplace").decode()


def _record(names: Sequence[str], cells: Cells) -> str:
    record = dict(zip(names, cells, strict=True))
    found = parse_list(record.get(REFERENCES) or "")
    if found is not None and all(isinstance(text, str) for text in found):
        record[REFERENCES] = found
    items = [f"{_json(name)}: {_json(cell)}" for name, cell in record.items()]
    return f"{{{', '.join(items)}}}"


def _json(cell: Any) -> str:
    is_spelled = isinstance(cell, float) and math.isinf(cell)
    return SPELLED[cell] if is_spelled else json.dumps(cell, ensure_ascii=False)


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
