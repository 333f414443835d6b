"""The check of an untrusted torch file before torch opens it: what it asks for, and whether its
tensors are all there.

torch.load with `weights_only=True` runs nothing, but believes the sizes: a storage longer than its
record would be read from whatever lies behind it. The pickle of the file is therefore read here
first, with a table of names that build nothing; every storage is measured against its record and
every tensor against its storage.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

from store.errors import CorruptError, RefusedError
from store.sources.pickles.stream import CheckedReader, too_much
from store.sources.pickles.values import Held, HeldCall, check_extent, refused_name

__all__ = ["LEGACY_MAGIC", "ZIP_MAGIC", "check_legacy", "check_zip", "data_classes"]

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

_ITEM_BYTES = {
    "ByteStorage": 1,
    "CharStorage": 1,
    "BoolStorage": 1,
    "ShortStorage": 2,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "IntStorage": 4,
    "FloatStorage": 4,
    "LongStorage": 8,
    "DoubleStorage": 8,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}
_GRAPH_CLASSES = {  # of torch-geometric 2.0 to 2.8
    ("torch_geometric.data.data", "Data"),
    ("torch_geometric.data.data", "DataEdgeAttr"),
    ("torch_geometric.data.data", "DataTensorAttr"),
    ("torch_geometric.data.storage", "BaseStorage"),
    ("torch_geometric.data.storage", "NodeStorage"),
    ("torch_geometric.data.storage", "EdgeStorage"),
    ("torch_geometric.data.storage", "GlobalStorage"),
}

_Names = set[tuple[str, str]]
_RecordBytes = Callable[[str], int]


def check_zip(file: BinaryIO, max_bytes: int) -> _Names:
    """Check a file of torch's present form.

    Returns
    -------
    set of (str, str)
        Module and name of each graph class that it asks for.

    Raises
    ------
    RefusedError, CorruptError
        It asks for something else; a record is compressed, missing, doubled or shorter than what
        lies in it.
    """
    with zipfile.ZipFile(file) as archive:
        records = {entry.filename: entry for entry in archive.infolist()}
        prefix = next(iter(records), "").split("/")[0]
        _check_records(archive.infolist(), prefix, file.seek(0, io.SEEK_END), max_bytes)
        if f"{prefix}/constants.pkl" in records:
            raise RefusedError("holds a TorchScript program; do not trust the file")
        if f"{prefix}/data.pkl" not in records:
            raise CorruptError("expected a torch file, found a zip file without data.pkl")
        data = archive.read(f"{prefix}/data.pkl")

    def record_bytes(key: str) -> int:
        return records[f"{prefix}/data/{key}"].file_size

    checker = _Checker(_reader_over(data, max_bytes), record_bytes, max_bytes)
    checker.load()
    return checker.asked


def check_legacy(file: io.BufferedReader, max_bytes: int) -> _Names:
    """Check a file of the form before torch 1.6: five pickles, then the bytes of the storages; see
    `check_zip`."""
    size = file.seek(0, io.SEEK_END)
    if size > max_bytes:
        raise too_much(f"{size} bytes", max_bytes)
    file.seek(0)
    reader = CheckedReader(file, size, max_bytes, persistent=True)
    sizes: dict[str, int] = {}
    asked: _Names = set()
    for _ in range(5):  # magic number, version, machine, the object, the keys of its storages
        checker = _Checker(reader, lambda key: size, max_bytes, sizes)
        checker.load()
        asked |= checker.asked
        reader.begin_next()
    left = size - reader.position
    if sum(sizes.values()) > left:
        raise CorruptError(
            f"expected {sum(sizes.values())} bytes of tensors, found {left}; copy the file again"
        )
    file.seek(0)
    return asked


def data_classes(asked: _Names) -> list[Any]:
    """Import the graph classes among the names that `check_zip` or `check_legacy` gave; none, no
    import."""
    return [getattr(import_module(module), name) for module, name in sorted(asked & _GRAPH_CLASSES)]


def _check_records(entries: list[zipfile.ZipInfo], prefix: str, size: int, max_bytes: int) -> None:
    """Torch finds a record by its name in any case, and maps it: one of a kind, and as long on disk
    as announced."""
    names = {entry.filename.lower() for entry in entries}
    if len(names) != len(entries) or not all(
        entry.filename.startswith(f"{prefix}/") for entry in entries
    ):
        raise CorruptError("expected records of different names in one folder, found others")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise RefusedError(
                f"holds the compressed record {entry.filename!a}, which torch does not write"
            )
        if not 0 <= entry.header_offset <= size - entry.file_size:
            raise CorruptError(
                f"expected records inside the file, found {entry.filename!a} at {entry.header_offset}"
            )
    total = sum(entry.file_size for entry in entries)
    if total > max_bytes:
        raise too_much(f"{total} bytes", max_bytes)


def _reader_over(data: bytes, max_bytes: int) -> CheckedReader:
    return CheckedReader(io.BufferedReader(io.BytesIO(data)), len(data), max_bytes, persistent=True)


class _Inert:
    """Stands for an object that torch will build."""

    __slots__ = ()
    __hash__ = None

    def __new__(cls, *args: object) -> "_Inert":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Forget the state."""


