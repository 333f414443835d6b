"""Torch files: a pickle whose persistent ids name storages, and the bytes of those beside it.

torch.load with `weights_only=True` runs nothing, but believes the sizes in the pickle: a storage
longer than its record would be read from the bytes that follow it. Here every storage is measured
against its bytes, and torch need not be installed.
"""

import io
import mmap
import struct
import zipfile
from typing import Any, BinaryIO

import numpy as np
from ml_dtypes import bfloat16

from store.errors import CorruptError, RefusedError
from store.importers.pickles.builders import Graph, Storage, StorageKind
from store.importers.pickles.limits import CheckedReader, too_much
from store.importers.pickles.unpickler import Unpickler

__all__ = ["LEGACY_MAGIC", "ZIP_MAGIC", "load_storage", "read_legacy", "read_zip"]

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the first of five pickles
_KINDS = {
    "Byte": "u1",
    "Char": "i1",
    "Bool": "?",
    "Short": "<i2",
    "Half": "<f2",
    "BFloat16": bfloat16,
    "Int": "<i4",
    "Float": "<f4",
    "Long": "<i8",
    "Double": "<f8",
    "ComplexFloat": "<c8",
    "ComplexDouble": "<c16",
}
_GRAPHS = (  # classes of torch-geometric 2.0 to 2.8
    "data.Data",
    "data.DataEdgeAttr",
    "data.DataTensorAttr",
    "storage.BaseStorage",
    "storage.NodeStorage",
    "storage.EdgeStorage",
    "storage.GlobalStorage",
)
_NAMES: dict[str, Any] = {
    f"torch.{name}Storage": StorageKind(np.dtype(dtype)) for name, dtype in _KINDS.items()
}
_NAMES |= {
    "torch.storage.UntypedStorage": StorageKind(np.dtype("u1")),
    **{f"torch.uint{8 * n}": StorageKind(np.dtype(f"<u{n}")) for n in (2, 4, 8)},
}
_NAMES |= {f"torch_geometric.data.{name}": Graph for name in _GRAPHS}


def read_zip(file: BinaryIO, max_bytes: int) -> Any:
    """Read a file of torch's present form, whose tensors are mapped."""
    with zipfile.ZipFile(file) as archive:
        records = _checked_records(archive.infolist(), max_bytes)
        if "data.pkl" not in records:
            raise CorruptError("expected a torch file, found a zip file without data.pkl")
        data = archive.read(records["data.pkl"])
        if "byteorder" in records and archive.read(records["byteorder"]) != b"little":
            raise RefusedError("holds tensors of another byte order; save it again")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def storage_of(key: str, dtype: np.dtype, n: int) -> np.ndarray:
        record = records.get(f"data/{key}")
        n_bytes = record.file_size if record else 0
        expected = n * dtype.itemsize
        if record is None or expected > n_bytes:
            raise CorruptError(
                f"expected {expected} bytes of tensors, found {n_bytes} under {key[:40]!a}"
            )
        return _mapped_storage(mapped, record, dtype, n)

    reader = CheckedReader(io.BytesIO(data), len(data), max_bytes)
    return Unpickler(reader, _NAMES, storage_of).load()


def _checked_records(records: list[zipfile.ZipInfo], max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the records by their names below the folder that torch puts all of them into.

    Records of the same name, compressed ones and too many bytes are errors.
    """
    n_bytes = sum(record.file_size for record in records)
    if n_bytes > max_bytes:
        raise too_much(f"{n_bytes} bytes", max_bytes)
    by_name: dict[str, zipfile.ZipInfo] = {}
    for record in records:
        shown = ascii(record.filename)
        name = record.filename.partition("/")[2].lower()
        if name in by_name:
            raise CorruptError(f"expected records of different names, found {shown} twice")
        if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
            raise RefusedError(f"holds the compressed record {shown}, which torch does not write")
        by_name[name] = record
    return by_name


def _mapped_storage(
    mapped: mmap.mmap, record: zipfile.ZipInfo, dtype: np.dtype, n: int
) -> np.ndarray:
    if not n:
        return np.empty(0, dtype)
    # the record's header, its name and an extra field come before its bytes
    name_bytes, extra_bytes = struct.unpack_from("<2H", mapped, record.header_offset + 26)
    start = record.header_offset + 30 + name_bytes + extra_bytes
    return np.frombuffer(mapped, dtype, n, start)


def read_legacy(file: io.BufferedIOBase, size: int, max_bytes: int, *more_data: type) -> Any:
    """Read a file of `size` bytes of the form before torch 1.6: five pickles, then the storages.

    `more_data` is as of `Unpickler`.
    """
    storages: dict[str, np.ndarray] = {}

    def storage_of(key: str, dtype: np.dtype, n: int) -> np.ndarray:
        n_bytes = n * dtype.itemsize
        if n_bytes > size:
            raise CorruptError(
                f"expected {n_bytes} bytes of tensors, found a file of {size}; copy the file again"
            )
        storage = storages.setdefault(key, np.empty(n, dtype))
        if storage.dtype != dtype or len(storage) != n:
            raise CorruptError(f"expected one storage under {key[:40]!a}, found two")
        return storage

    reader = CheckedReader(file, size, max_bytes)
    reader.check_size(size)
    if reader.read(len(LEGACY_MAGIC)) != LEGACY_MAGIC:
        raise CorruptError("expected a torch file of the older form, found something else")
    unpickler = Unpickler(reader, _NAMES, storage_of, more_data)
    unpickler.load()  # the version
    unpickler.load()  # what the machine is like
    value = unpickler.load()
    keys = unpickler.load()
    if type(keys) is not list or {*map(type, keys)} - {str} or sorted(keys) != sorted(storages):
        raise CorruptError("expected the keys of all storages, found others")
    for key in keys:
        _fill(storages[key], file)
    return value


def _fill(storage: np.ndarray, file: io.BufferedIOBase) -> None:
    n = int.from_bytes(file.read(8), "little")
    n_bytes = file.readinto(storage.view(np.uint8).data)
    if n != len(storage) or n_bytes != storage.nbytes:
        raise CorruptError(
            f"expected {storage.nbytes} bytes of tensors, found {n_bytes}; copy the file again"
        )


def load_storage(data: bytes) -> Storage:
    """Read the storage that torch pickled as a file of its own inside a pickle."""
    storage = read_legacy(io.BytesIO(data), len(data), len(data), Storage)
    if type(storage) is not Storage:
        raise CorruptError(f"expected a storage of torch, found {type(storage).__name__}")
    return storage
