"""Tables: JSON lines, Arrow files as the library datasets saves them, Parquet; a record a line.

Values of JSON that serving engines nest are flattened: `meta_info.hidden_states` is the key
hidden_states of the object under meta_info. vllm-lens writes an array as an object of `data`
(base64), `dtype` and `shape`; SGLang a list of the prompt's states and then one state for each
step, which become one list.
"""

import base64
import binascii
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from store.errors import FormatError, SchemaError
from store.extras import needs_extra
from store.format.values import nested_array
from store.importers.arrays.contents import BadRecord, Record, Table, check_bytes, record_of
from store.importers.damage import damage
from store.text_records import LineError, read_json_lines

__all__ = ["open_arrow", "open_json_lines", "open_parquet"]

MAX_LINE = 1 << 30  # characters
PARQUET_ROWS = 64  # at once; a row may have megabytes
MAX_DEPTH = 4  # of objects in each other
ENCODED = {"data", "dtype", "shape"}
DTYPES = {"bfloat16": np.dtype(bfloat16)} | {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")
}


def _flat(record: Record, before: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield a key for each value in a record and its objects; arrays are decoded."""
    for name, value in record.items():
        key = before + name
        if not isinstance(value, Mapping) or not value:
            yield key, _joined(value)
        elif value.keys() == ENCODED:
            yield key, _decoded(key, value)
        elif depth < MAX_DEPTH:
            yield from _flat(value, f"{key}.", depth + 1)
        else:
            yield key, value


def _joined(value: object) -> Any:
    """Join a list of a block of states and single ones; anything else is as it is."""
    if not isinstance(value, list) or len(value) < 2 or _depth(value[0]) != 2:
        return value
    if any(_depth(one) not in (1, 2) for one in value[1:]) or {*map(_depth, value[1:])} == {2}:
        return value
    return [row for one in value for row in (one if _depth(one) == 2 else [one])]


def _depth(value: object) -> int:
    """Return how many lists are in each other at the beginning of a value."""
    depth = 0
    while isinstance(value, list) and value:
        value = value[0]
        depth += 1
    return depth


def _decoded(key: str, value: Mapping[str, Any]) -> np.ndarray:
    dtype = DTYPES.get(str(value["dtype"]).removeprefix("torch."))
    shape = value["shape"]
    is_shape = isinstance(shape, list) and all(type(one) is int and one >= 0 for one in shape)
    if dtype is None or not is_shape:
        raise SchemaError(
            f"{key!r:.80}: expected an array of {', '.join(DTYPES)} with a shape, found "
            f"{value['dtype']!r:.40} {shape!r:.80}"
        )
    try:
        data = base64.b64decode(value["data"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise SchemaError(f"{key!r:.80}: expected base64, found: {error}") from error
    if len(data) != prod(shape) * dtype.itemsize:
        raise SchemaError(
            f"{key!r:.80}: expected {prod(shape) * dtype.itemsize:,} bytes for {dtype.name} "
            f"{tuple(shape)}, found {len(data):,}; it may be compressed, which is not read"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def open_json_lines(path: Path) -> Table:
    """Open one JSON object a line, whose numbers may be in lists of lists, or in objects."""
    return Table(path, "JSON lines", partial(_objects, path))


def _objects(path: Path, keys: Collection[str] | None) -> Iterator[Record]:
    """Yield the values of each line; a key that it lacks is left out."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, value in read_json_lines(iter(lambda: lines.readline(MAX_LINE), "")):
                if isinstance(value, dict):
                    yield record_of(partial(_chosen, value, keys))
                    continue
                bad = f"expected a JSON object, found {type(value).__name__}"
                bad = str(value) if isinstance(value, LineError) else bad
                yield BadRecord(FormatError(f"line {number}: {bad}"))
    except UnicodeDecodeError as error:
        raise FormatError(f"expected UTF-8, found {error}; save it as UTF-8") from error


def _chosen(value: Record, keys: Collection[str] | None) -> Record:
    """Return the values under some keys; raises SchemaError for an array of other bytes."""
    flat = dict(_flat(value, "", 1))
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
    with damage(f"{kind} data", (pyarrow.ArrowException, EOFError, OSError)):
        yield pyarrow


def _rows(batches: Iterable[Any], keys: Collection[str] | None) -> Iterator[Record]:
    """Yield the values of each row, arrays with the dtype of the column."""
    for batch in batches:
        names = batch.schema.names if keys is None else keys
        columns = {key: batch.column(key) for key in names}
        for i in range(batch.num_rows):
            yield record_of(partial(_row, columns, i))


def _row(columns: Mapping[str, Any], i: int) -> Record:
    return {key: _arrow_value(column[i]) for key, column in columns.items()}


def _arrow_value(scalar: Any) -> Any:
    """Return a number, a text, or an array of the column's dtype; None stays None.

    Lists that make no array are lists of Python, and a time that Python does not hold is a text.
    """
    if not scalar.is_valid:
        return None
    if hasattr(scalar, "to_numpy"):  # a tensor
        return scalar.to_numpy()
    if hasattr(getattr(scalar, "value", None), "as_py"):  # of a dictionary, or an extension
        return _arrow_value(scalar.value)
    values = getattr(scalar, "values", None)
    try:
        if values is not None and hasattr(values, "null_count"):
            return nested_array(values)
        value = scalar.as_py()
    except SchemaError:
        return scalar.as_py()
    except (ValueError, OverflowError):  # nanoseconds, or a far year
        return scalar.cast("string").as_py()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return np.asarray(value, scalar.type.to_pandas_dtype())[()] if is_number else value
