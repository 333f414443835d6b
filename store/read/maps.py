"""The maps of an array's shards, seen as one array of bytes.

A batch of rows from many shards is then gathered by one call, with a position for each row, instead
of a look-up and a slice of a shard for each.
"""

from collections.abc import Mapping

import numpy as np

from store.format.layout import ArrayLayout
from store.read.shard import RawShard

__all__ = ["Maps"]

UNMAPPED = -1


class Maps:
    """Some mapped shards of an array, held until this object is gone; it never changes.

    Attributes
    ----------
    memory
        Read-only bytes, from the lowest one that is mapped to the highest: uint8. Between two maps
        may be anything, or nothing, which ends the process that touches it: only the items of these
        shards, and what follows them up to `ends`, may be read.
    bases
        Position in `memory` that the first item of the array would have, if all shards were where
        the map of this one is: int64, by shard. The item at place p of the array is at
        `bases[shard] + p * item_bytes`.
    ends
        Position after the last byte of each shard's map; `UNMAPPED` of one that is not among them.
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
        self.memory = _bytes_at(lowest, highest - lowest)
        # as many as are needed: how many shards the array has is for the manifest to claim
        n_shards = int(numbers.max(initial=-1)) + 1
        shard_bytes = layout.shard_items * layout.item_bytes
        self.bases = np.zeros(n_shards, np.int64)
        self.bases[numbers] = addresses - lowest + inside - numbers * shard_bytes
        self.ends = np.full(n_shards + 1, UNMAPPED)  # one for all that follow
        self.ends[numbers] = addresses - lowest + sizes

    def ends_of(self, shards: np.ndarray) -> np.ndarray | None:
        """`ends` of these shards, int64 `(n,)`; None unless all are among them."""
        ends = self.ends.take(shards, mode="clip")
        # counting is the fastest of its kind for few numbers
        return None if np.count_nonzero(ends == UNMAPPED) else ends


def _bytes_at(address: int, n_bytes: int) -> np.ndarray:
    """The bytes of this process from an address on, read-only: uint8 `(n_bytes,)`."""
    return np.asarray(_Memory(address, n_bytes)) if n_bytes else np.empty(0, np.uint8)


class _Memory:
    def __init__(self, address: int, n_bytes: int) -> None:
        self.__array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, True),
            "version": 3,
        }
