"""One shard of a store that is checked: its file, its chunks, and their recorded checksums."""

from typing import NamedTuple

import numpy as np

from store.errors import DamagedItemsError
from store.format.contents import StoredArray
from store.read.array import Array

__all__ = ["Shard"]


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
        shard = self.reader.shard(self.number)
        if shard.end != shard.n_data:
            message = (
                f"{shard.where}: expected its table after byte {shard.end}, "
                f"found {shard.n_data} bytes before it"
            )
            raise DamagedItemsError(message, self.items)
