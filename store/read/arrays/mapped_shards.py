"""The maps of many shards, seen as one memory: items of all of them are found in one call."""

from collections.abc import Mapping

import numpy as np

from store.format.layout import ArrayLayout
from store.read.arrays.mapped_file import bytes_at
from store.read.arrays.shard import RawShard

__all__ = ["MappedShards"]

UNMAPPED = -1


class MappedShards:
    """Some mapped shards of an array, held until this object is gone; it never changes.

    `memory` is read-only bytes, uint8, from the lowest one that is mapped to the highest. Between
    two maps may be anything, or nothing, which ends the process that touches it: only the items of
    these shards, and what follows them up to `ends`, may be read.

    The item at place p of the array is at `bases[shard] + p * plane_item_bytes` in `memory`: as if
    all shards were where the map of this one is; in plane k, `k * strides[shard]` behind that.
    `ends` is the position after the last byte of each shard's map; `UNMAPPED` of one that is not
    among them.
    """

    def __init__(self, shards: Mapping[int, RawShard], layout: ArrayLayout) -> None:
        self.held = dict(shards)
        files = [shard.file for shard in self.held.values()]
        numbers = np.array(list(self.held), np.int64)
        addresses = np.array([file.address for file in files], np.int64)
        sizes = np.array([file.n_bytes for file in files], np.int64)
        inside = np.array([shard.plane_offsets[0] for shard in self.held.values()], np.int64)
        lowest = int(addresses.min()) if files else 0
        highest = int((addresses + sizes).max()) if files else 0
        self.memory = bytes_at(lowest, highest - lowest)
        # as many as are needed: how many shards the array has is for the manifest to claim
        n_shards = int(numbers.max(initial=-1)) + 1
        plane_bytes = layout.shard_items * layout.plane_item_bytes
        self.bases = np.zeros(n_shards, np.int64)
        self.bases[numbers] = addresses - lowest + inside - numbers * plane_bytes
        self.strides = np.zeros(n_shards, np.int64)
        self.strides[numbers] = [shard.plane_stride for shard in self.held.values()]
        self.ends = np.full(n_shards + 1, UNMAPPED)  # one for all that follow
        self.ends[numbers] = addresses - lowest + sizes

    def ends_of(self, shards: np.ndarray) -> np.ndarray | None:
        """`ends` of these shards, int64 `(n,)`; None unless all are among them."""
        ends = self.ends.take(shards, mode="clip")
        # counting is the fastest of its kind for few numbers
        return None if np.count_nonzero(ends == UNMAPPED) else ends
