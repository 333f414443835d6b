"""The bytes of one committed shard (`schema.py` specifies them).

`RawShard` maps a file and shows its items as one read-only view; `CompressedShard` gives its compressed
chunks. Neither knows rows or columns.
"""

import math
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError
from store.format.codecs import parse_codec, split_compressed
from store.format.layout import ArrayLayout
from store.format.shard_table import ABSENT, CRC_BYTES, ENTRY, raw_entries, table_bytes
from store.read.mapped_file import MappedFile

__all__ = ["RESTORE", "CompressedShard", "RawShard"]

RESTORE = "restore it from a copy, or see python -m store repair"


class _Shard:
    """A committed shard file, mapped, and its table.

    Parameters
    ----------
    root
        The store.
    layout, number
        Which array, which of its shards.
    n_items
        Items that the store's manifest says this shard holds; a longer file is fine (a writer may
        have committed since), a shorter one is not.

    Attributes
    ----------
    n_data, end
        Bytes before the table, and where the last chunk ends; they are equal unless something was
        put between.

    Raises
    ------
    CorruptError
        The file is missing, too short, or its table is damaged. Checked against the file's size
        before any byte is touched, so that no access can end in SIGBUS.
    """

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        self.where = f"array {layout.path!r}, shard {number}"
        self.layout, self.n_items, self.n_chunks = layout, n_items, layout.n_chunks(n_items)
        path = root / layout.shard_path(number)
        try:
            self.file = MappedFile(path, table_bytes(layout))
        except OSError as error:
            raise CorruptError(
                f"{self.where}: expected {path}, found: {error.strerror}; {RESTORE}"
            ) from error
        self.data = self.file.bytes
        self.entries = self._read_table()

    def _read_table(self) -> np.ndarray:
        """(offset, size) of every chunk that holds items: int64 `(n_chunks, n_planes, 2)`."""
        layout, n_table = self.layout, table_bytes(self.layout)
        n_data = len(self.data) - n_table
        if n_data <= 0:
            raise CorruptError(
                f"{self.where}: expected more than {n_table} bytes, found {len(self.data)}; {RESTORE}"
            )
        table = self.file.tail[:-CRC_BYTES]
        stated, found = int.from_bytes(self.file.tail[-CRC_BYTES:], "little"), crc32c(table)
        if found != stated:
            raise CorruptError(
                f"{self.where}: expected a table of checksum {stated:08x}, found {found:08x}; {RESTORE}"
            )
        entries = np.frombuffer(table, ENTRY).reshape(layout.shard_chunks, layout.n_planes, 2)
        present = entries[: self.n_chunks]
        self.n_data = n_data
        filled = entries[entries[:, 0, 0] != ABSENT]  # by a commit since, too
        self.end = int(filled.sum(axis=2).max(initial=0))
        if (present > n_data).any() or (present.sum(axis=2) > n_data).any():
            raise CorruptError(
                f"{self.where}: expected {self.n_chunks} chunks a plane within {n_data} bytes, "
                f"found a table that points elsewhere; {RESTORE}"
            )
        return present.astype(np.int64)

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """CRC32C of the chunks `start:stop` as found; what is behind the items of the manifest
        counts as zeros."""
        raise NotImplementedError

    def is_sound(self, chunk: int) -> bool:
        """Whether a chunk is right by checksums of its own, in every plane; raw ones have none."""
        return False


