"""What an untrusted pickle may ask for by name: functions of this module, and no others.

They build plain containers, and NumPy arrays of numbers and text; tensors are arrays too. An array
takes exactly as many bytes as its shape needs, and a tensor lies inside its storage.
"""

import math
import re
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from store.errors import CorruptError, RefusedError
from store.importers.pickles.limits import check_keys, check_sizes

__all__ = ["BUILDERS", "Graph", "Storage", "StorageKind", "fill_array", "set_byte_order"]

_SIMPLE_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[US]\d{1,9})")
# kind of dtype: its unit, and the largest value of one
_LARGEST_UNIT = {"U": ("u4", sys.maxunicode), "b": ("u1", 1)}


class Storage(NamedTuple):
    """The numbers that tensors are views of, in one dimension."""

    numbers: np.ndarray


class StorageKind(NamedTuple):
    """A class of storages, of which only the dtype counts."""

    dtype: np.dtype


class Graph:
    """An object of torch_geometric of which nothing but the attributes is taken."""

    def __init__(self) -> None:
        self.attributes: dict = {}

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def set_state(self, state: dict) -> None:
        """Set the attributes to those of a `Data`, which has them in a storage, or of a storage."""
        found = state.get("_mapping", state.get("_store"))
        if type(found) is Graph:
            found = found.attributes
        if type(found) is not dict:
            raise CorruptError(f"expected the attributes of a graph, found {_short(found)}")
        self.attributes = found


def _set(items: object) -> set:
    if not isinstance(items, list):
        raise CorruptError(f"expected the items of a set in a list, found {_short(items)}")
    check_keys(items)
    return set(items)


def _bytes(data: object = b"", encoding: object = None) -> bytes:
    """Copy bytes or encode text; a number would be a length, another encoding an import."""
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    if not isinstance(data, str) or encoding not in ("latin1", "latin-1"):
        raise RefusedError(
            f"asks for bytes or a bytearray of {_short(data)}, encoding {_short(encoding)}; "
            "do not trust the file"
        )
    return data.encode("latin1")


def _dtype(code: object, *align_and_copy: object) -> np.dtype:
    """Return a new dtype: the pickle may set its byte order."""
    if not isinstance(code, str) or not _SIMPLE_DTYPE.fullmatch(code):
        raise RefusedError(f"asks for dtype {_short(code)}; only plain numbers and text are read")
    return np.dtype(code, copy=True)


def set_byte_order(dtype: np.dtype, state: object) -> None:
    """Set the state of a pickled dtype, of which nothing but the byte order is accepted."""
    match state:
        case (3, "<" | ">" | "|" | "=" as order, None, None, None, int(), int(), int()):
            state = (3, order, None, None, None, dtype.itemsize, dtype.alignment, 0)
            dtype.__setstate__(state)  # type: ignore[attr-defined]  # numpy's stubs lack it
        case _:
            raise RefusedError(
                "asks for a dtype with fields or metadata; only plain numbers and text are read"
            )


def _reconstruct(kind: object, *shape_and_code: object) -> np.ndarray:
    """Return an empty array, which gets its shape, dtype and contents from `fill_array`."""
    if kind is not np.ndarray:
        raise RefusedError("asks for an array of a class of its own; do not trust the file")
    return np.empty(0, np.int8)


def fill_array(array: np.ndarray, state: object) -> None:
    """Set the shape, dtype and contents of a pickled array, which shares the memory of bytes."""
    match state:
        case (1, tuple() as shape, np.dtype() as dtype, bool() | 0 | 1 as fortran, data):
            data = _as_bytes(data)
            dtype = _checked_dtype(shape, dtype, data)
            array.__setstate__((1, shape, dtype, bool(fortran), data))  # type: ignore[arg-type]
        case _:
            raise CorruptError(
                "expected the shape, dtype and bytes of an array, found something else"
            )


def _frombuffer(
    data: object, dtype: object, shape: object, order: Any, axes: Any = None
) -> np.ndarray:
    """Return an array that shares the memory of `data`, as protocol 5 asks for it."""
    if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple):
        raise CorruptError("expected the dtype and shape of an array, found something else")
    data = _as_bytes(data)
    dtype = _checked_dtype(shape, dtype, data)
    if order == "K":
        return np.ndarray(shape, dtype, data).transpose(axes)
    return np.ndarray(shape, dtype, data, order=order)


