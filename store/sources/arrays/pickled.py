"""Pickles and torch files of arrays, in dicts or lists, through the reader that runs nothing."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.sources.arrays.contents import LIST, TEXT, ArrayFile, Contents, Key, key_of
from store.sources.legacy.contents import is_torch
from store.sources.legacy.fields import MAX_CHARACTERS
from store.sources.pickles import read_pickle, read_torch

__all__ = ["open_pickle"]


def open_pickle(path: Path, max_bytes: int) -> Contents:
    """Read a file: a list of dicts is a table, a dict has an array for each key.

    Any other value is an array with the name of the file as its key, as one in a .npy file is.
    """
    content = (read_torch if is_torch(path) else read_pickle)(path, max_bytes)
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        return _Records(path, content)
    named = content if isinstance(content, Mapping) else {path.name.partition(".")[0]: content}
    return _Arrays(path, named)


class _Records(Contents):
    """A list of dicts."""

    kind = "pickle"
    is_table = True

    def __init__(self, path: Path, records: list[Any]) -> None:
        self._records = records
        named = ((key, value) for key, value in records[0].items() if type(key) is str)
        super().__init__(path, {key: key_of(_plain(value)) for key, value in named})

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Mapping[str, Any]]:
        for record in self._records:
            if not isinstance(record, Mapping):
                raise SchemaError(f"expected dicts, as before, found {type(record).__name__}")
            yield {key: _plain(record[key]) for key in keys if key in record}


class _Arrays(ArrayFile):
    """A dict of arrays; a list has a value for each record, and they may differ in length."""

    kind = "pickle"

    def __init__(self, path: Path, content: Mapping[Any, Any]) -> None:
        self._arrays = {key: _column(value) for key, value in content.items() if type(key) is str}
        super().__init__(path, {key: _key(array) for key, array in self._arrays.items()})

    def read(self, key: str) -> Any:
        return self._arrays[key]


def _column(value: Any) -> Any:
    """Return an array with a row for each record: of objects, unless it is one already."""
    if hasattr(value, "dtype"):
        return _plain(value)
    values = value if isinstance(value, list) else [value]
    return np.fromiter(map(_plain, values), object, len(values))


def _key(array: Any) -> Key:
    if str(array.dtype) != "object" or not len(array):
        return key_of(array)
    first = key_of(array[0])
    return Key(TEXT if first == Key(TEXT) else LIST, (len(array), *first.shape))


def _plain(value: Any) -> Any:
    """Return NumPy's array of a tensor or a list; bfloat16, which NumPy lacks, stays a tensor.

    A list of lists, or of texts again and again, could fill the memory: it becomes an empty dict,
    which no column takes.
    """
    if hasattr(value, "detach"):
        return value if str(value.dtype) == "torch.bfloat16" else value.numpy()
    if not isinstance(value, list | tuple | dict):
        return value
    kinds = set(map(type, value))
    is_text = kinds == {str} and len(value) * max(map(len, value)) <= MAX_CHARACTERS
    is_plain = isinstance(value, list) and (is_text or kinds <= {bool, int, float})
    return np.asarray(value) if is_plain else {}
