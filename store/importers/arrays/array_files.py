"""Files of whole arrays: NumPy's .npy and .npz, safetensors and HDF5.

What a file says of itself is checked before an array is read: each has the bytes of its dtype and
shape, and no more than may be unpacked. Pickles in them (NumPy's arrays of Python objects) and data
that lie in other files (HDF5's links and virtual datasets) are refused. Arrays that lie in a file
as they are, in .npy and safetensors, are mapped: memory is touched when values are read.
"""

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from store.errors import CorruptError, RefusedError, SchemaError
from store.extras import needs_extra
from store.importers.arrays.contents import (
    LIST,
    TEXT,
    Arrays,
    Key,
    Shape,
    UnreadArray,
    check_bytes,
)
from store.importers.damage import damage
from store.text_records import parse_json

__all__ = [
    "NPY",
    "check_inside",
    "open_file",
    "open_hdf5",
    "open_npy",
    "open_npz",
    "open_safetensors",
]

NPY = ".npy"
MAX_MEMBERS = 10_000  # of a .npz file
MAX_NPY_HEADER = 10_000  # bytes, NumPy's own limit: what it parses as a literal

MAX_HEADER_BYTES = 100_000_000  # of safetensors; the limit of the format's own library
MAX_TENSORS = 100_000
MAX_AXES = 32
LENGTH_BYTES = 8
METADATA = "__metadata__"
DTYPES = {  # name in the header of safetensors -> what NumPy makes a dtype of
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

BLOCK = 256  # HDF5's values of variable length at once


class _Layout(NamedTuple):
    """How an array lies in a file."""

    dtype: np.dtype
    shape: Shape
    start: int  # of its bytes
    order: Any = "C"

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def key(self) -> Key:
        return Key(TEXT if self.dtype.kind in "US" else self.dtype.name, self.shape)


def _map(path: Path, layout: _Layout) -> np.ndarray:
    """Return a mapped array, read-only; without items there is nothing to map."""
    dtype, shape, start, order = layout
    if not math.prod(shape):
        return np.empty(shape, dtype)
    with damage():
        return np.memmap(path, dtype, "r", start, shape, order)


def open_npz(path: Path, max_bytes: int) -> Arrays:
    """Open the arrays of one .npz file, none of which may unpack to more than `max_bytes`."""
    with damage(), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise SchemaError(f"expected at most {MAX_MEMBERS} arrays, found {len(members)}")
        arrays = {}
        for member in members:
            name = member.filename.removesuffix(NPY)
            with archive.open(member) as file:
                layout = _npy_layout(file, member.file_size, max_bytes, name)
            arrays[name] = UnreadArray(layout.key, partial(_read_member, path, name))
    return Arrays(path, "npz", arrays)


def _read_member(path: Path, key: str) -> np.ndarray:
    """Return an array, unpacked into memory."""
    with damage(), zipfile.ZipFile(path) as archive, archive.open(key + NPY) as file:
        array = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MAX_NPY_HEADER)
        if file.read(1):  # compares the checksum
            raise CorruptError(f"{key}: expected one array, found more bytes after it")
        return array


def open_npy(path: Path, files: Sequence[Path], max_bytes: int) -> Arrays:
    """Open .npy files of one folder, each an array with the file's name as its key."""
    arrays = {}
    for one in files:
        name = "the array" if one == path else one.name  # the caller names the path
        with damage(), one.open("rb") as file:
            layout = _npy_layout(file, one.stat().st_size, max_bytes, name)
        arrays[one.name.removesuffix(NPY)] = UnreadArray(layout.key, partial(_map, one, layout))
    return Arrays(path, "npy", arrays)


def _npy_layout(file: IO[bytes], n_bytes: int, max_bytes: int, name: str) -> _Layout:
    """Return what the header of an array says, if the file has the bytes for it."""
    # NumPy has no public function for every version of the header
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(file, max_header_size=MAX_NPY_HEADER)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(file, max_header_size=MAX_NPY_HEADER)
    else:
        raise SchemaError(f"{name}: expected version 1.0 or 2.0 of the format, found {version}")
    shape, is_fortran, dtype = header
    if dtype.hasobject:
        raise RefusedError(
            f"{name}: expected numbers or texts, found Python objects, which are a pickle; save "
            "one file for each trace, or arrays of equal lengths"
        )
    if any(type(size) is not int or size < 0 for size in shape):
        raise CorruptError(f"{name}: expected a shape, found {shape!r:.80}")
    layout = _Layout(dtype, tuple(shape), file.tell(), "F" if is_fortran else "C")
    check_bytes(layout.n_bytes, max_bytes, name)
    if layout.n_bytes != n_bytes - layout.start:
        raise CorruptError(
            f"{name}: expected {layout.n_bytes} bytes for {dtype.name} {shape}, "
            f"found {n_bytes - layout.start}; copy the file again"
        )
    return layout