def _as_bytes(data: object) -> bytes | bytearray:
    if not isinstance(data, bytes | bytearray):
        raise CorruptError(f"expected the bytes of an array, found {type(data).__name__}")
    return data


def _checked_dtype(shape: tuple[Any, ...], dtype: np.dtype, data: bytes | bytearray) -> np.dtype:
    """Return the dtype, out of the pickle's reach, if the bytes fill the shape and are valid."""
    if not {int}.issuperset(map(type, shape)) or min(shape, default=0) < 0:
        raise CorruptError(f"expected the sizes of an array, found {_short(shape)}")
    check_sizes(shape)
    n_items = math.prod(shape)
    expected = n_items * dtype.itemsize
    is_endless = n_items > 0 and dtype.itemsize == 0
    if len(data) != expected or is_endless:
        raise CorruptError(
            f"expected {expected} bytes for an array of shape {_short(shape)} and dtype {dtype}, "
            f"found {len(data)}; copy the file again"
        )
    # NumPy believes the bytes of text and truth values, and fails when they are shown
    if dtype.kind in _LARGEST_UNIT:
        unit, limit = _LARGEST_UNIT[dtype.kind]
        largest = np.frombuffer(data, dtype.byteorder + unit).max(initial=0)
        if largest > limit:
            raise CorruptError(
                f"expected items up to {limit} in an array of {dtype}, found {largest}; "
                "copy the file again"
            )
    return np.dtype(dtype.str)


def _rebuild_tensor(
    storage: object, offset: Any, size: Any, stride: Any, requires_grad: object, *more: object
) -> np.ndarray:
    """Return a view of a storage; NumPy checks that it lies inside."""
    if type(storage) is not Storage or any(more):  # hooks or metadata
        raise CorruptError("expected a plain tensor over a storage, found something else")
    check_sizes(size)
    numbers = storage.numbers
    n_bytes = numbers.itemsize
    strides = [step * n_bytes for step in stride]
    try:
        return np.ndarray(size, numbers.dtype, numbers, offset * n_bytes, strides)
    except ValueError as error:
        raise CorruptError(
            f"expected a tensor inside its storage of {len(numbers)} items, found shape "
            f"{_short(size)}; copy the file again"
        ) from error


def _rebuild_untyped(
    storage: object,
    offset: object,
    size: object,
    stride: object,
    grad: object,
    hooks: object,
    kind: object,
) -> np.ndarray:
    """Return a view of a storage of bytes, as torch saves unsigned integers of several bytes."""
    if type(storage) is not Storage or type(kind) is not StorageKind:
        raise CorruptError("expected a plain tensor over a storage, found something else")
    data = storage.numbers.view(np.uint8)
    numbers = data[: len(data) // kind.dtype.itemsize * kind.dtype.itemsize].view(kind.dtype)
    return _rebuild_tensor(Storage(numbers), offset, size, stride, grad, hooks)


def _short(value: object) -> str:
    """Show a value of the pickle in a message; of nested and long ones only the type."""
    items = value if isinstance(value, tuple) else [value]
    is_short = len(items) < 9 and all(
        isinstance(item, int | str | None) and sys.getsizeof(item) < 100 for item in items
    )
    return ascii(value) if is_short else type(value).__name__


# Python functions and no classes: the unpickler calls nothing else
BUILDERS: dict[str, Any] = {
    "_codecs.encode": _bytes,
    "builtins.bytearray": lambda *data: bytearray(_bytes(*data)),
    "builtins.bytes": _bytes,
    "builtins.complex": lambda real, imaginary: complex(real, imaginary),
    "builtins.frozenset": lambda items: frozenset(_set(items)),
    "builtins.set": _set,
    "collections.OrderedDict": lambda: OrderedDict(),
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": lambda dtype, data=b"": _frombuffer(data, dtype, (), "C")[()],
    "numpy._core.numeric._frombuffer": _frombuffer,
    "numpy.dtype": _dtype,
    "numpy.ndarray": np.ndarray,  # an argument of `_reconstruct`
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_untyped,
}
