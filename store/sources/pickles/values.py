"""What an untrusted pickle may build: a fixed table of names, each with a function of this module
behind it.

Nothing is looked up by a name from the pickle. On the unpickler's stack lie only plain containers
and scalars, and `Held` objects in place of everything that has state: they take no attribute, no
state but an array's, and no place in a set or as a key. `settle` puts the arrays and tensors in
their places when the pickle has ended, and lets nothing else through. Arrays are built by NumPy
from a dtype of `_SIMPLE_DTYPE` and exactly as many bytes as their shape needs.
"""

import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from store.errors import CorruptError, RefusedError
from store.sources.pickles.stream import too_much

__all__ = ["Builders", "Held", "HeldCall", "check_extent", "refused_name", "settle"]

# protocol 2 makes a bytearray by two calls; a pickle that copies more multiplies itself
COPIES_PER_BYTE = 4

_SIMPLE_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[US]\d{1,9})")
# by the kind of dtype: its units and their largest
_LARGEST_ITEM = {"U": ("u4", sys.maxunicode), "b": ("u1", 1)}
_ATOMS = {type(None), bool, int, float, complex, str, bytes, bytearray, set, frozenset}
_ATOMS |= {np.dtype(c).type for c in "?bhilqBHILQefdgFDGSU"}


class Held:
    """A value that the pickle may pass on, but neither look into nor change."""

    __slots__ = ("value",)
    __hash__ = None  # neither a key nor a member of a set: `settle` need not look there

    def __init__(self, value: Any = None):
        self.value = value

    def __setstate__(self, state: object) -> None:
        raise RefusedError(f"asks to set the state of {self.describe()}; do not trust the file")

    def describe(self) -> str:
        """Name the value in a message."""
        return f"a {type(self.value).__name__}"

    def settled(self) -> Any:
        """Give what stands in the result."""
        return self.value


class HeldCall(Held):
    """A name of the table, to be called by the pickle."""

    __slots__ = ("name",)

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name, self.value = name, function

    def __call__(self, *args: object) -> Any:
        return self.value(*args)

    def describe(self) -> str:
        return self.name

    def settled(self) -> Any:
        raise RefusedError(f"holds {self.name} itself as a value; do not trust the file")


class HeldStorage(Held):
    """The bytes of tensors."""

    __slots__ = ()

    def settled(self) -> Any:
        raise RefusedError("holds a storage without a tensor, which no trace needs")


class HeldDtype(Held):
    """A dtype; its state is the byte order only."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        match state:
            case (3, "<" | ">" | "|" | "=" as order, None, None, None, int(), int(), int()):
                self.value = self.value if order == "|" else self.value.newbyteorder(order)
            case _:
                raise RefusedError(
                    "asks for a dtype with fields or metadata; only plain numbers and text are read"
                )


class HeldArray(Held):
    """An array that is made empty and told its contents later."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        match state:
            case (
                1,
                tuple() as shape,
                HeldDtype(value=dtype),
                bool() | 0 | 1 as fortran,
                bytes() | str() as data,
            ):
                # as Python 2 wrote it
                data = data.encode("latin1") if isinstance(data, str) else data
                check_array(shape, dtype, data)
                self.value = np.empty(0, dtype)
                # shares the memory of `data`
                self.value.__setstate__((1, shape, dtype, bool(fortran), data))
            case (_, _, HeldDtype(), _, list()):
                raise RefusedError(
                    "asks for an array of Python objects; only numbers and text are read"
                )
            case _:
                raise CorruptError(
                    "expected the shape, dtype and bytes of an array, found something else"
                )

    def settled(self) -> np.ndarray:
        if self.value is None:
            raise CorruptError("expected the contents of an array, found none")
        return self.value