class RawShard(_Shard):
    """An uncompressed shard.

    Attributes
    ----------
    items
        Read-only view `(n_items, *item_shape)` of the map, strided if the column is split. Whoever
        holds a view of it keeps the map alive.
    memory
        The bytes of the items of the first plane, which is all of them unless the column is split.
    """

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        super().__init__(root, layout, number, n_items)
        self.plane_offsets = self._check_planes()
        self.items = self._view()
        start = int(self.plane_offsets[0])
        self.memory = memoryview(self.data)[start : start + n_items * layout.plane_item_bytes]

    def _check_planes(self) -> np.ndarray:
        """Byte offset of every plane; raises unless chunks follow each other, planes at equal
        distances."""
        offsets = self.entries[0, :, 0]
        stride = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
        expected = raw_entries(self.layout, self.n_chunks, stride).astype(np.int64)
        expected[:, :, 0] += offsets[0]
        if not np.array_equal(self.entries, expected) or offsets[0] % self.layout.dtype.itemsize:
            raise CorruptError(
                f"{self.where}: expected chunks in order, found another table; {RESTORE}"
            )
        return offsets

    def _view(self) -> np.ndarray:
        layout, offsets = self.layout, self.plane_offsets
        plane_stride = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
        shape = (*layout.plane_grid, self.n_items, *layout.plane_item_shape)
        strides = (
            *_c_strides(layout.plane_grid, plane_stride),
            *_c_strides((self.n_items, *layout.plane_item_shape), layout.dtype.itemsize),
        )
        planes = np.ndarray(shape, layout.dtype, self.data, int(offsets[0]), strides)
        items = layout.planes_as_items(planes)
        items.flags.writeable = False
        return items

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """See `_Shard`: a tail that has grown since still has the checksum that it had."""
        layout, n_bytes = self.layout, self.layout.chunk_bytes
        memory, first = memoryview(self.data), int(self.plane_offsets[plane])
        whole = min(stop, self.n_items // layout.chunk_items)
        sums = [
            crc32c(memory[i : i + n_bytes])
            for i in range(first + start * n_bytes, first + whole * n_bytes, n_bytes)
        ]
        if whole < stop:
            rest = memory[first + whole * n_bytes : first + self.n_items * layout.plane_item_bytes]
            sums.append(crc32c(bytes(n_bytes - len(rest)), crc32c(rest)))
        return sums

    def byte_ranges(self, start: int, stop: int, planes: np.ndarray) -> list[tuple[int, int]]:
        """Where the items `start:stop` of some planes lie in the file."""
        n = self.layout.plane_item_bytes
        return [
            (offset + start * n, offset + stop * n)
            for offset in self.plane_offsets[planes].tolist()
        ]


class CompressedShard(_Shard):
    """A compressed shard."""

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """See `_Shard`: of the compressed bytes; another number if what stands behind them says
        otherwise.

        Of a last chunk that is not whole, that of its decoded items: it may have been compressed
        again since, with more items, by a commit or by one that did not come to its end.
        """
        return [self._checksum(chunk, plane) for chunk in range(start, stop)]

    def _checksum(self, chunk: int, plane: int) -> int:
        offset, n_bytes = self.entries[chunk, plane].tolist()
        packed, stated = split_compressed(self.data[offset : offset + n_bytes])
        found = crc32c(packed)
        n_items = self.n_items - chunk * self.layout.chunk_items
        if found == stated and n_items >= self.layout.chunk_items:
            return found
        items = np.empty(self.layout.chunk_bytes, np.uint8)
        try:
            self.read_chunk(chunk, plane, items)
        except CorruptError:
            return found ^ 0xFFFFFFFF
        items[n_items * self.layout.plane_item_bytes :] = 0
        return crc32c(items)

    def is_sound(self, chunk: int) -> bool:
        """See `_Shard`."""
        items = np.empty(self.layout.chunk_bytes, np.uint8)
        try:
            for plane in range(self.layout.n_planes):
                self.read_chunk(chunk, plane, items)
        except CorruptError:
            return False
        return True

    def read_chunk(self, chunk: int, plane: int, out: np.ndarray) -> None:
        """Decode one chunk into `out`, uint8 `(chunk_bytes,)`; raises CorruptError if its bytes are
        damaged."""
        offset, n_bytes = self.entries[chunk, plane].tolist()
        where = f"{self.where}, chunk {chunk}" + (
            f", plane {plane}" if self.layout.n_planes > 1 else ""
        )
        parse_codec(self.layout.codec).decode(self.data[offset : offset + n_bytes], out, where)

    def byte_ranges(self, start: int, stop: int, planes: np.ndarray) -> list[tuple[int, int]]:
        """Where the chunks with the items `start:stop` of some planes lie in the file."""
        k = self.layout.chunk_items
        entries = self.entries[start // k : (stop - 1) // k + 1, planes].reshape(-1, 2)
        return [(offset, offset + n) for offset, n in entries.tolist()]


def _c_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) * item_bytes for i in range(len(shape)))
