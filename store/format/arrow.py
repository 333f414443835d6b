"""Arrays of Arrow as arrays of NumPy; their owner has imported pyarrow. Pure."""

from typing import Any

import numpy as np

from store.errors import SchemaError

__all__ = ["is_arrow", "nested_array", "ragged_parts"]


def is_arrow(value: object) -> bool:
    """Whether it is an array of Arrow, in one chunk or in several."""
    return type(value).__module__.partition(".")[0] == "pyarrow"


def nested_array(array: Any) -> np.ndarray:
    """Lists of equal lengths, however deep, as one array; raises SchemaError for others."""
    if array.null_count:
        raise SchemaError("expected lists without nulls, found some")
    if not hasattr(array, "value_lengths"):
        return array.to_numpy(zero_copy_only=False)
    lengths = set(np.unique(array.value_lengths()).tolist())
    if len(lengths) > 1:
        raise SchemaError(f"expected inner lists of one length, found {sorted(lengths)[:5]}")
    inner = nested_array(array.flatten())
    return inner.reshape(len(array), *(lengths or {0}), *inner.shape[1:])


def ragged_parts(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lists, a row each: their items, and offsets int64 `(n_rows + 1,)`; raises SchemaError."""
    if array.null_count or not hasattr(array, "value_lengths"):
        raise SchemaError(f"expected lists without nulls, found {array.type}")
    offsets = np.cumsum([0, *array.value_lengths().to_numpy()], dtype=np.int64)
    return nested_array(array.flatten()), offsets