class _Storage:
    """Stands for a storage, with its number of items and their size."""

    __slots__ = ("itemsize", "n")
    __hash__ = None

    def __init__(self, n: int, itemsize: int):
        self.n, self.itemsize = n, itemsize

    def __setstate__(self, state: object) -> None:
        raise RefusedError("asks to set the state of a storage; do not trust the file")


class _Checker(pickle.Unpickler):
    """Reads a torch file's pickle without building anything of it.

    Parameters
    ----------
    reader
        The pickle.
    record_bytes : callable
        Gives the number of bytes of the record with a key; KeyError if there is none.
    max_bytes : int
        Most bytes of all tensors.
    sizes : dict, optional
        Filled with the bytes of each storage by its key.
    """

    def __init__(
        self,
        reader: CheckedReader,
        record_bytes: _RecordBytes,
        max_bytes: int,
        sizes: dict[str, int] | None = None,
    ):
        super().__init__(reader)
        self._reader = reader
        self._record_bytes = record_bytes
        self._max_bytes = max_bytes
        self._sizes = {} if sizes is None else sizes
        self._encoded = self._tensor_bytes = 0
        self.asked: _Names = set()

    def find_class(self, module: str, name: str) -> Any:
        """Give what stands for a name in the table; there are no others."""
        if (module, name) in _GRAPH_CLASSES:
            self.asked.add((module, name))
            return _Inert
        if module == "torch" and name in _ITEM_BYTES:
            return Held(_ITEM_BYTES[name])
        calls = {
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("_codecs", "encode"): self._encode,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) not in calls:
            raise refused_name(module, name)
        return HeldCall(f"{module}.{name}", calls[module, name])

    def persistent_load(self, pid: object) -> _Storage:
        """Measure a storage against its record."""
        match pid:
            case (
                "storage",
                Held(value=int() as itemsize),
                str() as key,
                str(),
                int() as n,
                *rest,
            ) if n >= 0:
                if rest not in ([], [None]):
                    raise CorruptError("expected storages of their own, found a view of another")
            case _:
                raise CorruptError("expected a storage, found another persistent id")
        n_bytes, found = n * itemsize, self._found_bytes(key)
        if n_bytes > found or self._sizes.setdefault(key, n_bytes) != n_bytes:
            raise CorruptError(
                f"expected {n_bytes} bytes of tensors, found {found} under {key[:40]!a}"
            )
        return _Storage(n, itemsize)

    def _found_bytes(self, key: str) -> int:
        try:
            return self._record_bytes(key)
        except KeyError:
            raise CorruptError(
                f"expected the bytes of a tensor under {key[:40]!a}, found no such record"
            ) from None

    def _tensor(
        self, storage: object, offset: object, size: object, stride: object, *rest: object
    ) -> _Inert:
        if type(storage) is not _Storage or any(rest[1:]):  # hooks or metadata
            raise CorruptError("expected a plain tensor over a storage, found something else")
        self._tensor_bytes += check_extent(
            storage.n, storage.itemsize, offset, size, stride, self._max_bytes
        )
        # of views of few bytes, which a copy would make many
        if self._tensor_bytes > self._max_bytes:
            raise too_much(f"tensors of {self._tensor_bytes} bytes", self._max_bytes)
        return _Inert()

    def _encode(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise RefusedError(
                "asks for another text encoding than 'latin1'; do not trust the file"
            )
        self._encoded += len(text)
        if self._encoded > self._reader.seen:
            raise RefusedError(
                f"asks to copy {self._encoded} characters of a smaller pickle; do not trust the file"
            )
        return text.encode("latin1")
