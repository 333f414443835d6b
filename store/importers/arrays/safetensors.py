"""Reading of safetensors files without trusting them, and without their library.

The format (https://github.com/huggingface/safetensors#format): 8 bytes with the length N of the
header, little-endian; N bytes of JSON, name -> dtype, shape and the range of its bytes; the data.
Everything that the header says is checked before anything is read: the ranges lie one behind the
other and fill the data, and each has the bytes of its dtype and shape. Arrays are mapped, so memory
is touched when values are read.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from store.errors import CorruptError, SchemaError
from store.importers.arrays.contents import Arrays, Key, Shape, StoredArray
from store.text_records import parse_json

__all__ = ["open_safetensors"]

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
MAX_TENSORS = 100_000
MAX_AXES = 32
LENGTH_BYTES = 8
METADATA = "__metadata__"
DTYPES = {  # name in the header -> what NumPy makes a dtype of
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": bfloat16,
    "F32": "<f4",
    "F64": "<f8",
}


def open_safetensors(path: Path) -> Arrays:
    """Open the tensors of one file, in the order of its header.

    Raises CorruptError for a file that is cut, or whose header contradicts itself or the file's
    size, SchemaError for a tensor of a dtype that no column has.
    """
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
    arrays: dict[str, StoredArray] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for name, entry in _entries(text).items():
        dtype, shape, (start, stop) = _checked(name, entry)
        ranges[name] = (start, stop)
        read = partial(_map, path, dtype, shape, first + start)
        arrays[name] = StoredArray(Key(dtype.name, shape), read)
    _check_ranges(ranges, size - first, first)
    return Arrays(path, "safetensors", arrays)


def _map(path: Path, dtype: np.dtype, shape: Shape, start: int) -> np.ndarray:
    """Return a mapped array, read-only; without items there is nothing to map."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape)


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


def _checked(name: str, entry: Any) -> tuple[np.dtype, Shape, tuple[int, int]]:
    """Return the dtype, the shape and the offsets of an entry, which agree with each other."""
    where = f"{name!r:.80}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptError(f"{where}: expected dtype, shape, data_offsets, found {entry!r:.80}")
    code = entry["dtype"]
    if not isinstance(code, str) or code not in DTYPES:
        raise SchemaError(f"{where}: expected one of {', '.join(DTYPES)}, found {code!r:.40}")
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not _are_counts(shape) or len(shape) > MAX_AXES:
        raise CorruptError(f"{where}: expected a shape, found {shape!r:.80}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CorruptError(f"{where}: expected two offsets, found {offsets!r:.80}")
    start, stop = offsets
    dtype = np.dtype(DTYPES[code])
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes != stop - start:
        raise CorruptError(
            f"{where}: expected {n_bytes} bytes for {code} {shape!r:.80}, "
            f"found offsets {start} to {stop}"
        )
    return dtype, tuple(shape), (start, stop)


def _are_counts(values: object) -> bool:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value < 2**62 for value in values)


def _check_ranges(ranges: dict[str, tuple[int, int]], n_bytes: int, first: int) -> None:
    """The tensors follow one another without gaps, and end with the file."""
    end = 0
    for name, (start, stop) in sorted(ranges.items(), key=lambda item: item[1]):
        if start != end:
            raise CorruptError(
                f"{name!r:.80}: expected its bytes from {end} on, found {start}: "
                "tensors overlap, or there is a gap"
            )
        end = stop
    if end != n_bytes:
        raise CorruptError(
            f"expected a file of {first + end} bytes, found {first + n_bytes}; copy the file again"
        )
