"""Pickles and torch files of arrays, in dicts or lists, through the reader that runs nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from store.sources.arrays.contents import LIST, TEXT, ArrayFile, Key, key_of
from store.sources.legacy.contents import is_torch
from store.sources.legacy.fields import MAX_CHARACTERS
from store.sources.pickles import read_pickle, read_torch

__all__ = ["PickledFile"]


class PickledFile(ArrayFile):
    """A dict has an array, or a list of a value for each record, for each key.

    A list of dicts has the keys of the first. Any other value is an array with the name of the file
    as its key, as in a .npy file.
    """

    kind = "pickle"

    def __init__(self, path: Path, max_bytes: int) -> None:
        content: Any = (read_torch if is_torch(path) else read_pickle)(path, max_bytes)
        if isinstance(content, list) and content and isinstance(content[0], Mapping):
            records = [one if isinstance(one, Mapping) else {} for one in content]
            content = {key: [one.get(key) for one in records] for key in records[0]}
        elif not isinstance(content, Mapping):
            content = {path.name.partition(".")[0]: content}
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
