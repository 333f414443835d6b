"""The files of one mirrored store, as the fetching process keeps them.

Shards of columns are sparse files (`mirrored_array`). The other arrays (offsets, checksums, the id
table) are small files, fetched whole.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from store.errors import CorruptError, FormatError, NotFoundError, StoreError
from store.format.contents import StoredArray, arrays_of
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.format.shard_table import table_bytes
from store.read.chunk_states import CHUNK_MARGIN, file_bytes, n_cells
from store.read.directory import StoreDirectory
from store.read.open_array import open_array
from store.remote.sparse_file import BLOCK, make_folder, opened, write_at

__all__ = [
    "FETCHES",
    "SOURCE_NAME",
    "MirroredStore",
    "Source",
    "is_state_of",
    "state_digest",
    "states_bytes",
    "states_path",
]

FETCHES = 3  # of what comes with wrong bytes
SOURCE_NAME = 16  # characters of a folder's name
SMALL_BYTES = 64 * 1024 * 1024


class Size(Protocol):
    """What is known of an object without its bytes."""

    @property
    def size(self) -> int: ...


class Source(Protocol):
    """Where the bytes are; `store.remote.objects.Objects` is one."""

    def get(self, key: str, max_bytes: int = ...) -> bytes: ...

    def get_range(self, key: str, start: int, end: int) -> memoryview: ...

    def get_ranges(
        self, key: str, starts: Sequence[int], ends: Sequence[int]
    ) -> Sequence[memoryview]: ...

    def list(self, prefix: str = "") -> "dict[str, Size]": ...


def state_digest(name: str, group: bytes) -> str:
    """The name of the mirror of one committed state: its source's name, and of its `zarr.json`."""
    return name + hashlib.blake2b(name.encode() + group, digest_size=16).hexdigest()


def is_state_of(folder: Path, other: Path, uuid: str) -> bool:
    """Whether a folder is the mirror of some state of the store that another is a mirror of."""
    if folder.name[:SOURCE_NAME] != other.name[:SOURCE_NAME]:
        return False
    try:
        return read_manifest(folder / "store").uuid == uuid
    except StoreError:  # what an earlier process began, or another version wrote
        return False


class MirroredStore:
    """A store at an address, and its directory in the cache.

    Parameters
    ----------
    url
        Its address.
    source
        Its objects.
    folder
        Of its mirror; made if it is not there.
    group
        The bytes of its `zarr.json`.

    Attributes
    ----------
    root
        Directory of the mirrored store, with the files that a local one has.
    manifest
        What is committed at the address.
    """

    def __init__(self, url: str, source: Source, folder: Path, group: bytes) -> None:
        self.url = url
        self.source = source
        self.folder = folder
        self.root = self.folder / "store"
        make_folder(self.root, self.folder.parent)
        self._write_whole(GROUP_FILE, group)
        try:
            self.manifest: Manifest = read_manifest(self.root)
        except FormatError as error:
            message = str(error).replace(str(self.root), url)
            raise type(error)(message) from error
        self.sizes = {key: head.size for key, head in source.list().items()}
        self.whole: set[str] = set()  # arrays whose files are here
        self.reserved_bytes = 0  # for files that stay while it is open
        self.arrays: dict[str, Any] = {}  # of `MirroredArray`
        self.lock = threading.RLock()
        self._known = {array.layout.path: array for array in arrays_of(self.manifest)}

    def stored(self, path: str) -> StoredArray:
        """An array of the store; raises NotFoundError."""
        if path not in self._known:
            raise NotFoundError(f"{self.url}: expected one of its arrays, found {path!r:.200}")
        return self._known[path]

    def column_paths(self) -> list[str]:
        """The paths of the columns' arrays."""
        return [path for path, array in self._known.items() if array.column is not None]

    def size_of(self, key: str) -> int:
        """Bytes of an object; raises CorruptError if there is none."""
        if key not in self.sizes:
            raise CorruptError(
                f"{self.url}/{key}: expected an object, found none; push the store again"
            )
        return self.sizes[key]

    def fixed_bytes(self) -> int:
        """What the mirror takes beside chunks, once everything has been read: bytes."""
        total = 2 * BLOCK
        for array in self._known.values():
            if array.column is None:
                keys = map(array.layout.shard_path, range(array.n_shards))
                total += sum(self.sizes.get(key, 0) + 4 * BLOCK for key in keys)
            else:
                tables = array.n_shards * (table_bytes(array.layout) + 3 * BLOCK)
                total += tables + states_bytes(array)
        return total

    def least_portion(self) -> int:
        """Bytes of the largest chunk in all its planes, which one read needs together."""
        layouts = [array.layout for array in self._known.values() if array.column is not None]
        chunks = (lay.n_planes * (lay.chunk_bytes + CHUNK_MARGIN) for lay in layouts)
        return max(chunks, default=BLOCK)

    def fetch_whole(
        self, path: str, reserve: Callable[[list[Path], int], None] = lambda files, n_bytes: None
    ) -> None:
        """Fetch the files of a small array, and compare them with their checksums.

        Each in one request: an append to the store replaces them, by longer ones that begin alike.

        Parameters
        ----------
        reserve
            Called with the files and the bytes that they take, before they are written.
        """
        array = self.stored(path)
        keys = [array.layout.shard_path(i) for i in range(array.n_shards)]
        for attempt in range(FETCHES):
            data = {key: self.source.get(key, self._most_bytes(key)) for key in keys}
            if attempt == 0:
                taken = sum(len(one) + 4 * BLOCK for one in data.values())
                reserve([self.root / key for key in keys], taken)
            for key, one in data.items():
                self._write_whole(key, one)
            try:
                self._check_whole(array)
                return
            except CorruptError:
                if attempt == FETCHES - 1:
                    raise

    def _write_whole(self, key: str, data: bytes) -> None:
        """Put a file in place, whole or not at all."""
        path = self.root / key
        make_folder(path.parent, self.root)
        part = path.with_name(f"{path.name}.{threading.get_ident()}.part")
        with opened(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            write_at(fd, memoryview(data), 0)
        part.replace(path)

    def _most_bytes(self, key: str) -> int:
        """A cap on what a small file may have: it may have grown since the objects were listed."""
        return max(SMALL_BYTES, 2 * self.size_of(key))

    def _check_whole(self, array: StoredArray) -> None:
        """Raise CorruptError if a small array is not as the manifest says."""
        is_checked = array.layout.path.startswith("_offsets/")
        directory = StoreDirectory.at(self.root)
        reader = open_array(directory, array, check=self.manifest if is_checked else None)
        reader.open_shards(range(array.n_shards))
        if is_checked:
            for fault in reader.faults(0, array.layout.n_chunks(array.n_places)):
                raise fault


def states_bytes(array: StoredArray) -> int:
    """What the file of an array's states takes on the disk."""
    return file_bytes(n_cells(array)) + 2 * BLOCK


def states_path(folder: Path, array: StoredArray) -> Path:
    """The file of an array's states."""
    return folder / "states" / array.layout.path
