"""The files of one store at an address: offsets, checksums and the id table, fetched whole.

Columns have no files: their chunks are in the slab, and `fetched_column` fetches them.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from store.errors import CorruptError, NotFoundError, StoreError
from store.format.contents import StoredArray, arrays_of, checked_arrays, data_files
from store.format.layout import table_bytes
from store.format.manifest import GROUP_FILE, Manifest, group_attributes, read_manifest
from store.read.directory import StoreDirectory
from store.read.source import open_array
from store.remote.cache.chunk_index import BLOCK, CHUNK_MARGIN, index_bytes, n_cells
from store.remote.cache.fetcher.slab import write_at
from store.remote.cache.fetcher.writable_index import WritableIndex
from store.remote.objects.objects import Objects
from store.remote.objects.retry import again
from store.remote.pushed import Sums, check_sums, record_in

__all__ = ["INDEX_FILE", "FetchedStore", "fetch_group", "state_digest"]

INDEX_FILE = "index"
SOURCE_NAME = 16  # characters of a folder's name
SMALL_BYTES = 64 * 1024 * 1024


def state_digest(name: str, group: bytes, url: str) -> str:
    """The name of the folder of one state: its source's name, of its manifest, and of its sums.

    Not of the bytes of its `zarr.json`: of those, some have no checksum. Raises FormatError.
    """
    state = _state_of(group, url)
    text = json.dumps([name, state.manifest.to_attributes(), state.sums], sort_keys=True)
    return name + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _State(NamedTuple):
    """What a `zarr.json` says; it has `sums` if a push wrote it."""

    manifest: Manifest
    sums: Mapping[str, Sums]

    def may_become(self, now: "_State") -> bool:
        """Whether another state may be this one, or a later one of its store.

        Copies of a store that grew on their own have one UUID, and other values.
        """
        known = self.manifest
        found = now.manifest
        if found.uuid != known.uuid or found.generation < known.generation:
            return False
        if any(found.run_sums.get(run, crc) != crc for run, crc in known.run_sums.items()):
            return False
        counts = {array.layout.path: array.n_items for array in checked_arrays(found)}
        for array in checked_arrays(known):
            path = array.layout.path
            if counts.get(path) != array.n_items:  # it has grown, or is replaced
                continue
            sums = {one.sums[path].crc for one in (self, now) if path in one.sums}
            if known.tails.get(path) != found.tails.get(path) or len(sums) > 1:
                return False
        return True


def _state_of(group: bytes, url: str) -> _State:
    """What the bytes of the `zarr.json` at an address say; raises FormatError."""
    where = f"{url}/{GROUP_FILE}"
    attributes = group_attributes(group, where)
    sums = record_in(attributes, where).in_bucket
    return _State(Manifest.from_attributes(attributes, where), sums)


async def fetch_group(source: Objects, url: str) -> bytes:
    """The `zarr.json` at an address now, fetched again if it comes wrong; raises FormatError."""

    def fetch() -> bytes:
        group = source.get(GROUP_FILE)
        _state_of(group, url)
        return group

    return await asyncio.to_thread(again, fetch)


def column_cells(manifest: Manifest) -> dict[str, range]:
    """The cells of each column's array, by its path."""
    found = {}
    first = 0
    for array in arrays_of(manifest):
        if array.column is not None:
            found[array.layout.path] = range(first, first + n_cells(array))
            first += n_cells(array)
    return found


