"""The bytes of committed shards (`layout.py` says where they lie).

`RawShard` maps a file and shows its items as one read-only view, `MappedShards` many as one memory;
`CompressedShard` decodes its chunks. None knows rows or columns.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError, is_no_damage
from store.format.codecs import parse_codec, split_compressed
from store.format.layout import ABSENT, CRC_BYTES, ENTRY, ArrayLayout, raw_entries, table_bytes
from store.read.arrays.mapped_file import MappedFile, bytes_at

__all__ = [
    "RESTORE",
    "CompressedShard",
    "MappedShards",
    "RawShard",
    "chunk_checksum",
    "read_entries",
]

UNMAPPED = -1
RESTORE = "restore it from a copy, or see python -m store repair"


class _Shard:
    """A committed shard file, mapped, and its table.

    The manifest says that it holds `n_items`; a longer file is fine (a writer may have committed
    since), a shorter one is not. `entries` are (offset, size) of every chunk that holds items,
    int64 `(n_chunks, n_planes, 2)`. `n_data` bytes are before the table, and `end` is where the
    last chunk ends: they are equal unless something was put between.

    Raises CorruptError if the file is missing, too short, or its table is damaged. This is checked
    against the file's size before any byte is touched, so that no access can end in SIGBUS.
    """

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        self.where = f"array {layout.path!r}, shard {number}"
        self.layout = layout
        self.n_items = n_items
        self.n_chunks = layout.n_chunks(n_items)
        path = root / layout.shard_path(number)
        n_table = table_bytes(layout)
        try:
            self.file = MappedFile(path, n_table)
        except OSError as error:
            if is_no_damage(error):
                raise
            raise CorruptError(
                f"{self.where}: expected {path}, found: {error.strerror}; {RESTORE}"
            ) from error
        self.data = self.file.bytes.data
        self.n_data = len(self.data) - n_table
        if self.n_data <= 0:
            raise CorruptError(
                f"{self.where}: expected more than {n_table} bytes, found {len(self.data)}; "
                f"{RESTORE}"
            )
        self.entries, self.end = read_entries(
            self.file.tail, layout, n_items, self.n_data, self.where
        )

    def where_of(self, chunk: int, plane: int) -> str:
        """A chunk's place, as error messages name it."""
        where = f"{self.where}, chunk {chunk}"
        return f"{where}, plane {plane}" if self.layout.n_planes > 1 else where


class RawShard(_Shard):
    """An uncompressed shard. `items` is a read-only view `(n_items, *item_shape)` of the map,
    strided if the column is split; a view of it keeps the map alive."""

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        super().__init__(root, layout, number, n_items)
        self.plane_offsets = self.entries[0, :, 0]
        self.plane_stride = 0
        if layout.n_planes > 1:
            self.plane_stride = int(self.plane_offsets[1] - self.plane_offsets[0])
        self.items = self._view()

    def _view(self) -> np.ndarray:
        layout = self.layout
        plane_numbers = self.n_items * math.prod(layout.plane_item_shape)
        planes = np.ndarray(
            (layout.n_planes, plane_numbers),
            layout.dtype,
            self.data,
            offset=int(self.plane_offsets[0]),
            strides=(self.plane_stride, layout.dtype.itemsize),
        )
        shape = (*layout.plane_grid, self.n_items, *layout.plane_item_shape)
        items = layout.planes_as_items(planes.reshape(shape))  # cuts axes, which takes no copy
        items.flags.writeable = False
        return items

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """CRC32C of the chunks `start:stop` as found; see `chunk_checksum`."""
        layout = self.layout
        n_bytes = layout.chunk_bytes
        first = int(self.plane_offsets[plane])
        data = self.data[first : first + self.n_items * layout.plane_item_bytes]
        return [
            chunk_checksum(layout, data[offset : offset + n_bytes], len(data) - offset)
            for offset in range(start * n_bytes, stop * n_bytes, n_bytes)
        ]

    def byte_ranges(self, start: int, stop: int, planes: np.ndarray) -> list[tuple[int, int]]:
        """Where the items `start:stop` of some planes lie in the file."""
        first = start * self.layout.plane_item_bytes
        last = stop * self.layout.plane_item_bytes
        offsets = self.plane_offsets[planes].tolist()
        return [(offset + first, offset + last) for offset in offsets]


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


