"""Tables: JSON lines, Arrow files as the library datasets saves them, Parquet; a record a line."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import CorruptError, FormatError, SchemaError
from store.extras import needs_extra
from store.importers.arrays.contents import BadRecord, Contents, check_bytes, first_whole, key_of
from store.text_records import LineError, read_json_lines

__all__ = ["ArrowFile", "JsonLinesFile", "ParquetFile"]

MAX_LINE = 1 << 30  # characters
PARQUET_ROWS = 64  # at once; a row may have megabytes


class JsonLinesFile(Contents):
    """One JSON object a line, whose numbers may be in lists of lists."""

    kind = "JSON lines"
    is_table = True

    def __init__(self, path: Path) -> None:
        self.path = path
        first = first_whole(self._objects())
        super().__init__(path, {key: key_of(value) for key, value in first.items()})

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Mapping[str, Any]]:
        """Yield the values of each line; a key that it lacks is left out."""
        for record in self._objects():
            is_bad = isinstance(record, BadRecord)
            yield record if is_bad else {key: record[key] for key in keys if key in record}

    def _objects(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open(encoding="utf-8-sig") as lines:
                for number, value in read_json_lines(iter(lambda: lines.readline(MAX_LINE), "")):
                    if isinstance(value, dict):
                        yield value
                        continue
                    bad = f"expected a JSON object, found {type(value).__name__}"
                    bad = str(value) if isinstance(value, LineError) else bad
                    yield BadRecord(FormatError(f"line {number}: {bad}"))
        except UnicodeDecodeError as error:
            raise FormatError(f"expected UTF-8, found {error}; save it as UTF-8") from error


class ArrowFile(Contents):
    """Arrow's streaming or file format, by pyarrow; an array of a record is a nested list.

    It is one file, or several in a folder that `Dataset.save_to_disk` wrote.
    """

    kind = "Arrow"
    is_table = True

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self._files = files
        batches = self._batches(None)
        rows = (row for batch in batches for row in _rows_of(batch, batch.schema.names))
        super().__init__(path, {name: key_of(one) for name, one in first_whole(rows).items()})

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Mapping[str, Any]]:
        """Yield the values of each row, arrays with the dtype of the column."""
        for batch in self._batches(keys):
            yield from _rows_of(batch, keys)

    def _batches(self, keys: Collection[str] | None) -> Iterator[Any]:
        """Yield the record batches; of Parquet only these columns of them."""
        pyarrow = _import_pyarrow(self.kind)
        with _arrow_damage(pyarrow):
            for file in self._files:
                with pyarrow.memory_map(str(file)) as source:
                    if source.read(6) == b"ARROW1":
                        reader = pyarrow.ipc.open_file(source)
                        yield from map(reader.get_batch, range(reader.num_record_batches))
                        continue
                    source.seek(0)
                    yield from pyarrow.ipc.open_stream(source)


class ParquetFile(ArrowFile):
    """A Parquet file, by pyarrow; no row group may unpack to more than `max_bytes`."""

    kind = "Parquet"

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        super().__init__(path, [path])

    def _batches(self, keys: Collection[str] | None) -> Iterator[Any]:
        pyarrow = _import_pyarrow(self.kind)
        with _arrow_damage(pyarrow), pyarrow.parquet.ParquetFile(self._files[0]) as file:
            for i in range(file.num_row_groups):
                n_bytes = file.metadata.row_group(i).total_byte_size
                check_bytes(n_bytes, self._max_bytes, f"row group {i}")
            columns = None if keys is None else list(keys)
            yield from file.iter_batches(PARQUET_ROWS, columns=columns)


def _import_pyarrow(kind: str) -> Any:
    with needs_extra("arrays", f"expected the extra arrays to read {kind} files: "):
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    return pyarrow


@contextmanager
def _arrow_damage(pyarrow: Any) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        reason = " ".join(str(error).split())[:200]
        raise CorruptError(f"expected Arrow data, found {reason}; copy the file again") from error


def _rows_of(batch: Any, keys: Collection[str]) -> Iterator[dict[str, Any]]:
    columns = {key: batch.column(key) for key in keys}
    return (_row(columns, i) for i in range(batch.num_rows))


def _row(columns: Mapping[str, Any], i: int) -> dict[str, Any]:
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
    return _nested(values)


def _nested(array: Any) -> np.ndarray | list[Any]:
    """Return lists of equal lengths as one array; raises SchemaError for others."""
    if array.null_count:
        raise SchemaError("expected lists without nulls, found some")
    if not hasattr(array, "flatten") or not hasattr(array, "value_lengths"):
        return array.to_numpy(zero_copy_only=False)
    lengths = set(array.value_lengths().to_pylist())
    if len(lengths) > 1:
        raise SchemaError(f"expected inner lists of one length, found {sorted(lengths)[:5]}")
    inner = np.asarray(_nested(array.flatten()))
    return inner.reshape(len(array), *(lengths or {0}), *inner.shape[1:])