class Builders:
    """The names that a pickle may ask for, with what stands behind each.

    Parameters
    ----------
    bytes_read : callable
        Gives the number of bytes of the pickle read so far; the calls may not copy many times that.
    max_bytes : int
        Most bytes of all tensors.
    load_storage : callable
        Turns the bytes of a pickled storage of torch into the storage.
    """

    def __init__(
        self, bytes_read: Callable[[], int], max_bytes: int, load_storage: Callable[[bytes], Any]
    ):
        self._bytes_read = bytes_read
        self._max_bytes = max_bytes
        self._load_storage = load_storage
        self._tensor_bytes = 0
        self._copied = 0

    def table(self) -> dict[tuple[str, str], HeldCall]:
        """Give `{(module, name): what the pickle gets}`, with the spellings of Python 2 and NumPy
        1."""
        functions: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): self._copying(OrderedDict),
            ("_codecs", "encode"): self._encode,
            ("numpy", "ndarray"): _not_called,
            ("numpy", "dtype"): _dtype,
            ("torch.storage", "_load_from_bytes"): self._storage,
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
        }
        for module in ("builtins", "__builtin__"):
            for kind in (set, frozenset, complex):
                functions[module, kind.__name__] = self._copying(kind)
            for kind in (bytes, bytearray):
                functions[module, kind.__name__] = self._bytes(kind)
        for core in ("numpy.core", "numpy._core"):
            functions[f"{core}.multiarray", "_reconstruct"] = _reconstruct
            functions[f"{core}.multiarray", "scalar"] = _scalar
            functions[f"{core}.numeric", "_frombuffer"] = _frombuffer
        return {key: HeldCall(".".join(key), function) for key, function in functions.items()}

    def _copying(self, kind: type) -> Callable[..., Any]:
        """Let `kind` be called with what the pickle holds already: a copy, paid for."""

        def build(*args: object) -> Any:
            for value in args:
                self._pay(value)
            return kind(*args)

        return build

    def _bytes(self, kind: type) -> Callable[..., Any]:
        """Let bytes be made of bytes or of Latin-1 text; a number would be a length, another
        encoding an import."""

        def build(data: object = b"", encoding: object = "latin-1") -> Any:
            if not isinstance(data, bytes | bytearray | str) or encoding not in (
                "latin1",
                "latin-1",
            ):
                raise RefusedError(
                    f"asks for {kind.__name__} of {_short(data)}; do not trust the file"
                )
            self._pay(data)
            return kind(data.encode("latin1") if isinstance(data, str) else data)

        return build

    def _encode(self, text: object, encoding: object = None) -> bytes:
        """Protocols 0 to 2 have no bytes: they are text of the code points 0 to 255."""
        if not isinstance(text, str) or encoding != "latin1":
            raise RefusedError(
                f"asks for _codecs.encode to {_short(encoding)}; only 'latin1' is read"
            )
        self._pay(text)
        return text.encode("latin1")

    def _pay(self, value: object) -> None:
        """Count the copy of `value`: one pickled string, copied again and again, would fill the
        memory."""
        self._copied += len(value) if hasattr(value, "__len__") else 1
        allowed = COPIES_PER_BYTE * self._bytes_read()
        if self._copied > allowed:
            raise RefusedError(
                f"asks to copy {self._copied} items, where {allowed} are allowed; do not trust the file"
            )

    def _storage(self, data: object) -> Held:
        if not isinstance(data, bytes):
            raise CorruptError(f"expected the bytes of a tensor, found {type(data).__name__}")
        self._pay(data)
        return HeldStorage(self._load_storage(data))

    def _tensor(
        self, storage: object, offset: object, size: object, stride: object, *rest: object
    ) -> Held:
        """Give the tensor over a storage; gradients, hooks and metadata are left behind."""
        from torch._utils import _rebuild_tensor_v2

        if type(storage) is not HeldStorage or any(rest[1:]):  # hooks or metadata
            raise CorruptError("expected a plain tensor over a storage, found something else")
        n_bytes, itemsize = storage.value._untyped_storage.nbytes(), storage.value.dtype.itemsize
        self._tensor_bytes += check_extent(
            n_bytes // itemsize, itemsize, offset, size, stride, self._max_bytes
        )
        # of views of few bytes, which a copy would make many
        if self._tensor_bytes > self._max_bytes:
            raise too_much(f"tensors of {self._tensor_bytes} bytes", self._max_bytes)
        return Held(_rebuild_tensor_v2(storage.value, offset, size, stride, False, OrderedDict()))


def refused_name(module: str, name: str) -> RefusedError:
    """Tell which name outside the table the pickle asked for."""
    asked = ascii(f"{module[:80]}.{name[:80]}")[1:-1]
    return RefusedError(f"asks for {asked}, which no trace needs; do not trust the file")


def check_array(shape: tuple[object, ...], dtype: np.dtype, data: bytes | bytearray) -> None:
    """The bytes of an array fill its shape, no more and no less, and its text is text."""
    if not all(type(n) is int and n >= 0 for n in shape):
        raise CorruptError(f"expected the sizes of an array, found {_short(shape)}")
    expected = math.prod(shape) * dtype.itemsize
    if expected != len(data) or (math.prod(shape) and not dtype.itemsize):
        found = f"found {len(data)}; copy the file again"
        raise CorruptError(
            f"expected {expected} bytes for an array of shape {_short(shape)} and dtype {dtype}, {found}"
        )
    _check_items(dtype, data)


def _check_items(dtype: np.dtype, data: bytes | bytearray) -> None:
    """NumPy believes the bytes of text and of truth values, and fails when they are shown."""
    if dtype.kind in _LARGEST_ITEM:
        unit, largest = _LARGEST_ITEM[dtype.kind]
        found = np.frombuffer(data, np.dtype(unit).newbyteorder(dtype.byteorder)).max(initial=0)
        if found > largest:
            raise CorruptError(
                f"expected items up to {largest} in an array of {dtype}, found {found}; copy the file again"
            )


def check_extent(
    n: int, itemsize: int, offset: object, size: object, stride: object, max_bytes: int
) -> int:
    """The bytes that a tensor inside its storage of `n` items takes as an array of its own, at most
    `max_bytes`."""
    if not (isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)):
        raise CorruptError(
            f"expected the sizes and strides of a tensor, found {_short(size)} and {_short(stride)}"
        )
    if not all(type(i) is int and i >= 0 for i in (offset, *size, *stride)):
        raise CorruptError(
            f"expected the sizes and strides of a tensor, found {_short(size)} and {_short(stride)}"
        )
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if math.prod(size) and last >= n:
        raise CorruptError(
            f"expected a tensor inside its {n} items, found item {last} in shape {_short(size)}"
        )
    if math.prod(size) * itemsize > max_bytes:
        raise RefusedError(
            f"expected tensors of at most {max_bytes} bytes, found one of shape {_short(size)}"
        )
    return math.prod(size) * itemsize