class CompressedShard(_Shard):
    """A compressed shard."""

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        super().__init__(root, layout, number, n_items)
        # a byte a chunk and plane, written without a lock: threads that both check one agree
        self._is_right = bytearray(self.n_chunks * layout.n_planes)

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """CRC32C of the compressed chunks `start:stop`; see `chunk_checksum`."""
        n_bytes = self.n_items * self.layout.plane_item_bytes
        return [
            chunk_checksum(
                self.layout,
                self._compressed(chunk, plane),
                n_bytes - chunk * self.layout.chunk_bytes,
            )
            for chunk in range(start, stop)
        ]

    def read_chunk(self, chunk: int, plane: int, out: np.ndarray) -> None:
        """Decode one chunk into `out`, C-contiguous, of the size of a decoded chunk.

        Its bytes are compared with their checksum the first time since the shard was opened. Raises
        CorruptError if they are damaged.
        """
        place = chunk * self.layout.n_planes + plane
        is_checked = bool(self._is_right[place])
        codec = parse_codec(self.layout.codec)
        data = self._compressed(chunk, plane)
        codec.decode(data, out, partial(self.where_of, chunk, plane), is_checked=is_checked)
        self._is_right[place] = True

    def _compressed(self, chunk: int, plane: int) -> memoryview:
        """The bytes of a chunk, its own checksum included."""
        offset, n_bytes = self.entries[chunk, plane].tolist()
        return self.data[offset : offset + n_bytes]

    def byte_ranges(self, start: int, stop: int, planes: np.ndarray) -> list[tuple[int, int]]:
        """Where the chunks of the items `start:stop` of some planes lie in the file."""
        chunk_items = self.layout.chunk_items
        first = start // chunk_items
        last = (stop - 1) // chunk_items
        entries = self.entries[first : last + 1, planes].reshape(-1, 2).tolist()
        return [(offset, offset + n_bytes) for offset, n_bytes in entries]


def chunk_checksum(
    layout: ArrayLayout, data: memoryview, n_bytes: int, gil_release_mode: int = -1
) -> int:
    """CRC32C of a chunk in one plane, of which the manifest has the first bytes: `n_bytes` or all.

    The others count as zeros: a tail that has grown since still has the checksum that it had. Of a
    compressed chunk it is that of its compressed bytes, or another number if their own one differs;
    of a last one that is not whole, of its decoded items: it may have been compressed again since,
    with more items, by a commit or by one that did not come to its end. `gil_release_mode` is as
    that of `crc32c`.
    """
    n_padding = max(0, layout.chunk_bytes - n_bytes)
    if layout.codec is None:
        found = crc32c(data[:n_bytes], 0, gil_release_mode)
        return crc32c(bytes(n_padding), found) if n_padding else found
    packed, stated = split_compressed(data)
    found = crc32c(packed)
    if found == stated and not n_padding:
        return found
    items = np.empty(layout.chunk_bytes, np.uint8)
    try:
        parse_codec(layout.codec).decode(data, items, lambda: layout.path)
    except CorruptError:
        return found ^ 0xFFFFFFFF
    items[n_bytes:] = 0
    return crc32c(items.data)


def read_entries(
    tail: bytes, layout: ArrayLayout, n_items: int, n_data: int, where: str
) -> tuple[np.ndarray, int]:
    """Read the table of a shard from `tail`, the last bytes of the file, with `n_data` before it.

    Returns (offset, size) of every chunk that holds items, int64 `(n_chunks, n_planes, 2)`, and
    where the last chunk ends, also those of a later commit. Raises CorruptError if the table is
    damaged, or points elsewhere.
    """
    data = tail[:-CRC_BYTES]
    stated = int.from_bytes(tail[-CRC_BYTES:], "little")
    found = crc32c(data)
    if found != stated or n_data <= 0:
        raise CorruptError(
            f"{where}: expected a table of checksum {stated:08x}, found {found:08x}; {RESTORE}"
        )
    table = np.frombuffer(data, ENTRY).reshape(layout.shard_chunks, layout.n_planes, 2)
    filled = table[table[:, 0, 0] != ABSENT]
    entries = table[: layout.n_chunks(n_items)]
    # one by one first: a sum of larger numbers could wrap
    if (entries > n_data).any() or (entries.sum(axis=2) > n_data).any():
        raise CorruptError(
            f"{where}: expected {len(entries)} chunks a plane within {n_data} bytes, found a table "
            f"that points elsewhere; {RESTORE}"
        )
    if layout.codec is None:
        _check_order(entries.astype(np.int64), layout, where)
    return entries.astype(np.int64), int(filled.sum(axis=2).max(initial=0))


def _check_order(entries: np.ndarray, layout: ArrayLayout, where: str) -> None:
    """Raise unless raw chunks follow each other, planes at equal distances."""
    offsets = entries[0, :, 0]
    stride = int(offsets[1] - offsets[0]) if layout.n_planes > 1 else 0
    expected = raw_entries(layout, len(entries), stride).astype(np.int64)
    expected[:, :, 0] += offsets[0]
    if not np.array_equal(entries, expected) or offsets[0] % layout.dtype.itemsize:
        raise CorruptError(f"{where}: expected chunks in order, found another table; {RESTORE}")
