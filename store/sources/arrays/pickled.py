"""Pickles and torch files of arrays, in dicts or lists, through the reader that runs nothing."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from store.sources.arrays.contents import LIST, TEXT, ArrayFile, Key, check_bytes, key_of
from store.sources.legacy.contents import is_torch
from store.sources.pickles import read_pickle, read_torch

__all__ = ["PickledFile"]

MAX_ITEMS = 16_000_000  # of lists in lists, with the characters of their texts


class PickledFile(ArrayFile):
    """A dict has an array, or a list of a value for each record, for each key.

    A list of dicts has the keys of the first. Any other value is an array with the name of the file
    as its key, as in a .npy file.
    """

    kind = "pickle"

    def __init__(self, path: Path, max_bytes: int) -> None:
        content: Any = (read_torch if is_torch(path) else read_pickle)(path, max_bytes)
        self._max_bytes = max_bytes
        self._rows: list[Any] = []
        stem = path.name.partition(".")[0]
        self._named = content if isinstance(content, Mapping) else {stem: content}
        if isinstance(content, list) and content and isinstance(content[0], Mapping):
            self._rows = content
            self._named = {key: [value] for key, value in content[0].items()}
        names = [key for key in self._named if type(key) is str]
        super().__init__(
            path, {key: self._key(_column(self._named[key], max_bytes)) for key in names}
        )

    def _key(self, array: Any) -> Key:
        if str(array.dtype) != "object" or not len(array):
            return key_of(array)
        first = key_of(array[0])
        shape = (len(self._rows) or len(array), *first.shape)
        return Key(TEXT if first == Key(TEXT) else LIST, shape)

    def read(self, key: str) -> Any:
        rows = [row.get(key) if isinstance(row, Mapping) else None for row in self._rows]
        return _column(rows or self._named[key], self._max_bytes)


def _column(value: Any, max_bytes: int) -> Any:
    """Return an array with a row for each record: of objects, unless it is one already."""
    if hasattr(value, "dtype"):
        return _plain(value, max_bytes)
    values = value if isinstance(value, list) else [value]
    return np.fromiter((_plain(one, max_bytes) for one in values), object, len(values))


def _plain(value: Any, max_bytes: int) -> Any:
    """Return NumPy's array of a tensor, lists as JSON has them; bfloat16 stays a tensor.

    What repeats itself could fill the memory: it becomes an empty dict, which no column takes.
    """
    if hasattr(value, "detach"):
        return value if str(value.dtype) == "torch.bfloat16" else value.numpy()
    if not isinstance(value, list | tuple | dict):
        return value
    if isinstance(value, list) and all(hasattr(one, "nbytes") for one in value):
        check_bytes(sum(one.nbytes for one in value), max_bytes, "a list of arrays")
        return [_plain(one, max_bytes) for one in value]
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
