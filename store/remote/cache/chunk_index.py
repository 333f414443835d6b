"""Which chunks of a store are in the cache, and where: a small file that its readers map.

Every chunk of every plane has a cell, column after column, and every cell a word: 0 while its chunk
is not there, else its slot in the slab and the tick at which it came; negative while it may not be
read before it is checked. No two arrivals have a tick in common. So a reader that finds the same
word before and after it has copied a chunk has copied this chunk, and not what came into the slot
after it. Only the fetching process of a node writes (`fetcher/writable_index.py`).
"""

import numpy as np

from store.format.contents import StoredArray

__all__ = [
    "BLOCK",
    "CELL_BYTES",
    "CHUNK_MARGIN",
    "HEADER_BYTES",
    "SLOT_BITS",
    "UNCHECKED",
    "are_here",
    "cells_of_chunks",
    "index_bytes",
    "n_cells",
    "parts_of",
    "positions_of",
    "shard_cells",
]

BLOCK = 4096  # bytes; a slot is of whole blocks
CHUNK_MARGIN = 2 * BLOCK  # what a chunk may take in the slab beyond its bytes
HEADER_BYTES = 64
CELL_BYTES = 8 + 4  # a word, and the bytes of the chunk
SLOT_BITS = 30  # of a word: 4 TiB of blocks; the tick follows
SLOT_MASK = 2**SLOT_BITS - 1
UNCHECKED = -(2**63)  # the sign of a word


def shard_cells(array: StoredArray) -> int:
    """Cells of a full shard: those of its first plane, then of the next."""
    return array.layout.shard_chunks * array.layout.n_planes


def n_cells(array: StoredArray) -> int:
    """Cells of an array, with those that its last shard has no chunks for."""
    return array.n_shards * shard_cells(array)


def cells_of_chunks(array: StoredArray, chunks: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """The cells of chunks, counted through all shards, plane after plane: int64."""
    if array.layout.n_planes == 1:
        return chunks
    shard_chunks = array.layout.shard_chunks
    shards, inside = np.divmod(chunks, shard_chunks)
    first = shards * shard_cells(array) + inside
    return (first + planes[:, None] * shard_chunks).ravel()


def are_here(words: np.ndarray) -> np.ndarray:
    """Whether the chunks of these words may be read: bool `(n,)`."""
    return words > 0


def positions_of(words: np.ndarray) -> np.ndarray:
    """Where chunks begin in the slab: int64 `(n,)`."""
    return (words & SLOT_MASK) * BLOCK


def index_bytes(n: int) -> int:
    """Size of the file for so many cells."""
    return HEADER_BYTES + max(1, n) * CELL_BYTES


def parts_of(data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Views of the bytes of an index.

    How often its words were changed, int64 `(1,)`; the words, int64, and the bytes of the chunks
    that are there, uint32, `(n_cells,)`.
    """
    n = (len(data) - HEADER_BYTES) // CELL_BYTES
    words, sizes, _ = np.split(data[HEADER_BYTES:], [8 * n, CELL_BYTES * n])
    return data[:8].view("<i8"), words.view("<i8"), sizes.view("<u4")
