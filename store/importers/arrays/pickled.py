"""Pickles and torch files of arrays, in dicts or lists, through the reader that runs nothing."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from store.importers.arrays.contents import (
    LIST,
    Arrays,
    Contents,
    Key,
    Record,
    Shape,
    Table,
    UnreadArray,
    key_of,
)
from store.importers.pickles import read_content

__all__ = ["open_pickled"]


def open_pickled(path: Path, kind: str, max_bytes: int) -> Contents:
    """Open a list of dicts as a table, a dict as arrays, and any other value as an array.

    That has the name of the file as its key, as in a .npy file. A dict has an array, a list of
    arrays, or a plain value for each key.
    """
    content = read_content(path, kind, max_bytes)
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        return Table(path, "pickle", partial(_rows, content))
    named = content if isinstance(content, Mapping) else {path.name.partition(".")[0]: content}
    arrays = {
        key: UnreadArray(_key(value), partial(named.__getitem__, key))
        for key, value in named.items()
        if type(key) is str
    }
    return Arrays(path, "pickle", arrays)


def _rows(rows: list[Any], keys: Collection[str] | None) -> Iterator[Record]:
    """Yield the values of each dict; a key that it lacks is left out."""
    names = [key for key in rows[0] if type(key) is str] if keys is None else keys
    for row in rows:
        yield {key: row[key] for key in names if isinstance(row, Mapping) and key in row}


def _key(value: object) -> Key:
    """Return what a value is; lists of numbers or of texts, of equal lengths, are arrays."""
    if not isinstance(value, list):
        return key_of(value)
    shape = _shape(value)
    if shape is None:
        return Key(LIST, (len(value), *key_of(value[0]).shape))
    while isinstance(value, list) and value:
        value = value[0]
    return Key(key_of(value).dtype, shape)


def _shape(value: object) -> Shape | None:
    """Return the shape of plain values in lists of equal lengths; None for other lists."""
    if not isinstance(value, list):
        return None if isinstance(value, np.ndarray) else ()
    shapes = {_shape(one) for one in value} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)