class FetchedStore:
    """A store at an address, and its folder in the cache, made if it is not there.

    `group` has the bytes of its `zarr.json`.

    Attributes
    ----------
    source
        Where its bytes are.
    root
        Directory of its files, where a local store has them.
    manifest
        What is committed at the address.
    cells
        See `column_cells`.
    index
        Of all chunks; the inventory makes it.
    fixed_bytes
        What its folder takes on the disk, once everything has been read.
    portion_bytes
        Of the largest chunk in all its planes, which one read needs together.
    """

    def __init__(self, url: str, source: Objects, folder: Path, group: bytes) -> None:
        self.url = url
        self.source = source
        self.folder = folder
        self.root = self.folder / "store"
        make_folder(self.root, self.folder.parent)
        self._group = group
        self.keep_group()
        self._state = _state_of(group, url)
        self.manifest: Manifest = self._state.manifest
        self._whole: set[str] = set()  # arrays whose files are here
        self._lock = asyncio.Lock()
        self.cells = column_cells(self.manifest)
        self.index: WritableIndex
        self._known = {array.layout.path: array for array in arrays_of(self.manifest)}
        sums = self._state.sums
        self._crcs = {  # of checksums, by their paths
            array.checksums.layout.path: sums[array.layout.path].crc
            for array in checked_arrays(self.manifest)
            if array.layout.path in sums
        }
        self.fixed_bytes = self._fixed_bytes()
        self.portion_bytes = self._portion_bytes()

    def stored(self, path: str) -> StoredArray:
        """An array of the store; raises NotFoundError."""
        if path not in self._known:
            raise NotFoundError(f"{self.url}: expected one of its arrays, found {path!r:.200}")
        return self._known[path]

    def cells_of_state(self, folder: Path) -> dict[str, range]:
        """The cells of another folder's columns, if it is of a state of this store."""
        if folder.name[:SOURCE_NAME] == self.folder.name[:SOURCE_NAME]:
            with suppress(StoreError):  # what an earlier process began, or another version wrote
                manifest = read_manifest(folder / "store")
                return column_cells(manifest) if manifest.uuid == self.manifest.uuid else {}
        return {}

    def object_bytes(self, folder: str) -> int:
        """Bytes of the data objects below a folder; "" of all."""
        begin = f"{folder}/" if folder else ""
        keys = [key for key in data_files(self.manifest) if key.startswith(begin)]
        return sum(head.size for head in self.source.heads(keys).values())

    def _fixed_bytes(self) -> int:
        total = 12 * BLOCK + 2 * index_bytes(sum(map(len, self.cells.values())))
        for array in self._known.values():
            if array.column is None:
                total += sum(_small_bytes(array, i) + 4 * BLOCK for i in range(array.n_shards))
        return total

    def _portion_bytes(self) -> int:
        layouts = [array.layout for array in self._known.values() if array.column is not None]
        chunks = (layout.n_planes * (layout.chunk_bytes + CHUNK_MARGIN) for layout in layouts)
        return max(chunks, default=BLOCK)

    def keep_group(self) -> None:
        """Have its `zarr.json` be in its folder, whole: somebody may have removed or damaged it."""
        file = self.root / GROUP_FILE
        if not file.is_file() or file.read_bytes() != self._group:
            self._write_whole(GROUP_FILE, self._group)

    async def need_whole(self, path: str, *, again: bool = False) -> None:
        """Have the files of a small array, compared with their checksums.

        They are fetched if they are not here, or `again`.
        """
        paths = [path]
        if path.startswith("_offsets/"):
            paths.insert(0, self.stored(path).checksums.layout.path)
        async with self._lock:
            for one in paths:
                if again or one not in self._whole:
                    await self._fetch(one)

    async def check_same(self) -> None:
        """Raise NotFoundError if another store is at the address now, or another copy of it."""
        group = await fetch_group(self.source, self.url)
        if not self._state.may_become(_state_of(group, self.url)):
            raise NotFoundError(
                f"{self.url}: expected the store that was opened, found another one at its "
                "address now; open it again"
            )

    async def _fetch(self, path: str) -> None:
        """Fetch the files of a small array; checksums are believed of the store that was opened.

        Nothing else names the bytes of chunks: with the checksums of another store that was put at
        the address, its chunks would be taken for those of this one.
        """
        self._whole.discard(path)  # what is refused is no one's to read
        fetch = partial(self._fetch_whole, self.stored(path))
        try:
            await asyncio.to_thread(again, fetch)
        except CorruptError:
            await self.check_same()
            raise
        if path.startswith("_checksums/"):
            await self.check_same()
        self._whole.add(path)

    def _fetch_whole(self, array: StoredArray) -> None:
        """Fetch the files of a small array, and check them.

        Each in one request: an append to the store replaces them, by longer ones that begin alike.
        """
        for shard in range(array.n_shards):
            key = array.layout.shard_path(shard)
            # it may have grown since
            most = max(SMALL_BYTES, 2 * _small_bytes(array, shard))
            self._write_whole(key, self.source.get(key, most))
        self._check_whole(array)

    def _write_whole(self, key: str, data: bytes) -> None:
        """Put a file in place, whole or not at all."""
        path = self.root / key
        make_folder(path.parent, self.root)
        part = path.with_name(f"{path.name}.part")
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_at(fd, [memoryview(data)], 0)
        finally:
            os.close(fd)
        part.replace(path)

    def _check_whole(self, array: StoredArray) -> None:
        """Raise CorruptError if a small array is not as the manifest says."""
        is_checked = array.layout.path.startswith("_offsets/")
        directory = StoreDirectory.at(self.root)
        reader = open_array(directory, array, check=self.manifest if is_checked else None)
        try:
            reader.open_shards(range(array.n_shards))
            for fault in reader.faults(0, array.layout.n_chunks(array.n_places)):
                raise fault
            if array.layout.path in self._crcs:
                check_sums(directory, array, self._crcs[array.layout.path])
        except CorruptError as error:
            raise CorruptError(f"{self.url}: {error}") from error


def _small_bytes(array: StoredArray, shard: int) -> int:
    """Bytes of the file of a shard that is not compressed."""
    layout = array.layout
    first, stop = array.items_of_shard(shard)
    n_data = layout.n_chunks(stop - first) * layout.chunk_bytes * layout.n_planes
    return n_data + table_bytes(layout)


def make_folder(folder: Path, root: Path) -> None:
    """Make a folder below `root`; raises FileNotFoundError if somebody has removed that."""
    below = [one for one in (folder, *folder.parents) if one.is_relative_to(root) and one != root]
    for one in reversed(below):
        one.mkdir(exist_ok=True)
