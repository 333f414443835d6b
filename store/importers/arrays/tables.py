"""Tables: JSON lines, Arrow files as the library datasets saves them, Parquet; a record a line."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import CorruptError, FormatError, SchemaError
from store.extras import needs_extra
from store.format.arrow import nested_array
from store.importers.arrays.contents import BadRecord, Record, Table, check_bytes
from store.importers.arrays.nested import flat_record
from store.text_records import LineError, read_json_lines

__all__ = ["open_arrow", "open_json_lines", "open_parquet"]

MAX_LINE = 1 << 30  # characters
PARQUET_ROWS = 64  # at once; a row may have megabytes


def open_json_lines(path: Path) -> Table:
    """Open one JSON object a line, whose numbers may be in lists of lists, or in objects."""
    return Table(path, "JSON lines", partial(_objects, path))


def _objects(path: Path, keys: Collection[str] | None) -> Iterator[Record]:
    """Yield the values of each line; a key that it lacks is left out."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, value in read_json_lines(iter(lambda: lines.readline(MAX_LINE), "")):
                if isinstance(value, dict):
                    yield _chosen(value, keys)
                    continue
                bad = f"expected a JSON object, found {type(value).__name__}"
                bad = str(value) if isinstance(value, LineError) else bad
                yield BadRecord(FormatError(f"line {number}: {bad}"))
    except UnicodeDecodeError as error:
        raise FormatError(f"expected UTF-8, found {error}; save it as UTF-8") from error


def _chosen(value: Record, keys: Collection[str] | None) -> Record:
    try:
        flat = flat_record(value)
    except SchemaError as error:
        return BadRecord(error)
    return {key: flat[key] for key in (flat if keys is None else keys) if key in flat}


def open_arrow(path: Path, files: Sequence[Path]) -> Table:
    """Open Arrow's streaming or file format, by pyarrow; an array of a record is a nested list.

    It is one file, or several in a folder that `Dataset.save_to_disk` wrote.
    """
    return Table(path, "Arrow", lambda keys: _rows(_arrow_batches(files), keys))


def open_parquet(path: Path, max_bytes: int) -> Table:
    """Open a Parquet file, by pyarrow; no row group may unpack to more than `max_bytes`."""
    return Table(path, "Parquet", lambda keys: _rows(_parquet_batches(path, max_bytes, keys), keys))


def _arrow_batches(files: Sequence[Path]) -> Iterator[Any]:
    with _pyarrow("Arrow") as pyarrow:
        for file in files:
            with pyarrow.memory_map(str(file)) as source:
                if source.read(6) == b"ARROW1":
                    reader = pyarrow.ipc.open_file(source)
                    yield from map(reader.get_batch, range(reader.num_record_batches))
                    continue
                source.seek(0)
                yield from pyarrow.ipc.open_stream(source)


def _parquet_batches(path: Path, max_bytes: int, keys: Collection[str] | None) -> Iterator[Any]:
    """Yield the record batches, with these columns only."""
    with _pyarrow("Parquet") as pyarrow, pyarrow.parquet.ParquetFile(path) as file:
        for i in range(file.num_row_groups):
            n_bytes = file.metadata.row_group(i).total_byte_size
            check_bytes(n_bytes, max_bytes, f"row group {i}")
        columns = None if keys is None else list(keys)
        yield from file.iter_batches(PARQUET_ROWS, columns=columns)


@contextmanager
def _pyarrow(kind: str) -> Iterator[Any]:
    """Import the library; turn what it raises for damaged bytes into one error."""
    with needs_extra("arrays", f"expected the extra arrays to read {kind} files: "):
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    try:
        yield pyarrow
    except (pyarrow.ArrowException, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        reason = " ".join(str(error).split())[:200]
        raise CorruptError(f"expected Arrow data, found {reason}; copy the file again") from error


def _rows(batches: Iterable[Any], keys: Collection[str] | None) -> Iterator[Record]:
    """Yield the values of each row, arrays with the dtype of the column."""
    for batch in batches:
        names = batch.schema.names if keys is None else keys
        columns = {key: batch.column(key) for key in names}
        for i in range(batch.num_rows):
            yield _row(columns, i)


def _row(columns: Mapping[str, Any], i: int) -> Record:
    try:
        return {key: _arrow_value(column[i]) for key, column in columns.items()}
    except (SchemaError, UnicodeDecodeError) as error:
        return BadRecord(error)


def _arrow_value(scalar: Any) -> Any:
    """Return a number, a text, or an array of the column's dtype; None stays None."""
    values = getattr(scalar, "values", None)
    if values is None or not hasattr(values, "null_count"):
        value = scalar.as_py()
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return np.asarray(value, scalar.type.to_pandas_dtype())[()] if is_number else value
    return nested_array(values)
