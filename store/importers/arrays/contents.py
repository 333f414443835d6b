"""What a file of arrays holds: keys with types and shapes, and its records, read on demand.

In a *table* (JSON lines, Arrow, Parquet, a pickled list of dicts) every line is a record. *Arrays*
(NumPy, safetensors, HDF5, a pickled dict) are either one record, or have a row for each record;
only who knows what they mean can tell, so `records` asks. Opening a file reads what it says about
itself; nothing of a file is ever executed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from store.errors import SchemaError

__all__ = [
    "LIST",
    "TEXT",
    "Arrays",
    "BadRecord",
    "Contents",
    "Key",
    "Record",
    "Shape",
    "Table",
    "UnreadArray",
    "check_bytes",
    "first_whole",
    "is_single",
    "key_of",
    "record_of",
]

TEXT = "text"  # dtype of strings, as people read it
LIST = "list"  # dtype of records that differ in length
Shape = tuple[int, ...]
Record = Mapping[str, Any]
GB = 1e9


@dataclass(frozen=True)
class Key:
    """What a file says about the values of one key."""

    dtype: str  # NumPy's name, "bfloat16" of ml_dtypes, `TEXT`, or what else it is called
    shape: Shape = ()  # of the whole array; in a table, of the value of the first record

    def __str__(self) -> str:
        """'float32 (100, 8)'."""
        return f"{self.dtype} {self.shape}" if self.shape else self.dtype


class UnreadArray(NamedTuple):
    """An array in a file; `read` returns it, mapped where it can be; in a pickle any value."""

    key: Key
    read: Callable[[], Any]


def key_of(value: object) -> Key:
    """Return what a value is: an array, a text, lists of JSON, anything else."""
    if isinstance(value, list):
        try:
            value = np.asarray(value)
        except ValueError:  # lists of several lengths
            return Key(LIST)
    shape = tuple(getattr(value, "shape", ()))
    first = value.flat[0] if isinstance(value, np.ndarray) and value.size else value
    if isinstance(first, str | bytes):
        return Key(TEXT, shape)
    return Key(str(getattr(value, "dtype", type(value).__name__)), shape)


def is_single(key: Key, n_axes: int = 0) -> bool:
    """Return whether a record has one number or text under a key.

    `n_axes` are those of an array before the axes of a record.
    """
    return len(key.shape) == n_axes and key.dtype not in (LIST, "dict")


class BadRecord(dict[str, Any]):
    """A record without values, of which only what is wrong with it is known."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def record_of(values: Callable[[], Record]) -> Record:
    """Return the values of a record, or what is wrong with it."""
    try:
        return values()
    except (SchemaError, UnicodeDecodeError) as error:
        return BadRecord(error)


def first_whole(records: Iterable[Record]) -> Record:
    """Return the first record that can be read; raises what is wrong with the first of others."""
    problem: Exception | None = None
    for record in records:
        if not isinstance(record, BadRecord):
            return record
        problem = problem or record.error
    if problem is not None:
        raise problem
    return {}


class Contents(ABC):
    """Records of one file of a `kind`, as people call it; `keys` are in the order of the file."""

    is_table: bool  # whether each record is a value of every key by itself

    def __init__(self, path: Path, kind: str, keys: Mapping[str, Key]) -> None:
        self.path = path
        self.kind = kind
        self.keys = keys

    @abstractmethod
    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Record]:
        """Yield the values of some keys, all of which are there, record by record, or a BadRecord.

        Of arrays, every row is a record if `by_row`, else all are one. Raises a StoreError where
        bytes are missing or contradict what the file says of itself.
        """


class Table(Contents):
    """A file whose `rows(keys)` yields the values of these keys, of None all, line by line.

    It has the keys of the first whole record.
    """

    is_table = True

    def __init__(
        self, path: Path, kind: str, rows: Callable[[Collection[str] | None], Iterator[Record]]
    ) -> None:
        first = first_whole(rows(None))
        super().__init__(path, kind, {name: key_of(value) for name, value in first.items()})
        self._rows = rows

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Record]:
        return self._rows(keys)


class Arrays(Contents):
    """A file with one whole array for each key."""

    is_table = False

    def __init__(self, path: Path, kind: str, arrays: Mapping[str, UnreadArray]) -> None:
        super().__init__(path, kind, {name: array.key for name, array in arrays.items()})
        self._arrays = arrays

    def read(self, key: str) -> Any:
        return self._arrays[key].read()

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Record]:
        n_rows = self._n_rows(keys) if by_row else 0
        arrays = {key: self.read(key) for key in keys}
        for key, array in arrays.items():
            _check_size(array, key)
        if not by_row:
            yield arrays
        for i in range(n_rows):
            yield {key: array[i] for key, array in arrays.items()}

    def _n_rows(self, keys: Collection[str]) -> int:
        """Return the rows that all arrays have; raise SchemaError if they differ."""
        shapes = {key: self.keys[key].shape for key in keys}
        lengths = {shape[:1] for shape in shapes.values()}
        if lengths == {()} or len(lengths) > 1:
            shown = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
            raise SchemaError(f"expected arrays with one row for each record, found {shown:.300}")
        return lengths.pop()[0]


def _check_size(array: Any, key: str) -> None:
    """Raise SchemaError for rows without bytes: their number is bounded by nothing in the file."""
    shape = tuple(getattr(array, "shape", ()))
    if shape and shape[0] and not array.nbytes:
        raise SchemaError(f"{key!r:.80}: expected numbers or texts in each row, found none {shape}")


def check_bytes(n_bytes: int, max_bytes: int, what: str) -> None:
    """Raise SchemaError for an array that says it is larger than what a file may unpack to."""
    if n_bytes > max_bytes:
        raise SchemaError(
            f"{what}: expected at most {max_bytes / GB:g} GB (--max-file-gb), "
            f"found {n_bytes / GB:,.1f} GB declared"
        )
