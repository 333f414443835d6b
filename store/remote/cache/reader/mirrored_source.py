"""A store at an address, of which a cache directory of this node is a mirror."""

from contextlib import suppress
from pathlib import Path

from store.errors import CorruptError, NotFoundError, SchemaError, UnreachableError
from store.format.contents import StoredArray
from store.format.manifest import Manifest, read_manifest
from store.read.arrays.array import Array
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.compressed_array import CompressedArray
from store.read.arrays.raw_array import RawArray
from store.read.directory import StoreDirectory
from store.read.source import MAX_ARRAY_MAPS, StoreSource
from store.remote.cache.location import SIZE_VARIABLE, chosen_dir, chosen_limit, prepare_dir
from store.remote.cache.reader.chunks import ATTEMPTS
from store.remote.cache.reader.mirror import Mirror
from store.remote.cache.reader.mirrored_array import MirroredArray

__all__ = ["MirroredSource", "open_address"]


class MirroredSource(StoreSource):
    """A store at an address.

    Chunks of columns are fetched as they are read; other arrays, which are small, at once.
    """

    is_trusted = False

    def __init__(self, mirror: Mirror) -> None:
        super().__init__(StoreDirectory(mirror.root.absolute()))
        self.mirror: Mirror = mirror

    def __reduce__(self) -> tuple:
        return MirroredSource, (self.mirror,)

    @property
    def where(self) -> str:
        return self.mirror.url

    def file_bytes(self, path: str = "") -> int:
        return self.mirror.object_bytes(path)

    def committed(self) -> tuple[StoreSource, Manifest]:
        return open_address(self.mirror.url, self.mirror.cache_dir, self.mirror.limit)

    def open_array(
        self,
        array: StoredArray,
        cache: ChunkCache | None = None,
        max_maps: int = MAX_ARRAY_MAPS,
        check: Manifest | None = None,
    ) -> Array:
        if array.column is not None:
            cache = cache or ChunkCache(0)
            is_checked = check is not None
            return MirroredArray(self.mirror, self.directory, array, cache, is_checked=is_checked)
        local = self.open_files(array, cache, max_maps, self.sums(array, check))
        self._fetch_whole(local)
        return local

    def _fetch_whole(self, array: RawArray | CompressedArray) -> None:
        """Fetch a small array, and map its files at once: a map stays when a file goes."""
        numbers = range(array.array.n_shards)
        for n in range(ATTEMPTS):
            self.mirror.need_files(array.layout.path, again=n > 0)
            with suppress(CorruptError):  # removed or damaged since, or who fetched them was killed
                array.open_shards(numbers)
                return
        array.open_shards(numbers)


def open_address(
    url: str, cache_dir: str | Path | None, limit: int | None
) -> tuple[StoreSource, Manifest]:
    """The store at an address, cached, and what is committed there; see `TraceStore.open`."""
    folder = chosen_dir(cache_dir)
    prepare_dir(folder)
    for _ in range(ATTEMPTS):
        try:
            mirror = Mirror(url, folder, chosen_limit(limit))
        except ValueError as error:
            if limit is not None:
                raise
            raise SchemaError(f"{SIZE_VARIABLE}: {error}") from error
        with suppress(NotFoundError):  # whoever fetched it was killed just now
            return MirroredSource(mirror), read_manifest(mirror.root)
    raise UnreachableError(f"{folder}: expected the files of {url}, found none that lasts")
