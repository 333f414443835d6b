"""Copies of chunks in the cache, which others evict at any time.

The index of an array says where its chunks are in the slab. It is read before and after a copy: if
it says the same, what was copied are these chunks, whatever was evicted meanwhile.
"""

import errno
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.errors import CorruptError, DamagedItemsError, UnreachableError
from store.format.codecs import parse_codec
from store.format.contents import StoredArray
from store.read.arrays.chunk_cache import ChunkCache
from store.read.arrays.compressed_array import CompressedArray
from store.read.arrays.mapped_file import MappedFile
from store.read.directory import StoreDirectory
from store.remote.cache.chunk_index import (
    BLOCK,
    are_here,
    cells_of_chunks,
    index_bytes,
    n_cells,
    parts_of,
    positions_of,
)
from store.remote.cache.location import SLAB_FILE
from store.remote.cache.reader.mirror import Mirror

__all__ = ["ATTEMPTS", "CacheState", "Chunks", "CompressedChunks", "Evicted", "Seen"]

ATTEMPTS = 20  # of reading what others have evicted or removed under us


class Evicted(Exception):
    """A chunk was evicted while it was copied."""


class CacheState:
    """What a fetching process has made known of an array, mapped: what the index says of its
    `cells`, see `parts_of`, and the `memory` of the slab."""

    def __init__(self, index: Path, slab: Path, cells: range) -> None:
        self._file = MappedFile(index)
        if self._file.n_bytes < index_bytes(cells.stop):
            raise FileNotFoundError(errno.ENOENT, "no index of this store", str(index))
        self._n_changes, words, sizes = parts_of(self._file.bytes)
        self.words = words[cells.start : cells.stop]
        self.sizes = sizes[cells.start : cells.stop]
        self.slab = MappedFile(slab)
        self.memory = self.slab.bytes
        self._counted = 0
        self._counted_at = -1

    def is_current(self) -> bool:
        """Whether the index still has its name: else another process has taken over."""
        return self._file.has_its_name()

    def count(self) -> int:
        """How many chunks may be read."""
        n_changes = int(self._n_changes[0])
        if n_changes != self._counted_at:
            self._counted = int(np.count_nonzero(are_here(self.words)))
            self._counted_at = n_changes
        return self._counted


class Seen(NamedTuple):
    """What the index said of some cells before they are copied: their chunks are here.

    `positions`, int64 `(n,)`, are where they begin in the slab.
    """

    state: CacheState
    cells: np.ndarray
    words: np.ndarray
    positions: np.ndarray

    def is_unchanged(self) -> bool:
        """Whether the index still says so: what was copied meanwhile are these chunks."""
        state = self.state
        return bool((state.words[self.cells] == self.words).all()) and state.is_current()


class Chunks:
    """Where the chunks of an array are: `state`, as it was known last; None: nothing is known."""

    def __init__(self, mirror: Mirror, array: StoredArray) -> None:
        self.mirror = mirror
        self.array = array
        self.layout = array.layout
        self.state: CacheState | None = None

    def current(self) -> CacheState:
        """What is known, asked for again if another fetching process has taken over."""
        known = self.state  # another thread may forget it
        if known is not None and known.is_current():
            return known
        for n in range(ATTEMPTS):
            if n or known is not None:
                self.mirror.reopen()
            with suppress(FileNotFoundError):  # another process has taken its place just now
                slab = self.mirror.cache_dir / SLAB_FILE
                self.state = found = CacheState(self.mirror.index, slab, self._cells)
                return found
        raise UnreachableError(
            f"{self.mirror.index}: expected a file of the fetching process, found none {ATTEMPTS} "
            "times; open the store again"
        )

    def are_all_here(self) -> bool:
        """Whether every chunk of the array can be copied, as far as is known."""
        state = self.state
        # a slab that cannot hold them spares counting the words of a large array again and again
        return (
            state is not None
            and len(state.memory) >= self._least_bytes
            and state.count() == self._n_chunks
        )

    @property
    def _least_bytes(self) -> int:
        """What all chunks take in the slab at least; those of a codec are of any size."""
        return self._n_chunks * (BLOCK if self.layout.codec else self.layout.chunk_bytes)

    @property
    def _cells(self) -> range:
        """Those of the array, in the index of its store."""
        first = self.mirror.first_cells[self.layout.path]
        return range(first, first + n_cells(self.array))

    @cached_property
    def _n_chunks(self) -> int:
        """In all planes."""
        items = map(self.array.items_of_shard, range(self.array.n_shards))
        n_chunks = sum(self.layout.n_chunks(stop - first) for first, stop in items)
        return n_chunks * self.layout.n_planes

    def look(self, cells: np.ndarray) -> Seen | None:
        """What the index says of cells; None: some cannot be copied now."""
        # if another process has taken over, its words are 0, or its file has lost its name
        state = self.state or self.current()
        words = state.words[cells]
        if not are_here(words).all():
            return None
        positions = positions_of(words)
        sizes = state.sizes[cells] if self.layout.codec else self.layout.chunk_bytes
        if (positions + sizes).max(initial=0) > len(state.memory):  # the slab has grown
            self.state = None
            return None
        return Seen(state, cells, words, positions)

    def copy(self, cell: int) -> bytes:
        """The bytes of a chunk; raises Evicted."""
        state = self.current()
        words = state.words[[cell]]
        position = int(positions_of(words)[0])
        found = state.memory[position : position + int(state.sizes[cell])].tobytes()
        if not are_here(words)[0] or state.words[cell] != words[0]:
            raise Evicted
        return found


class CompressedChunks(CompressedArray):
    """Decodes copies of compressed chunks: decoders in C trust what they have read before.

    What they make of a chunk is kept, so it must be certain that it is of this chunk.
    """

    def __init__(
        self, directory: StoreDirectory, array: StoredArray, cache: ChunkCache, chunks: Chunks
    ) -> None:
        super().__init__(directory, array, 0, None, cache)
        self.chunks = chunks

    def open_shards(self, numbers: object) -> None:
        """Open nothing: there are no shards here."""

    def fill_chunk(self, plane: int, chunk: int, out: np.ndarray) -> None:
        (cell,) = cells_of_chunks(self.array, np.array([chunk]), np.array([plane])).tolist()
        data = memoryview(self.chunks.copy(cell))

        def where() -> str:
            return f"array {self.layout.path!r}, chunk {chunk}"

        try:
            parse_codec(self.layout.codec).decode(data, out, where)
        except CorruptError as error:
            raise DamagedItemsError(str(error), self.array.items_of_chunk(chunk)) from error
