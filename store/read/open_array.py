"""Open the reader that fits an array."""

from pathlib import Path

from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.read.array import ChunkSums
from store.read.chunk_cache import ChunkCache
from store.read.compressed_array import CompressedArray
from store.read.raw_array import RawArray

__all__ = ["open_array"]


MAX_MAPS = 1024


def open_array(
    root: Path,
    array: StoredArray,
    cache: ChunkCache | None = None,
    max_maps: int = MAX_MAPS,
    check: Manifest | None = None,
    inode: int | None = None,
) -> "RawArray | CompressedArray":
    """The reader of an array; nothing is opened until items are asked for.

    Parameters
    ----------
    root, array, max_maps
        See `_Array`.
    cache
        For decoded chunks.
    check
        What is committed: if given, every chunk is checked before it is used.
    inode
        Number of the directory that was opened: a shard of another one, that has taken its place,
        is refused.
    """
    common = (
        root,
        array.layout,
        array.n_items,
        max_maps,
        check and ChunkSums(open_array(root, array.checksums), array, check),
        inode,
    )
    return (
        RawArray(*common)
        if array.layout.codec is None
        else CompressedArray(*common, cache or ChunkCache(0))
    )
