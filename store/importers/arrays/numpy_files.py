"""Reading of NumPy's files, .npy and .npz, without pickles.

The header of each array is read first, and its bytes are compared with the cap and with those that
the file has for it. Arrays of Python objects, which NumPy writes as pickles, are refused.
"""

import math
import zipfile
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from store.errors import CorruptError, RefusedError, SchemaError
from store.importers.arrays.contents import TEXT, Arrays, Key, StoredArray, check_bytes
from store.importers.damage import damage
from store.importers.files import NPY, Given

__all__ = ["open_npy", "open_npz"]

MAX_MEMBERS = 10_000
MAX_HEADER = 10_000  # NumPy's own limit: what it parses as a literal


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
                key = _key(file, member.file_size, max_bytes, name)
            arrays[name] = StoredArray(key, partial(_read_member, path, name))
    return Arrays(path, "npz", arrays)


def _read_member(path: Path, key: str) -> np.ndarray:
    """Return an array, unpacked into memory."""
    with damage(), zipfile.ZipFile(path) as archive, archive.open(key + NPY) as file:
        array = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER)
        if file.read(1):  # compares the checksum
            raise CorruptError(f"{key}: expected one array, found more bytes after it")
        return array


def open_npy(given: Given, max_bytes: int) -> Arrays:
    """Open .npy files of one folder, each an array with the file's name as its key."""
    arrays = {}
    for path in given.files:
        with damage(), path.open("rb") as file:
            key = _key(file, path.stat().st_size, max_bytes, path.name)
        read = partial(_read_npy, path, math.prod(key.shape))
        arrays[path.name.removesuffix(NPY)] = StoredArray(key, read)
    return Arrays(given.path, "npy", arrays)


def _read_npy(path: Path, n_items: int) -> np.ndarray:
    """Return a mapped array, read-only; one without items cannot be mapped."""
    with damage():
        if n_items:
            return np.lib.format.open_memmap(path, mode="r", max_header_size=MAX_HEADER)
        return np.load(path, allow_pickle=False, max_header_size=MAX_HEADER)


def _key(file: IO[bytes], n_bytes: int, max_bytes: int, name: str) -> Key:
    """Return what the header of an array says, if the file has the bytes for it."""
    # NumPy has no public function for every version of the header
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(file, max_header_size=MAX_HEADER)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(file, max_header_size=MAX_HEADER)
    else:
        raise SchemaError(f"{name}: expected version 1.0 or 2.0 of the format, found {version}")
    shape, _, dtype = header
    if dtype.hasobject:
        raise RefusedError(
            f"{name}: expected numbers or texts, found Python objects, which are a pickle; save "
            "one file for each trace, or arrays of equal lengths"
        )
    if any(type(size) is not int or size < 0 for size in shape):
        raise CorruptError(f"{name}: expected a shape, found {shape!r:.80}")
    expected = math.prod(shape) * dtype.itemsize
    check_bytes(expected, max_bytes, name)
    if expected != n_bytes - file.tell():
        raise CorruptError(
            f"{name}: expected {expected} bytes for {dtype.name} {shape}, "
            f"found {n_bytes - file.tell()}; copy the file again"
        )
    return Key(TEXT if dtype.kind in "US" else dtype.name, tuple(shape))
