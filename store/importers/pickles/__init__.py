"""Reading of untrusted pickles and torch files: they give data, or an error that says why not.

`read_content` runs one unpickler (`unpickler`) over bytes that are counted as they are read
(`limits`). Names are looked up in a fixed table of functions (`builders`), and storages of tensors
in the file itself (`torch_files`). Nothing is imported, called or built because the file names it.
A file that asks for more gives a `RefusedError`, a damaged one a `CorruptError`. No value is nested
deep or in itself, and no key takes long to hash: a small file takes neither much time nor much
memory, here or in what walks through its value.
"""

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

from store.errors import CorruptError
from store.importers.damage import DAMAGED_BYTES, damage
from store.importers.pickles.limits import CheckedReader, too_much
from store.importers.pickles.torch_files import ZIP_MAGIC, load_storage, read_legacy, read_zip
from store.importers.pickles.unpickler import Unpickler
from store.memory_limits import read_memory

__all__ = ["GZIP_MAGIC", "MAX_BYTES", "read_content"]

MAX_BYTES = 16 << 30  # a thousand long traces with full attention maps
DEFLATE_RATIO = 1032  # most bytes that one byte of gzip can hold (https://zlib.net/zlib_tech.html)

GZIP_MAGIC = b"\x1f\x8b"
# what the unpickler raises for damaged bytes
_DAMAGE = (pickle.UnpicklingError, SystemError, *DAMAGED_BYTES)


def read_content(path: Path, kind: str, max_bytes: int = MAX_BYTES) -> Any:
    """Read a file of containers, numbers, text, arrays, tensors and graphs only.

    Torch need not be there: a tensor comes as an array, without gradients; of bfloat16, that of
    ml_dtypes. The tensors of a zip file are mapped, private to the process and read when touched,
    so it may be larger than the memory; leave it in its place as long as they are used. The arrays
    of a pickle share the memory of the bytes they were read into, as with `pickle.load`.

    `kind` is "torch", or else a pickle of any protocol, plain or compressed by gzip. More than
    `max_bytes` of the pickle after decompression, or of the tensors of a torch file, are refused
    before they are read; of a pickle, also what the free memory does not hold.

    Returns dict, list, tuple, set, frozenset, OrderedDict, None, bool, int, float, complex, str,
    bytes, bytearray, `numpy.ndarray` and NumPy scalars of bool, integer, float, complex, text and
    bytes dtypes; of a torch file also a `Graph` for a `torch_geometric.data.Data`.

    Raises RefusedError: the file asks for a name, an opcode or an amount of memory that no trace
    needs; CorruptError: it is not one whole pickle or torch file; MemoryError: a pickle is larger
    than the memory that is free now. No message but the last names the file.
    """
    with path.open("rb") as file, damage("a whole pickle", _DAMAGE):
        size = path.stat().st_size
        if kind != "torch":
            return _read_pickle(file, size, max_bytes)
        if file.peek().startswith(ZIP_MAGIC):
            return read_zip(file, max_bytes)
        return read_legacy(file, size, max_bytes)


def _read_pickle(file: io.BufferedReader, n_stored: int, max_bytes: int) -> Any:
    available = read_memory().available
    is_compressed = file.peek().startswith(GZIP_MAGIC)
    if not is_compressed and available < n_stored <= max_bytes:
        raise MemoryError(f"{file.name}: it does not fit into the {available} bytes of free memory")
    return _load(file, n_stored, is_compressed, min(max_bytes, available))


def _load(file: io.BufferedReader, n_stored: int, is_compressed: bool, max_bytes: int) -> Any:
    content = file
    size = n_stored
    if is_compressed:
        content = io.BufferedReader(gzip.GzipFile(fileobj=file))
        size *= DEFLATE_RATIO
    elif size > max_bytes:
        raise too_much(f"{size} bytes", max_bytes)
    reader = CheckedReader(content, size, max_bytes, n_stored)
    names = {"torch.storage._load_from_bytes": load_storage}
    value = Unpickler(reader, names).load()
    if content.read(1):  # the checksum of a gzip file is compared here
        raise CorruptError("expected one pickle, found more bytes after its end; split the file")
    return value
