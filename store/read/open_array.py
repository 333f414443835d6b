"""Where the arrays of a store come from, and the reader that fits each."""

from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.read.array import Array
from store.read.chunk_cache import ChunkCache
from store.read.chunk_sums import ChunkSums
from store.read.compressed_array import CompressedArray
from store.read.directory import StoreDirectory
from store.read.raw_array import RawArray

__all__ = ["MAX_MAPS", "LocalSource", "open_array"]

MAX_MAPS = 1024


class LocalSource:
    """The arrays of a store whose files are here.

    Attributes
    ----------
    is_trusted
        Whether files may be read without a look at their checksums.
    """

    is_trusted = True

    def __init__(self, directory: StoreDirectory) -> None:
        self.directory = directory

    def open_array(
        self,
        array: StoredArray,
        cache: ChunkCache | None = None,
        max_maps: int = MAX_MAPS,
        check: Manifest | None = None,
    ) -> Array:
        """The reader of an array; no file is opened until items are read.

        Parameters
        ----------
        cache
            For decoded chunks.
        max_maps
            Shards to keep mapped.
        check
            What is committed: if given, every chunk is checked before it is used.
        """
        return self.open_files(array, cache, max_maps, self.sums(array, check))

    def sums(self, array: StoredArray, check: Manifest | None) -> ChunkSums | None:
        """What the chunks of an array are checked against."""
        return None if check is None else ChunkSums(self.open_array(array.checksums), array, check)

    def open_files(
        self,
        array: StoredArray,
        cache: ChunkCache | None,
        max_maps: int,
        sums: ChunkSums | None,
    ) -> RawArray | CompressedArray:
        """The reader of shards that are here."""
        if array.layout.codec is None:
            return RawArray(self.directory, array, max_maps, sums)
        return CompressedArray(self.directory, array, max_maps, sums, cache or ChunkCache(0))


def open_array(
    directory: StoreDirectory, array: StoredArray, check: Manifest | None = None
) -> RawArray | CompressedArray:
    """The reader of an array whose files are here; see `LocalSource.open_array`."""
    source = LocalSource(directory)
    return source.open_files(array, None, MAX_MAPS, source.sums(array, check))
