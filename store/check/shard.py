"""The shards of a store: their files, their chunks, and the recorded checksums of these."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from store.format.contents import StoredArray, checked_arrays
from store.format.manifest import Manifest
from store.read.array import Array
from store.read.store import TraceStore

__all__ = ["Shard", "checked_shards", "shards_of"]


class Shard(NamedTuple):
    """One shard of an array, which `reader` reads."""

    array: StoredArray
    reader: Array
    number: int

    @property
    def items(self) -> tuple[int, int]:
        """The first of its items, and the first after them."""
        return self.array.items_of_shard(self.number)

    @property
    def n_items(self) -> int:
        first, stop = self.items
        return stop - first

    @property
    def chunks(self) -> tuple[int, int]:
        """Its chunks, counted through all shards: the first, and the first after them."""
        first = self.number * self.array.layout.shard_chunks
        return first, first + self.array.layout.n_chunks(self.n_items)

    @property
    def n_bytes(self) -> int:
        """Bytes of the chunks of all planes, decoded."""
        first, stop = self.chunks
        return (stop - first) * self.array.layout.n_planes * self.array.layout.chunk_bytes

    @property
    def path(self) -> str:
        """Of its file, inside the store."""
        return self.array.layout.shard_path(self.number)

    def sums(self) -> np.ndarray:
        """The recorded checksums, uint32 `(n_chunks, n_planes)`; raises CorruptError."""
        if self.reader.sums is None:
            raise ValueError("expected a reader that checks")
        return self.reader.sums.read_chunks(*self.chunks)

    def check(self) -> None:
        """Raise DamagedItemsError if the file, its table or its size is wrong."""
        self.reader.check_shard(self.number)


def shards_of(
    store: TraceStore, array: StoredArray, check: Manifest | None = None
) -> Iterator[Shard]:
    """The shards of an array, in order; with `check` their recorded checksums can be asked for."""
    reader = store.reader.source.open_array(array, check=check)
    for number in range(array.n_shards):
        yield Shard(array, reader, number)


def checked_shards(store: TraceStore) -> Iterator[Shard]:
    """All shards of columns and offsets, which have checksums."""
    for array in checked_arrays(store.manifest):
        yield from shards_of(store, array, store.manifest)
