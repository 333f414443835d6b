"""A table of a store's texts and numbers: CSV, JSON lines or Parquet, one line for each trace.

Rows are read and written in blocks, so memory does not grow with the store. The file appears at its
path whole or not at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from store.errors import NotFoundError, SchemaError, closest
from store.format.schema import TRACE_ID, Column
from store.read.batches.batch import Batch
from store.read.questions import QUESTION_ID
from store.read.store import TraceStore
from store.transform.table_formats import (
    Block,
    csv_text,
    import_pyarrow,
    json_text,
    number_cells,
    write_parquet,
)
from store.write.files import replacing
from store.write.source import Progress

__all__ = ["export_table"]

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a formula begins with
BLOCK_ROWS = 1024  # texts of so many rows are in memory at once

Columns = Mapping[str, Column]


def export_table(
    store: TraceStore,
    target: Path,
    columns: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    *,
    overwrite: bool = False,
    escape_formulas: bool = False,
    progress: Progress = lambda done: None,
) -> list[str]:
    """Write columns of a store to a file, and return their names.

    The ending of `target`, `.csv`, `.jsonl` or `.parquet`, chooses the format. NaN is an empty
    cell, or null; in JSON lines infinities are spelled 1e999, which is JSON and is read as
    infinity, and `references` is a list. `columns` have one text or one number a row; None: all of
    them. `trace_id` and, if there is one, `question_id` always come first. `rows` are in the order
    to write them; None: all. `escape_formulas` puts ' before texts that spreadsheets would take for
    a formula, in CSV (https://owasp.org/www-community/attacks/CSV_Injection). `progress` is called
    with the number of rows written after each block.

    Raises SchemaError: a column is an array, the ending is unknown, the file exists, or it would
    lie within the store; NotFoundError: there is no such column, no such directory, or, for
    Parquet, no pyarrow.
    """
    ending = target.suffix.lower()
    if ending not in FORMATS:
        raise SchemaError(
            f"{target}: expected a file that ends in {', '.join(FORMATS)}, "
            f"found {ending or 'no ending'!r}"
        )
    if ending == ".parquet":
        import_pyarrow()
    if escape_formulas and ending != ".csv":
        raise SchemaError(f"{target}: expected a .csv file with --escape-formulas, found {ending}")
    chosen = _choose_columns(store, columns)
    _check_target(store, target, overwrite)
    blocks = _read_blocks(store, chosen, range(len(store)) if rows is None else rows, progress)
    if escape_formulas:
        blocks = map(_escape_formulas, blocks)
    with replacing(target) as temporary:
        FORMATS[ending](temporary, chosen, blocks)
    return list(chosen)


def _choose_columns(store: TraceStore, columns: Sequence[str] | None) -> Columns:
    """The columns to write, the ids first; raises unless each row has one text or number of it."""
    stored = store.schema.stored
    exportable = [name for name, column in stored.items() if column.is_single]
    chosen = exportable if columns is None else columns
    for name in chosen:
        if name in exportable:
            continue
        if name in stored:
            raise SchemaError(
                f"{store.location}: column {name!r} holds an array in each row, which no cell of a "
                f"table holds; columns that can be exported: {', '.join(exportable)}"
            )
        raise NotFoundError(
            f"{store.location}: expected some of its columns {', '.join(exportable)}, "
            f"found {name!r:.200}{closest(name, exportable)}"
        )
    ids = [name for name in (TRACE_ID, QUESTION_ID) if name in exportable]
    return {name: stored[name] for name in [*ids, *chosen]}


def _check_target(store: TraceStore, target: Path, overwrite: bool) -> None:
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"{target}: there is no directory {target.parent}; make it first")
    if store.path.resolve() in target.resolve().parents:
        raise SchemaError(
            f"{target}: lies within the store, which holds its own files only; choose another place"
        )
    if target.exists() and not (overwrite and target.is_file()):
        raise SchemaError(
            f"{target}: exists already, and may hold labels; "
            "choose another name, or replace it with --overwrite"
        )


def _read_blocks(
    store: TraceStore, columns: Columns, rows: Sequence[int], progress: Progress
) -> Iterator[Block]:
    """Read rows in blocks, and report each once it was written."""
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        batch = store.read_arrays(block, list(columns))
        yield {name: _cells(batch, name, column) for name, column in columns.items()}
        progress(start + len(block))


def _cells(batch: Batch, name: str, column: Column) -> list[Any]:
    return batch.texts(name) if column.is_text else number_cells(batch.numbers(name))


def _escape_formulas(block: Block) -> Block:
    return {name: [_escape_formula(cell) for cell in cells] for name, cells in block.items()}


def _escape_formula(cell: object) -> Any:
    """A text that begins as a formula after an apostrophe, anything else unchanged."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _write_csv(path: Path, columns: Columns, blocks: Iterable[Block]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(csv_text([list(columns)]))
        for block in blocks:
            file.write(csv_text(zip(*block.values(), strict=True)))


def _write_json_lines(path: Path, columns: Columns, blocks: Iterable[Block]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        for block in blocks:
            file.write(json_text(list(columns), zip(*block.values(), strict=True)))


def _write_parquet(path: Path, columns: Columns, blocks: Iterable[Block]) -> None:
    write_parquet(path, {name: column.dtype for name, column in columns.items()}, blocks)


FORMATS = {".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet}
