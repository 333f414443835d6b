"""Values of a record under their keys: each has the type that its key promises, or is an error."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from store.errors import SchemaError, StoreError
from store.format.values import is_integer

__all__ = [
    "DAMAGE",
    "RecordError",
    "Row",
    "array",
    "floats",
    "integer",
    "integers",
    "one_line",
    "parts",
    "shown_keys",
    "text",
    "texts",
    "value",
]

Row = dict[str, Any]  # column -> value

# of a list of texts: one text, repeated by reference, would fill the memory
MAX_CHARACTERS = 16_000_000


DAMAGE = (  # what NumPy, torch and Python raise for values that contradict each other
    StoreError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    RuntimeError,
)


class RecordError(SchemaError):
    """One record of a file contradicts itself: it is left out."""


def one_line(error: Exception) -> str:
    """Return what is wrong, from an error of this package or of a library."""
    message = " ".join(str(error).split())[:300]
    if isinstance(error, StoreError):
        return message
    return f"expected a whole trace, found {type(error).__name__}: {message}"


def value(record: Mapping, key: str) -> object:
    """Return the value of a key that must be there."""
    if key not in record:
        raise RecordError(f"expected the key {key!r}, found {shown_keys(record)}")
    return record[key]


def shown_keys(record: Mapping) -> list[str]:
    """Return some of the keys, to show in a message; others than texts may be endless."""
    return sorted(key[:40] for key in record if isinstance(key, str))[:12]


def text(record: Mapping, key: str) -> str:
    """Return a text."""
    found = value(record, key)
    if not isinstance(found, str):
        raise RecordError(f"{key}: expected a text, found {type(found).__name__}")
    return found


def texts(record: Mapping, key: str) -> list[str]:
    """Return a list of texts."""
    found = value(record, key)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise RecordError(f"{key}: expected a list of texts, found something else")
    n_characters = sum(map(len, found))
    if n_characters > MAX_CHARACTERS:
        raise RecordError(
            f"{key}: expected at most {MAX_CHARACTERS} characters, found {n_characters}"
        )
    return found


def integer(record: Mapping, key: str) -> int:
    """Return a whole number."""
    found: Any = value(record, key)
    if not is_integer(found):
        raise RecordError(f"{key}: expected an integer, found {type(found).__name__}")
    return int(found)


def integers(record: Mapping, key: str) -> np.ndarray:
    """Return token ids, int32 `(T,)`."""
    found = array(value(record, key))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise RecordError(
            f"{key}: expected integers in one dimension, found {found.dtype} of shape {found.shape}"
        )
    if found.size and not -(2**31) <= found.min() <= found.max() < 2**31:
        raise RecordError(f"{key}: expected token ids that int32 holds, found {found.max()}")
    return found.astype(np.int32)


def parts(whole: object, key: str, each: str) -> Sequence:
    """Return the list of arrays under a key: one for each layer, or for each step."""
    if not isinstance(whole, list | tuple) or not whole:
        raise RecordError(
            f"{key}: expected a list of an array for each {each}, found {type(whole).__name__}"
        )
    return whole


def floats(values: object, key: str, ndim: int | None = None) -> np.ndarray:
    """Return an array of floating-point numbers, with `ndim` axes if that is given."""
    found = array(values)
    if found.dtype.kind != "f" or ndim not in (None, found.ndim):
        axes = "" if ndim is None else f" with {ndim} axes"
        raise RecordError(
            f"{key}: expected floating numbers{axes}, found {found.dtype} of shape {found.shape}"
        )
    return found


def array(values: object) -> np.ndarray:
    """Return NumPy's array of a tensor (bfloat16 as float32) or of anything else."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
