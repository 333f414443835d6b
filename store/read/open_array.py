"""Open the reader that fits an array."""

from contextlib import suppress

from store.errors import CorruptError
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.read.array import Array
from store.read.chunk_cache import ChunkCache
from store.read.chunk_sums import ChunkSums
from store.read.compressed_array import CompressedArray
from store.read.directory import StoreDirectory
from store.read.held_array import HeldArray
from store.read.mirror import Mirror
from store.read.raw_array import RawArray

__all__ = ["MAX_MAPS", "open_array"]

MAX_MAPS = 1024
ATTEMPTS = 5  # to open files of a mirror whose fetching process is killed


def open_array(
    directory: StoreDirectory,
    array: StoredArray,
    cache: ChunkCache | None = None,
    max_maps: int = MAX_MAPS,
    check: Manifest | None = None,
    mirror: Mirror | None = None,
) -> Array:
    """The reader of an array; no file is opened until items are read.

    Parameters
    ----------
    directory, array, max_maps
        See `Array`.
    cache
        For decoded chunks.
    check
        What is committed: if given, every chunk is checked before it is used.
    mirror
        Where the directory is one: of columns it brings the chunks that are read, other arrays,
        which are small, at once.
    """
    sums = None
    if check is not None:
        sums = ChunkSums(open_array(directory, array.checksums, mirror=mirror), array, check)
    opened: Array
    if array.layout.codec is None:
        opened = RawArray(directory, array, max_maps, sums)
    else:
        opened = CompressedArray(directory, array, max_maps, sums, cache or ChunkCache(0))
    if mirror is not None and array.column is not None:
        opened.holder = HeldArray(mirror, array)
    elif mirror is not None:
        _open_whole(opened, mirror)
    return opened


def _open_whole(array: Array, mirror: Mirror) -> None:
    """Fetch a small array, and map its files at once: a map stays when a file goes."""
    numbers = range(array.array.n_shards)
    for _ in range(ATTEMPTS):
        mirror.fetch_whole(array.layout.path)
        with suppress(CorruptError):  # whoever fetched them was killed just now
            array.open_shards(numbers)
            return
        mirror.forget_whole(array.layout.path)
    array.open_shards(numbers)
