"""Reading of safetensors files without trusting them, and without their library.

The format (https://github.com/huggingface/safetensors#format): 8 bytes with the length N of the
header, little-endian; N bytes of JSON, name -> dtype, shape and the range of its bytes; the data.
Everything that the header says is checked before anything is read: the ranges lie one behind the
other and fill the data, and each has the bytes of its dtype and shape. Arrays are mapped, so memory
is touched when values are read.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from store.errors import CorruptError, SchemaError
from store.importers.arrays.contents import ArrayFile, Key
from store.text_records import parse_json

__all__ = ["DTYPES", "SafetensorsFile", "Tensor", "read_header"]

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
MAX_TENSORS = 100_000
MAX_AXES = 32
LENGTH_BYTES = 8
METADATA = "__metadata__"
DTYPES = {  # name in the header -> NumPy's, or that of ml_dtypes
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


class Tensor(NamedTuple):
    """One tensor of a file: a value of `DTYPES`, its shape, and its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * _storage(self.dtype).itemsize


class SafetensorsFile(ArrayFile):
    """The tensors of one file.

    Raises
    ------
    CorruptError
        It is cut, or its header contradicts itself or the file's size.
    SchemaError
        A tensor has a dtype that no column has.
    """

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self._tensors = read_header(path)
        keys = {name: Key(item.dtype, item.shape) for name, item in self._tensors.items()}
        super().__init__(path, keys)

    def read(self, key: str) -> Any:
        """Return a mapped array, read-only."""
        dtype, shape, start = self._tensors[key]
        if not math.prod(shape):
            return np.empty(shape, _storage(dtype))
        return np.memmap(self.path, _storage(dtype), "r", start, shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """Return name -> tensor, in the order of the header; raises as `SafetensorsFile` does."""
    size = path.stat().st_size
    with path.open("rb") as file:
        n_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        room = min(size - LENGTH_BYTES, MAX_HEADER_BYTES)
        if size < LENGTH_BYTES or n_bytes > room:
            raise CorruptError(
                f"expected a header of at most {max(0, room)} bytes, found {n_bytes} declared in a "
                f"file of {size}; copy the file again"
            )
        text = file.read(n_bytes)
    first = LENGTH_BYTES + n_bytes
    tensors = {name: _tensor(name, entry, first) for name, entry in _entries(text).items()}
    _check_ranges(tensors, first, size)
    return tensors


def _entries(text: bytes) -> dict[str, Any]:
    """Return name -> entry of a header, without the metadata."""
    try:
        header = parse_json(text.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"expected a header in JSON, found {error}") from error
    if not isinstance(header, dict):
        raise CorruptError(f"expected a header with names, found {type(header).__name__}")
    header.pop(METADATA, None)
    if len(header) > MAX_TENSORS:
        raise CorruptError(f"expected at most {MAX_TENSORS} tensors, found {len(header)}")
    return header


def _tensor(name: str, entry: Any, first: int) -> Tensor:
    """Return what an entry of the header says, with the offset in the file."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptError(
            f"{name!r:.80}: expected dtype, shape, data_offsets, found {entry!r:.80}"
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SchemaError(f"{name!r:.80}: expected one of {', '.join(DTYPES)}, found {dtype!r:.40}")
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not _are_counts(shape) or len(shape) > MAX_AXES:
        raise CorruptError(f"{name!r:.80}: expected a shape, found {shape!r:.80}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CorruptError(f"{name!r:.80}: expected two offsets, found {offsets!r:.80}")
    start, stop = offsets
    tensor = Tensor(DTYPES[dtype], tuple(shape), first + start)
    if tensor.n_bytes != stop - start:
        raise CorruptError(
            f"{name!r:.80}: expected {tensor.n_bytes} bytes for {dtype} {shape!r:.80}, "
            f"found offsets {start} to {stop}"
        )
    return tensor


def _are_counts(values: object) -> bool:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value < 2**62 for value in values)


def _check_ranges(tensors: dict[str, Tensor], first: int, size: int) -> None:
    """The tensors follow one another without gaps, and end with the file."""
    end = first
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].n_bytes)):
        if tensor.start != end:
            raise CorruptError(
                f"{name!r:.80}: expected its bytes from {end - first} on, found "
                f"{tensor.start - first}: tensors overlap, or there is a gap"
            )
        end += tensor.n_bytes
    if end != size:
        raise CorruptError(f"expected a file of {end} bytes, found {size}; copy the file again")


def _storage(dtype: str) -> np.dtype:
    return np.dtype(bfloat16) if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
