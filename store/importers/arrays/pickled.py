"""Pickles and torch files of arrays, in dicts or lists, through the reader that runs nothing."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.importers.arrays.contents import (
    LIST,
    ArrayFile,
    BadRecord,
    Contents,
    Key,
    check_bytes,
    first_whole,
    key_of,
)
from store.importers.files import Given
from store.importers.pickles import read_pickle, read_torch

__all__ = ["open_pickled", "read_content"]

MAX_ITEMS = 16_000_000  # of lists in lists, with the characters of their texts


def read_content(given: Given, max_bytes: int) -> Any:
    """Return the value in a pickle or a torch file."""
    read = read_torch if given.kind == "torch" else read_pickle
    return read(given.path, max_bytes)


def open_pickled(given: Given, max_bytes: int) -> Contents:
    """Open a list of dicts as a table, a dict as arrays, and any other value as an array.

    That has the name of the file as its key, as in a .npy file.
    """
    path = given.path
    content = read_content(given, max_bytes)
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        return PickledTable(path, content, max_bytes)
    stem = path.name.partition(".")[0]
    return PickledArrays(
        path, content if isinstance(content, Mapping) else {stem: content}, max_bytes
    )


class PickledTable(Contents):
    """A list of dicts, with the keys of the first."""

    kind = "pickle"
    is_table = True

    def __init__(self, path: Path, rows: list[Any], max_bytes: int) -> None:
        self._rows = rows
        self._max_bytes = max_bytes
        names = [key for key in rows[0] if type(key) is str]
        first = first_whole(self.records(names, True))
        super().__init__(path, {name: key_of(value) for name, value in first.items()})

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Mapping[str, Any]]:
        """Yield the values of each dict; a key that it lacks is left out."""
        for row in self._rows:
            found = [key for key in keys if isinstance(row, Mapping) and key in row]
            yield _record({key: row[key] for key in found}, self._max_bytes)


class PickledArrays(ArrayFile):
    """A dict with an array, a list of arrays, or a plain value for each key."""

    kind = "pickle"

    def __init__(self, path: Path, named: Mapping[Any, Any], max_bytes: int) -> None:
        self._named = named
        self._max_bytes = max_bytes
        names = [key for key in named if type(key) is str]
        super().__init__(path, {name: _key(named[name], max_bytes) for name in names})

    def read(self, key: str) -> Any:
        return self._named[key]

    def records(self, keys: Collection[str], by_row: bool) -> Iterator[Mapping[str, Any]]:
        for record in super().records(keys, by_row):
            yield _record(record, self._max_bytes)


def _record(values: Mapping[str, Any], max_bytes: int) -> Mapping[str, Any]:
    try:
        return {key: _plain(value, max_bytes) for key, value in values.items()}
    except SchemaError as error:
        return BadRecord(error)


def _key(value: Any, max_bytes: int) -> Key:
    """Return what a value is; lists of numbers or of texts, of equal lengths, are arrays."""
    if not isinstance(value, list):
        return key_of(_plain(value, max_bytes))
    shape = _shape(value) if _n_items(value, {}) <= MAX_ITEMS else None
    if shape is None:
        return Key(LIST, (len(value), *key_of(_plain(value[0], max_bytes)).shape))
    while isinstance(value, list) and value:
        value = value[0]
    return Key(key_of(value).dtype, shape)


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of numbers or texts in lists of equal lengths; None for other lists."""
    if not isinstance(value, list):
        return ()
    shapes = {_shape(one) for one in value} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)


def _plain(value: Any, max_bytes: int) -> Any:
    """Return a value that is no larger than its file.

    What repeats itself could fill the memory: it becomes an empty dict, which no column takes.
    """
    if not isinstance(value, list | tuple | dict):
        return value
    if isinstance(value, list) and all(hasattr(one, "nbytes") for one in value):
        check_bytes(sum(one.nbytes for one in value), max_bytes, "a list of arrays")
        return value
    return value if _n_items(value, {}) <= MAX_ITEMS else {}


def _n_items(value: Any, known: dict[int, float]) -> float:
    """Count numbers and characters in lists of lists; infinite with anything else in them."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list):
        return 1 if isinstance(value, int | float | np.generic) else math.inf
    if id(value) not in known:  # which may be repeated very often
        known[id(value)] = math.inf  # in itself
        known[id(value)] = len(value) + sum(_n_items(one, known) for one in value)
    return known[id(value)]
