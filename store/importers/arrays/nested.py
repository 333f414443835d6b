"""Values of JSON that serving engines nest: keys of objects in objects, and encoded arrays. Pure.

`meta_info.hidden_states` is the key hidden_states of the object under meta_info. vllm-lens writes
an array as an object of `data` (base64), `dtype` and `shape`; SGLang a list of the prompt's states
and then one state for each step, which become one list.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from store.errors import SchemaError
from store.importers.arrays.contents import Record

__all__ = ["flat_record"]

MAX_DEPTH = 4  # of objects in each other
ENCODED = {"data", "dtype", "shape"}
DTYPES = {"bfloat16": np.dtype(bfloat16)} | {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")
}


def flat_record(record: Record) -> dict[str, Any]:
    """Return a record with a key for each value in its objects; arrays are decoded.

    Raises SchemaError for an array whose bytes are not those of its shape.
    """
    return dict(_flat(record, "", 1))


def _flat(record: Record, before: str, depth: int) -> Iterator[tuple[str, Any]]:
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


def _joined(value: Any) -> Any:
    """Join a list of a block of states and single ones; anything else is as it is."""
    if not isinstance(value, list) or len(value) < 2 or _depth(value[0]) != 2:
        return value
    if any(_depth(one) not in (1, 2) for one in value[1:]) or {*map(_depth, value[1:])} == {2}:
        return value
    return [row for one in value for row in (one if _depth(one) == 2 else [one])]


def _depth(value: Any) -> int:
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
