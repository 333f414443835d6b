"""Pickles and torch files of arrays, in dicts or lists, through the reader that runs nothing."""

import math
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from store.importers.arrays.contents import (
    LIST,
    Arrays,
    Contents,
    Key,
    Record,
    Shape,
    StoredArray,
    Table,
    check_bytes,
    key_of,
    record_of,
)
from store.importers.files import Given
from store.importers.pickles import read_content

__all__ = ["open_pickled"]

MAX_ITEMS = 16_000_000  # of lists in lists, with the characters of their texts


def open_pickled(given: Given, max_bytes: int) -> Contents:
    """Open a list of dicts as a table, a dict as arrays, and any other value as an array.

    That has the name of the file as its key, as in a .npy file. A dict has an array, a list of
    arrays, or a plain value for each key.
    """
    path = given.path
    content = read_content(path, given.kind, max_bytes)
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        return Table(path, "pickle", partial(_rows, content, max_bytes))
    named = content if isinstance(content, Mapping) else {path.name.partition(".")[0]: content}
    arrays = {
        key: StoredArray(_key(value, max_bytes), partial(named.__getitem__, key))
        for key, value in named.items()
        if type(key) is str
    }
    return Arrays(path, "pickle", arrays, partial(_checked, max_bytes=max_bytes))


def _rows(rows: list[Any], max_bytes: int, keys: Collection[str] | None) -> Iterator[Record]:
    """Yield the values of each dict; a key that it lacks is left out."""
    names = [key for key in rows[0] if type(key) is str] if keys is None else keys
    for row in rows:
        found = [key for key in names if isinstance(row, Mapping) and key in row]
        yield record_of(partial(_checked, {key: row[key] for key in found}, max_bytes))


def _checked(values: Record, max_bytes: int) -> Record:
    return {key: _plain(value, max_bytes) for key, value in values.items()}


def _key(value: object, max_bytes: int) -> Key:
    """Return what a value is; lists of numbers or of texts, of equal lengths, are arrays."""
    if not isinstance(value, list):
        return key_of(_plain(value, max_bytes))
    shape = _shape(value) if _n_items(value, {}) <= MAX_ITEMS else None
    if shape is None:
        return Key(LIST, (len(value), *key_of(_plain(value[0], max_bytes)).shape))
    while isinstance(value, list) and value:
        value = value[0]
    return Key(key_of(value).dtype, shape)


def _shape(value: object) -> Shape | None:
    """Return the shape of numbers or texts in lists of equal lengths; None for other lists."""
    if not isinstance(value, list):
        return ()
    shapes = {_shape(one) for one in value} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)


def _plain(value: object, max_bytes: int) -> Any:
    """Return a value that is no larger than its file.

    What repeats itself could fill the memory: it becomes an empty dict, which no column takes.
    """
    if not isinstance(value, list | tuple | dict):
        return value
    if isinstance(value, list) and all(hasattr(one, "nbytes") for one in value):
        check_bytes(sum(one.nbytes for one in value), max_bytes, "a list of arrays")
        return value
    return value if _n_items(value, {}) <= MAX_ITEMS else {}


def _n_items(value: object, known: dict[int, float]) -> float:
    """Count numbers and characters in lists of lists; infinite with anything else in them."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list):
        return 1 if isinstance(value, int | float | np.generic) else math.inf
    if id(value) not in known:  # which may be repeated very often
        known[id(value)] = math.inf  # in itself
        known[id(value)] = len(value) + sum(_n_items(one, known) for one in value)
    return known[id(value)]
