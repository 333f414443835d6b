"""Reading pickles and torch files that nobody vouches for: data comes out, or one line that says
what they asked for.

`read_pickle` runs CPython's unpickler with a fixed table of names (`values`) over bytes that are
checked as they pass (`stream`); `read_torch` reads the file's pickle in the same way
(`torch_files`) before torch does, with `weights_only=True`. Neither imports a module, calls a
function or builds an object because the file names it. Every file that is refused gives a
`RefusedError`, every damaged one a `CorruptError`. A pickle can still stop or stall the process by
a dictionary key that is nested too deep to hash; where that matters, read unknown files in a
process of their own.
"""

import errno
import gzip
import io
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from store.errors import CorruptError, RefusedError, StoreError
from store.sources.pickles.stream import CheckedReader, too_much
from store.sources.pickles.torch_files import (
    LEGACY_MAGIC,
    ZIP_MAGIC,
    check_legacy,
    check_zip,
    data_classes,
)
from store.sources.pickles.values import Builders, HeldCall, refused_name, settle

__all__ = ["MAX_BYTES", "kind_of_file", "read_pickle", "read_torch"]

MAX_BYTES = 16 << 30  # a thousand long traces with full attention maps
BUFFER_BYTES = 1 << 14  # small: what lies in it of a large array is copied twice
DEFLATE_RATIO = 1032  # most bytes that one byte of gzip can hold (https://zlib.net/zlib_tech.html)

_GZIP_MAGIC = b"\x1f\x8b"
_FIRST_OPCODES = b"\x80(]})cINFLVSKMJGXUTB"  # \x80 from protocol 2 on, the others before
_DAMAGE = (  # all that the unpickler, gzip and torch raise over damaged bytes
    pickle.UnpicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def kind_of_file(path: str | Path) -> Literal["pickle", "gzip pickle", "torch"]:
    """Tell how a file is to be read, from its first bytes.

    Parameters
    ----------
    path
        Any file; its name does not count.

    Returns
    -------
    str
        "torch" for what `torch.save` writes (zip, and the older form), else "gzip pickle" or
        "pickle".

    Raises
    ------
    CorruptError
        It is none of them.
    """
    with Path(path).open("rb") as file:
        first = file.read(len(LEGACY_MAGIC))
    if first.startswith(_GZIP_MAGIC):
        return "gzip pickle"
    if first.startswith(ZIP_MAGIC) or first == LEGACY_MAGIC:
        return "torch"
    if first and first[0] in _FIRST_OPCODES:
        return "pickle"
    raise CorruptError(
        f"{path}: expected a pickle, a gzip file or a torch file, found bytes {first[:4]!r}"
    )


def read_pickle(path: str | Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a pickle of containers, numbers, text, NumPy arrays and torch tensors, and of nothing
    else.

    Parameters
    ----------
    path
        A pickle of any protocol, plain or compressed by gzip.
    max_bytes : int
        Most bytes of the pickle, counted after decompression; more are refused before they are
        read.

    Returns
    -------
    object
        dict, list, tuple, set, frozenset, OrderedDict, None, bool, int, float, complex, str, bytes,
        bytearray, `numpy.ndarray` and NumPy scalars of bool, integer, float, complex, text and
        bytes dtypes, `torch.Tensor` on the CPU without gradients. Arrays share the memory of the
        bytes they were read into, as with `pickle.load`.

    Raises
    ------
    RefusedError
        The file asks for a name, an opcode or an amount of memory that no trace needs.
    CorruptError
        The file is not one whole pickle.
    """
    path = Path(path)
    with path.open("rb", buffering=BUFFER_BYTES) as file, _one_line(path):
        compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if not compressed:
            if size > max_bytes:
                raise too_much(f"{size} bytes", max_bytes)
            return _load(file, size, max_bytes)
        with gzip.GzipFile(fileobj=file, mode="rb") as unzipped:
            return _load(io.BufferedReader(unzipped, BUFFER_BYTES), size * DEFLATE_RATIO, max_bytes)


def read_torch(path: str | Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read what `torch.save` wrote: containers, numbers, text, tensors and graphs
    (`torch_geometric.data.Data`).

    Parameters
    ----------
    path
        A torch file, zip or the older form.
    max_bytes : int
        Most bytes of its tensors.

    Returns
    -------
    object
        Containers as in `read_pickle`, tensors on the CPU. Those of a zip file are mapped, private
        to the process and read when touched, so a file may be larger than the memory; leave it in
        place as long as they are used.

    Raises
    ------
    RefusedError
        The file asks for a class, a function or an amount of memory that no trace needs.
    CorruptError
        The file is not a whole torch file.
    """
    path = Path(path)
    with path.open("rb") as file, _one_line(path):
        is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        file.seek(0)
        asked = check_zip(file, max_bytes) if is_zip else check_legacy(file, max_bytes)
        file.seek(0)
        return _torch_load(path if is_zip else file, is_zip, data_classes(asked))


def _torch_load(file: Path | BinaryIO, is_zip: bool, classes: list[Any]) -> Any:
    import torch

    if isinstance(file, Path):
        file = str(file)  # torch maps files by name
    classes = [
        kind for kind in classes if kind not in torch.serialization.get_safe_globals()
    ]  # leave those as they are
    with warnings.catch_warnings(), torch.serialization.safe_globals(classes):
        warnings.simplefilter("ignore")  # of old protocols and of storages without a tensor
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        except pickle.UnpicklingError as error:
            reason = (
                str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0][:200]
            )
            raise RefusedError(
                f"torch refuses to load it ({reason or 'no reason given'}); save it again"
            ) from error


class _Unpickler(pickle.Unpickler):
    """CPython's unpickler with a table in place of the import system."""

    def __init__(self, reader: CheckedReader, table: dict[tuple[str, str], HeldCall]):
        super().__init__(reader)
        self._table = table

    def find_class(self, module: str, name: str) -> HeldCall:
        """Look a name up in the table, and nowhere else."""
        try:
            return self._table[module, name]
        except KeyError:
            raise refused_name(module, name) from None


def _load(raw: io.BufferedReader, size: int, max_bytes: int) -> Any:
    reader = CheckedReader(raw, size, max_bytes)
    builders = Builders(lambda: reader.seen, max_bytes, lambda data: _load_storage(data, max_bytes))
    value = settle(_Unpickler(reader, builders.table()).load())
    if not reader.at_end():
        raise CorruptError("expected one pickle, found more bytes after its end; split the file")
    return value


def _load_storage(data: bytes, max_bytes: int) -> Any:
    """Give the storage that torch pickled as a file of its own inside the pickle."""
    import torch

    if not data.startswith(LEGACY_MAGIC):
        raise CorruptError("expected a pickled tensor in torch's older form, found something else")
    check_legacy(io.BufferedReader(io.BytesIO(data)), max_bytes)
    storage = _torch_load(io.BytesIO(data), False, [])
    if not isinstance(storage, torch.storage.TypedStorage):
        raise CorruptError(f"expected a storage of torch, found {type(storage).__name__}")
    return storage


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn whatever the reading raises into one line that begins with the file."""
    try:
        yield
    except StoreError as error:
        raise type(error)(f"{path}: {error}") from error
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            # the disk's trouble; a damaged file has a place before its beginning (EINVAL) or a
            # wrong checksum
            raise
        found = " ".join(str(error).split())[:200] or "nothing more"
        message = f"{path}: expected a whole pickle, found {type(error).__name__} ({found}); copy the file again"
        raise CorruptError(message) from error
