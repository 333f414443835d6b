"""Whether bytes that came are those of a chunk, by the store's checksums."""

from collections.abc import Callable

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError
from store.format.codecs import parse_codec, split_compressed
from store.format.contents import StoredArray
from store.format.manifest import Manifest
from store.read.chunk_sums import ChunkSums
from store.read.directory import StoreDirectory
from store.read.source import open_array

__all__ = ["ChunkChecks", "IsRight"]

LOCKED_BYTES = 512 * 1024

IsRight = Callable[[int, memoryview], bool]
"""(i, bytes) -> whether they are those of the i-th of some chunks."""


class ChunkChecks:
    """The checksums of one array's chunks, all in memory; their files are in `directory`."""

    def __init__(self, directory: StoreDirectory, array: StoredArray, manifest: Manifest) -> None:
        self.directory = directory
        self.array = array
        self.layout = array.layout
        self.manifest = manifest
        self.read()

    def read(self) -> None:
        """Read the checksums of all chunks, uint32 `(n_chunks, n_planes)`."""
        checksums = self.array.checksums
        has_tail = self.array.n_places % self.layout.chunk_items > 0
        sums = ChunkSums(open_array(self.directory, checksums), self.array, self.manifest)
        self._sums = sums.read(0, checksums.n_items + has_tail)

    def of(self, shard: int, chunks: np.ndarray, planes: np.ndarray) -> IsRight:
        """The check of some chunks of a shard, int64 `(n,)`, each in one plane.

        It agrees with `Array.faults`.
        """
        layout = self.layout
        first_chunk = shard * layout.shard_chunks
        # of one shard they follow each other
        sums = self._sums[self.array.sum_of_chunk(first_chunk) + chunks, planes].tolist()
        first, stop = self.array.items_of_shard(shard)
        is_whole = ((chunks + 1) * layout.chunk_items <= stop - first).tolist()

        def is_right(i: int, data: memoryview) -> bool:
            if layout.codec is None and is_whole[i]:
                # The interpreter's lock is kept: to give it away takes longer than to sum up 64 KB.
                return bool(crc32c(data, 0, len(data) > LOCKED_BYTES) == sums[i])
            return self._is_right(first_chunk + int(chunks[i]), int(planes[i]), data, sums[i])

        return is_right

    def _is_right(self, chunk: int, plane: int, data: memoryview, expected: int) -> bool:
        """The same of a chunk that is compressed, or not whole."""
        n_padding = self._n_padding(chunk)
        if self.layout.codec is None:
            found = crc32c(data[: len(data) - n_padding])
            return bool(crc32c(bytes(n_padding), found) == expected)
        packed, stated = split_compressed(data)
        if not n_padding:
            return bool(crc32c(packed) == stated == expected)
        return crc32c(packed) == stated and self._is_right_tail(chunk, plane, data, expected)

    def _n_padding(self, chunk: int) -> int:
        """Bytes after the committed items of a chunk, in each plane."""
        first, stop = self.array.items_of_chunk(chunk)
        return self.layout.chunk_bytes - (stop - first) * self.layout.plane_item_bytes

    def _is_right_tail(self, chunk: int, plane: int, data: memoryview, expected: int) -> bool:
        """A last chunk may have been compressed again with more items: what they decode to."""
        items = np.empty(self.layout.chunk_bytes, np.uint8)
        try:
            codec = parse_codec(self.layout.codec)
            codec.decode(data, items, lambda: f"chunk {chunk}, plane {plane}")
        except CorruptError:
            return False
        items[self.layout.chunk_bytes - self._n_padding(chunk) :] = 0
        return bool(crc32c(items.data) == expected)
