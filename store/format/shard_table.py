"""The table at the end of a shard: where its chunks lie (Zarr's `sharding_indexed` codec). Pure."""

import numpy as np
from crc32c import crc32c

from store.format.layout import ArrayLayout

__all__ = ["ABSENT", "CRC_BYTES", "ENTRY", "encode_table", "raw_entries", "table_bytes"]

ENTRY = np.dtype("<u8")
ABSENT = np.uint64(2**64 - 1)  # what Zarr writes for a chunk that is not there
CRC_BYTES = 4


def table_bytes(layout: ArrayLayout) -> int:
    """Size of the table: (offset, size) of every chunk of a full shard, and a CRC32C."""
    n_chunks = layout.shard_chunks * layout.n_planes
    return n_chunks * 2 * ENTRY.itemsize + CRC_BYTES


def encode_table(layout: ArrayLayout, entries: np.ndarray) -> bytes:
    """The table of a shard.

    `entries` are the (offset, size) of its first chunks: uint64 `(n_chunks, n_planes, 2)`.
    """
    table = np.full((layout.shard_chunks, layout.n_planes, 2), ABSENT, ENTRY)
    table[: len(entries)] = entries
    data = table.tobytes()
    return data + crc32c(data).to_bytes(CRC_BYTES, "little")


def raw_entries(layout: ArrayLayout, n_chunks: int, plane_stride: int) -> np.ndarray:
    """(offset, size) of the chunks of a raw shard with planes `plane_stride` bytes apart."""
    chunk_offsets = np.arange(n_chunks) * layout.chunk_bytes
    plane_offsets = np.arange(layout.n_planes) * plane_stride
    entries = np.empty((n_chunks, layout.n_planes, 2), ENTRY)
    entries[:, :, 0] = chunk_offsets[:, None] + plane_offsets
    entries[:, :, 1] = layout.chunk_bytes
    return entries
