"""Where a store is: what opens its arrays. A directory here, or one that a cache fills from an
address."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from store.errors import NotFoundError
from store.format.contents import StoredArray
from store.format.manifest import Manifest, read_manifest
from store.read.arrays.array import Array
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.chunk_sums import ChunkSums
from store.read.arrays.compressed_array import CompressedArray
from store.read.arrays.file_array import OpenShard
from store.read.arrays.raw_array import RawArray
from store.read.directory import StoreDirectory, files_below, local_path

__all__ = ["MAX_ARRAY_MAPS", "MirrorLike", "StoreSource", "address_of", "open_array", "open_source"]

MAX_ARRAY_MAPS = 1024  # shards of one array that stay mapped, unless a reader says how many
ADDRESSES = (
    "store.remote.cache.reader.mirrored_source"  # the module whose `open_address` opens them
)
_ADDRESS = re.compile(r"(s3|gs|az|https?):/{1,2}(?=[^/])", re.IGNORECASE)


class MirrorLike(Protocol):
    """What brings the chunks of a store at an address: `Mirror` of `store.remote.cache.reader`.

    It may take `limit` bytes (None: it has chosen), and a read asks for `portion_bytes` at a time.
    """

    url: str
    limit: int | None
    portion_bytes: int

    def stats(self) -> dict[str, float]: ...

    def summary(self) -> str: ...


class StoreSource:
    """Where a store is, and what opens its arrays: here a directory, whose shards are its files.

    Subclasses are for a store at an address, and for several stores read as one. Files may be read
    without a look at their checksums if the source is trusted. The mirror of a store at an address
    brings its chunks; else None.
    """

    is_trusted = True
    mirror: MirrorLike | None = None

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory = directory

    @property
    def where(self) -> str:
        """What messages name: the path, or the address."""
        return str(self.directory.now())

    def open_array(
        self,
        array: StoredArray,
        cache: ChunkCache | None = None,
        max_maps: int = MAX_ARRAY_MAPS,
        check: Manifest | None = None,
    ) -> Array:
        """The reader of an array; no file is opened until items are read.

        `cache` is for decoded chunks, `max_maps` how many shards to keep mapped. With `check`, what
        is committed, every chunk is checked before it is used.
        """
        return self.open_files(array, cache, max_maps, self.sums(array, check))

    def sums(self, array: StoredArray, check: Manifest | None) -> ChunkSums | None:
        """What the chunks of an array are checked against."""
        if check is None:
            return None
        return ChunkSums(self.open_array(array.checksums).read, array, check)

    def open_files(
        self,
        array: StoredArray,
        cache: ChunkCache | None,
        max_maps: int,
        sums: ChunkSums | None,
        open_shard: OpenShard | None = None,
    ) -> RawArray | CompressedArray:
        """The reader of shards that are here; see `FileArray` for `open_shard`."""
        kind = RawArray if array.layout.codec is None else CompressedArray
        return kind(self.directory, array, max_maps, sums, cache, open_shard)

    def file_bytes(self, path: str = "") -> int:
        """What the files below a path in the store take on the disk; or its objects."""
        return sum(file.st_blocks * 512 for file in files_below(self.directory.now() / path))

    def committed(self) -> "tuple[StoreSource, Manifest]":
        """The source as it is now, and what is committed there."""
        place = self.directory.now()
        try:
            return open_directory(place)
        except NotFoundError:
            if self.directory.now() == place:
                raise
            return self.committed()  # a build was finished in between


def address_of(path: object) -> str | None:
    """The address that a path is meant as: s3://, gs://, az://, https://; None: it is a path.

    Also of a `Path` made of an address, which has lost a slash.
    """
    found = _ADDRESS.match(str(path)) if isinstance(path, str | Path) else None
    return None if found is None else f"{found[1].lower()}://{str(path)[found.end() :]}"


def open_source(
    path: str | Path, cache_bytes: int | None, cache_dir: str | Path | None
) -> tuple[StoreSource, Manifest]:
    """A store by path or address, and what is committed there; see `TraceStore.open`."""
    url = address_of(path)
    if url is None:
        return open_directory(local_path(path))
    # by name: that room imports this one, and who reads a directory needs none of it
    remote: Any = import_module(ADDRESSES)
    opened: tuple[StoreSource, Manifest] = remote.open_address(url, cache_dir, cache_bytes)
    return opened


def open_directory(path: Path) -> tuple[StoreSource, Manifest]:
    """The directory at a path, and what is committed there.

    The directory is noted first: of another one that takes its place before the manifest is read,
    no shard is opened under the wrong manifest.
    """
    try:
        directory = StoreDirectory.at(path)
    except (OSError, ValueError):
        read_manifest(path)  # raises what is wrong
        raise
    manifest = read_manifest(path)
    return StoreSource(replace(directory, uuid=manifest.uuid)), manifest


def open_array(
    directory: StoreDirectory, array: StoredArray, check: Manifest | None = None
) -> RawArray | CompressedArray:
    """The reader of an array whose files are here; see `StoreSource.open_array`."""
    source = StoreSource(directory)
    return source.open_files(array, None, MAX_ARRAY_MAPS, source.sums(array, check))
