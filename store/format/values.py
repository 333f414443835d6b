"""Python values -> items as stored, and back; arrays of Arrow as arrays of NumPy. Pure.

What does not fit is a SchemaError: nothing is truncated or wrapped, and no array or tensor is ever
rounded. Only Python's own floats, whose precision was not chosen, are rounded to that of a floating
column.
"""

from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np

from store.errors import CorruptError, SchemaError
from store.format.schema import Column

__all__ = [
    "decode_texts",
    "encode_items",
    "encode_text",
    "encode_value",
    "is_arrow",
    "is_integer",
    "nested_array",
    "ragged_parts",
    "without_bfloat16",
]

TEXTS = {"list": "; json.dumps makes one of several", "bytes": "; decode it, or store uint8"}


def is_integer(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, Python's or NumPy's, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def encode_text(text: object, where: str) -> np.ndarray:
    """A string as UTF-8: uint8 `(n_bytes,)`."""
    if not isinstance(text, str):
        kind = type(text).__name__
        way = TEXTS.get(kind, "")
        raise SchemaError(f"{where}: expected a string, found {kind}{way}")
    try:
        return np.frombuffer(text.encode(), np.uint8)
    except UnicodeEncodeError as error:
        raise SchemaError(f"{where}: expected text that UTF-8 can hold, found {error}") from error


def decode_texts(values: np.ndarray, offsets: np.ndarray, where: str) -> list[str]:
    """The strings packed in `values` uint8, cut at `offsets` `(n + 1,)`; raises CorruptError."""
    data = values.tobytes()
    try:
        return [data[start:stop].decode() for start, stop in pairwise(offsets.tolist())]
    except UnicodeDecodeError as error:
        raise CorruptError(
            f"{where}: expected UTF-8, found {error}; restore it from a copy"
        ) from error


def encode_value(value: object, column: Column, where: str) -> np.ndarray:
    """One row's value as items `(n, *item_shape)` of the stored dtype, with n = 1 for a fixed
    column; they may share its memory.

    Raises SchemaError for a wrong shape, a number that does not fit, or a conversion that would
    lose precision.
    """
    if column.is_text:
        return encode_text(value, where)
    if column.axis:
        return encode_items(value, column, where)
    array = _as_array(value, column, where)
    if array.shape != column.item_shape:
        raise _wrong_shape(array, column.item_shape, where)
    return array[None]


def encode_items(values: object, column: Column, where: str) -> np.ndarray:
    """Numbers as items `(n, *item_shape)` of the stored dtype; as `encode_value`."""
    array = _as_array(values, column, where)
    if array.ndim == 0 or array.shape[1:] != column.item_shape:
        raise _wrong_shape(array, ("n", *column.item_shape), where)
    return array


def _wrong_shape(array: np.ndarray, shape: tuple[int | str, ...], where: str) -> SchemaError:
    sizes = ", ".join(map(str, shape))
    return SchemaError(f"{where}: expected shape ({sizes}), found {array.shape}")


def _as_array(value: object, column: Column, where: str) -> np.ndarray:
    if type(value) is np.ndarray and value.dtype == column.storage_dtype and not _is_bits(column):
        return value
    if type(value) is int and column.storage_dtype.kind in "iu" and not _is_bits(column):
        return _encode_int(value, column.storage_dtype, where)
    if isinstance(value, np.ma.MaskedArray):
        raise SchemaError(f"{where}: expected an array without a mask, found one; fill it first")
    try:
        value, is_bfloat16 = _from_torch(value)
    except TypeError as error:
        raise SchemaError(
            f"{where}: expected a tensor that NumPy can hold, found {error}; convert it first, or "
            "store the bits of float8: tensor.view(torch.uint8) as uint8"
        ) from error
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SchemaError(
            f"{where}: expected an array, found {type(value).__name__}: {error}"
        ) from error
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which JAX has
        array, is_bfloat16 = array.view(np.uint16), True
    if is_bfloat16 != (column.dtype == "bfloat16"):
        expected = column.dtype if is_bfloat16 else "bfloat16 of torch or ml_dtypes"
        found = "bfloat16" if is_bfloat16 else array.dtype
        raise SchemaError(f"{where}: expected {expected}, found {found}; convert it first")
    if array.dtype == column.storage_dtype:
        return array
    # an empty list has no dtype of its own
    if not array.size and not isinstance(value, np.ndarray):
        return array.astype(column.storage_dtype)
    return _convert(array, column.storage_dtype, where, _is_literal(value))


def _encode_int(value: int, dtype: np.dtype, where: str) -> np.ndarray:
    """As `_convert` does it, without its arrays: most rows have several such numbers."""
    try:
        return np.array(value, dtype)
    except OverflowError as error:
        limits = np.iinfo(dtype)
        raise SchemaError(
            f"{where}: expected integers from {limits.min} to {limits.max}, found {value}"
        ) from error


def _is_bits(column: Column) -> bool:
    """Whether arrays of the stored dtype are no numbers of the column, but their bits."""
    return column.dtype == "bfloat16"


def _convert(array: np.ndarray, dtype: np.dtype, where: str, is_literal: bool) -> np.ndarray:
    """Convert where that loses nothing; Python's own numbers may be rounded to a floating dtype."""
    kinds = array.dtype.kind + dtype.kind
    if kinds in ("ii", "iu", "ui", "uu"):
        _check_limits(array, dtype, where)
    elif is_literal and kinds in ("if", "uf", "ff"):
        return _round(array, dtype, where)
    elif not np.can_cast(array.dtype, dtype, "safe"):
        found = array.dtype.name
        raise SchemaError(f"{where}: expected {dtype.name}, found {found}; convert it first")
    converted = array.astype(dtype)
    if kinds in ("if", "uf"):  # NumPy calls int64 to float64 safe, and rounds
        _check_exact(array, converted, where)
    return converted


def _check_exact(integers: np.ndarray, floats: np.ndarray, where: str) -> None:
    """Raise SchemaError unless the floats, which are finite, are these integers."""
    largest = 2 ** (np.finfo(floats.dtype).nmant + 1)  # up to it all are
    is_large = (integers > largest) | (integers < -largest)
    pairs = zip(integers[is_large].tolist(), floats[is_large].tolist(), strict=True)
    lost = next((integer for integer, number in pairs if integer != int(number)), None)
    if lost is not None:
        raise SchemaError(
            f"{where}: expected integers that {floats.dtype.name} holds exactly, found {lost}; "
            "give floats, which are rounded, or choose another dtype"
        )


def _check_limits(integers: np.ndarray, dtype: np.dtype, where: str) -> None:
    limits = np.iinfo(dtype)
    if ((integers < limits.min) | (integers > limits.max)).any():
        expected = f"integers from {limits.min} to {limits.max}"
        found = f"{integers.min()} to {integers.max()}"
        raise SchemaError(f"{where}: expected {expected}, found {found}")


def _round(numbers: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """To a floating dtype; raises SchemaError where a finite number becomes infinite."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(dtype)
    if numbers.dtype.kind in "iu" and np.isfinite(rounded).all():
        _check_exact(numbers, rounded, where)
    if not np.array_equal(np.isfinite(rounded), np.isfinite(numbers)):
        largest = np.nanmax(np.abs(numbers))
        raise SchemaError(
            f"{where}: expected numbers that {dtype.name} can hold, found up to {largest}"
        )
    return rounded


def _is_literal(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_literal, value))
    return isinstance(value, int | float | range) and not isinstance(value, np.generic)


def _from_torch(value: object) -> tuple[object, bool]:
    """A torch tensor as an array, else the value; and whether it is the bits of a bfloat16."""
    if not hasattr(value, "detach"):
        return value, False
    import torch  # only a caller who passes tensors needs it, and has it

    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16), True
    return tensor.numpy(), False


def without_bfloat16(values: np.ndarray) -> np.ndarray:
    """Numbers of ml_dtypes' bfloat16 as float32, a copy; others as they are."""
    return values.astype(np.float32) if values.dtype.kind == "V" else values


def is_arrow(value: object) -> bool:
    """Whether it is an array of Arrow, in one chunk or in several."""
    return type(value).__module__.partition(".")[0] == "pyarrow"


def nested_array(array: Any) -> np.ndarray:
    """Lists of equal lengths, however deep, as one array; raises SchemaError for others."""
    are_lists = hasattr(array, "value_lengths")
    if array.null_count:
        kind = "lists" if are_lists else "numbers"
        raise SchemaError(f"expected {kind} without nulls, found some")
    if not are_lists:
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
