"""Values of a record under their keys: each has the type that its key promises, or is an error."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.values import is_integer

__all__ = [
    "array",
    "floats",
    "integer",
    "integers",
    "optional_integer",
    "parts",
    "shown_keys",
    "text",
    "texts",
    "value",
]


def value(record: Mapping, key: str) -> Any:
    """Return the value of a key that must be there."""
    if key not in record:
        raise SchemaError(f"expected the key {key!r}, found {shown_keys(record)}")
    return record[key]


def shown_keys(record: Mapping) -> list[str]:
    """Return some of the keys, to show in a message; others than texts may be endless."""
    return sorted(key[:40] for key in record if isinstance(key, str))[:12]


def text(record: Mapping, key: str) -> str:
    item = value(record, key)
    if not isinstance(item, str):
        raise SchemaError(f"{key}: expected a text, found {type(item).__name__}")
    return item


def texts(record: Mapping, key: str) -> list[str]:
    items = value(record, key)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise SchemaError(f"{key}: expected a list of texts, found something else")
    return items


def integer(record: Mapping, key: str) -> int:
    item = value(record, key)
    if not is_integer(item):
        raise SchemaError(f"{key}: expected an integer, found {type(item).__name__}")
    return int(item)


def optional_integer(record: Mapping, key: str) -> int | None:
    return integer(record, key) if key in record else None


def integers(record: Mapping, key: str) -> np.ndarray:
    """Return token ids, int32 `(T,)`."""
    numbers = array(value(record, key))
    has_integers = numbers.dtype.kind in "iu" or not numbers.size
    if numbers.ndim != 1 or not has_integers:
        raise SchemaError(f"{key}: expected integers in one dimension, found {_described(numbers)}")
    token_ids = numbers.astype(np.int32)
    if not np.array_equal(token_ids, numbers):
        raise SchemaError(f"{key}: expected token ids that int32 holds, found {numbers.max()}")
    return token_ids


def parts(whole: object, key: str, expected: str) -> Sequence:
    """Return the list under a key, of `expected`, such as "an array for each layer"."""
    if not isinstance(whole, list | tuple) or not whole:
        raise SchemaError(f"{key}: expected a list of {expected}, found {type(whole).__name__}")
    return whole


def floats(values: object, key: str, ndim: int) -> np.ndarray:
    """Return an array of floating-point numbers with `ndim` axes."""
    numbers = array(values)
    if numbers.dtype.kind != "f" or numbers.ndim != ndim:
        found = _described(numbers)
        raise SchemaError(f"{key}: expected floating numbers with {ndim} axes, found {found}")
    return numbers


def array(values: object) -> np.ndarray:
    """Return an array, of bfloat16 as float32."""
    numbers = np.asarray(values)
    return numbers.astype(np.float32) if numbers.dtype.name == "bfloat16" else numbers


def _described(numbers: np.ndarray) -> str:
    return f"{numbers.dtype} of shape {numbers.shape}"