def open_safetensors(path: Path) -> Arrays:
    """Open the tensors of one file, in the order of its header, without the format's library.

    The format (https://github.com/huggingface/safetensors#format): 8 bytes with the length N of the
    header, little-endian; N bytes of JSON, name -> dtype, shape and the range of its bytes; the
    data. The ranges have to lie one behind the other, and fill the data.

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
    entries = _tensor_entries(text)
    first = LENGTH_BYTES + n_bytes
    layouts = {name: _tensor_layout(name, entry, first) for name, entry in entries.items()}
    end = first  # of the tensors so far
    for name, one in sorted(layouts.items(), key=lambda item: (item[1].start, item[1].n_bytes)):
        if one.start != end:
            raise CorruptError(
                f"{name!r:.80}: expected its bytes from {end - first} on, found "
                f"{one.start - first}: tensors overlap, or there is a gap"
            )
        end += one.n_bytes
    if end != size:
        raise CorruptError(f"expected a file of {end} bytes, found {size}; copy the file again")
    arrays = {name: UnreadArray(one.key, partial(_map, path, one)) for name, one in layouts.items()}
    return Arrays(path, "safetensors", arrays)


def _tensor_entries(text: bytes) -> dict[str, Any]:
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


def _tensor_layout(name: str, entry: object, first: int) -> _Layout:
    """Return how a tensor lies in a file whose data begin at `first`; its entry agrees with it."""
    where = f"{name!r:.80}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptError(f"{where}: expected dtype, shape, data_offsets, found {entry!r:.80}")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise SchemaError(f"{where}: expected one of {', '.join(DTYPES)}, found {code!r:.40}")
    if not _are_counts(shape) or len(shape) > MAX_AXES:
        raise CorruptError(f"{where}: expected a shape, found {shape!r:.80}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CorruptError(f"{where}: expected two offsets, found {offsets!r:.80}")
    start, stop = offsets
    layout = _Layout(np.dtype(DTYPES[code]), tuple(shape), first + start)
    if layout.n_bytes != stop - start:
        raise CorruptError(
            f"{where}: expected {layout.n_bytes} bytes for {code} {shape!r:.80}, "
            f"found offsets {start} to {stop}"
        )
    return layout


def _are_counts(values: object) -> bool:
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value < 2**62 for value in values)


def open_hdf5(path: Path, max_bytes: int) -> Arrays:
    """Open the datasets of one file, none of which may unpack to more than `max_bytes`."""
    arrays = {}
    names: list[str] = []
    with open_file(path) as file:
        file.visit(names.append)  # follows no link that leads out of the file
        for name in names:
            dataset = file[name]
            if not hasattr(dataset, "dtype"):
                continue
            check_inside(dataset)
            check_bytes(dataset.nbytes, max_bytes, name)
            read = partial(_read_dataset, path, name, max_bytes)
            kind = _kind(dataset.dtype)
            arrays[name] = UnreadArray(Key(kind, tuple(dataset.shape or ())), read)
    return Arrays(path, "HDF5", arrays)


def check_inside(dataset: Any) -> None:
    """Raise RefusedError for a dataset whose data lie in other files."""
    if dataset.is_virtual or dataset.external:
        raise RefusedError(
            f"{dataset.name[1:]!r:.80}: expected data in this file, found it in others; copy it"
        )


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """A file of h5py; what is wrong with its bytes is a StoreError."""
    with needs_extra("arrays", "expected the extra arrays to read HDF5 files: "):
        import h5py
    with damage(), h5py.File(path, "r") as file:
        yield file


def _kind(dtype: np.dtype) -> str:
    import h5py

    inner = h5py.check_vlen_dtype(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        return TEXT
    return dtype.name if inner is None or inner.hasobject else LIST


def _read_dataset(path: Path, key: str, max_bytes: int) -> Any:
    """Return an array, unpacked into memory."""
    with open_file(path) as file:
        dataset = file[key]
        if not dataset.dtype.hasobject:
            return dataset[()]
        if _kind(dataset.dtype) not in (TEXT, LIST):
            raise SchemaError(
                f"{key!r:.80}: expected numbers, texts or lists of numbers, found "
                f"{dataset.dtype.name}; leave it out of the map"
            )
        # a value is whole in the file, and may be there once for many
        step = min(BLOCK, max(1, max_bytes // path.stat().st_size))
        return _unpack(dataset, step, max_bytes) if dataset.shape else dataset[()]


def _unpack(dataset: Any, step: int, max_bytes: int) -> np.ndarray:
    """Return values of variable length, read so many at once; raises SchemaError for too many."""
    values = np.empty(dataset.shape, object)
    *most, last = dataset.shape
    n_bytes = 0
    for *place, i in np.ndindex(*most, math.ceil(last / step)):
        block = (*place, slice(i * step, (i + 1) * step))
        values[block] = dataset[block]
        n_bytes += sum(getattr(value, "nbytes", len(value)) for value in values[block])
        check_bytes(n_bytes, max_bytes, dataset.name)
    return values