def _short(value: object) -> str:
    """Show a value of the pickle in a message; a nested one could be endless, so only its type is
    shown."""
    if type(value) is tuple and len(value) < 9 and tuple not in map(type, value):
        return f"({', '.join(map(_short, value))})"
    if type(value) in (int, str, bool, type(None)) and sys.getsizeof(value) < 100:
        return ascii(value)
    return type(value).__name__


def _not_called(*args: object) -> None:
    raise RefusedError("asks to call numpy.ndarray; do not trust the file")


def _reconstruct(kind: object, shape: object, code: object) -> HeldArray:
    """Stand for `numpy._core.multiarray._reconstruct(ndarray, (0,), b'b')`: an array without
    contents."""
    if not (
        isinstance(kind, HeldCall)
        and kind.name == "numpy.ndarray"
        and shape == (0,)
        and code in (b"b", "b")
    ):
        raise RefusedError(
            f"asks for an array of another kind or of shape {_short(shape)}; do not trust the file"
        )
    return HeldArray()


def _dtype(code: object, align: object = False, copy: object = True) -> HeldDtype:
    if not isinstance(code, str) or not _SIMPLE_DTYPE.fullmatch(code):
        raise RefusedError(f"asks for dtype {_short(code)}; only plain numbers and text are read")
    return HeldDtype(np.dtype(code))


def _scalar(dtype: object, data: object = b"") -> np.generic:
    if not isinstance(dtype, HeldDtype) or not isinstance(data, bytes | str):
        raise CorruptError("expected the dtype and bytes of a scalar, found something else")
    data = data.encode("latin1") if isinstance(data, str) else data
    if len(data) != dtype.value.itemsize:
        raise CorruptError(
            f"expected {dtype.value.itemsize} bytes for a {dtype.value}, found {len(data)}"
        )
    _check_items(dtype.value, data)
    return np.frombuffer(data, dtype.value)[0] if data else dtype.value.type()


def _frombuffer(
    data: object, dtype: object, shape: object, order: object, axes: object = None
) -> Held:
    """Stand for `numpy._core.numeric._frombuffer`, which protocol 5 calls: the array shares the
    memory of `data`."""
    if not (
        isinstance(data, bytes | bytearray)
        and isinstance(dtype, HeldDtype)
        and isinstance(shape, tuple)
    ):
        raise CorruptError("expected the bytes, dtype and shape of an array, found something else")
    check_array(shape, dtype.value, data)
    if order == "K" and axes is not None:
        return Held(np.ndarray(shape, dtype.value, data).transpose(axes))
    return Held(np.ndarray(shape, dtype.value, data, order="F" if order == "F" else "C"))


def settle(root: object) -> Any:
    """Put what is held into its place, whatever containers it lies in; refuse all that is not data.

    Lists and dicts are changed in place and tuples built anew where needed, so shared and cyclic
    references stay as they were. Nothing here recurses: a pickle may be nested as deep as it likes.
    """
    return _Settling().run(root)


class _Settling:
    def __init__(self) -> None:
        # id of the tuple: itself, kept alive, and what becomes of it
        self._tuples: dict[int, tuple[tuple, tuple]] = {}
        self._seen: set[int] = set()
        self._containers: list[Any] = []

    def run(self, root: object) -> Any:
        top = [root]
        self._containers.append(top)
        while self._containers:
            container = self._containers.pop()
            if type(container) is list:
                if not set(map(type, container)) <= _ATOMS:
                    container[:] = map(self._value, container)
            else:
                for key, value in list(container.items()):
                    container[key] = self._value(value)
        return top[0]

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is tuple:
            return self._tuple(value)
        if isinstance(value, Held):
            return value.settled()
        if kind not in (list, dict, OrderedDict) or (kind is OrderedDict and vars(value)):
            raise RefusedError(
                f"holds a {kind.__name__} that is more than data; do not trust the file"
            )
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._containers.append(value)
        return value

    def _tuple(self, root: tuple) -> tuple:
        waiting = [root]
        while waiting:
            value = waiting[-1]
            inner = [part for part in value if type(part) is tuple and id(part) not in self._tuples]
            if inner and id(value) not in self._tuples:
                waiting.extend(inner)
                continue
            waiting.pop()
            if id(value) not in self._tuples:
                self._tuples[id(value)] = (value, self._rebuilt(value))
        return self._tuples[id(root)][1]

    def _rebuilt(self, value: tuple) -> tuple:
        parts = [
            self._tuples[id(part)][1] if type(part) is tuple else self._value(part)
            for part in value
        ]
        return value if all(a is b for a, b in zip(value, parts, strict=True)) else tuple(parts)
