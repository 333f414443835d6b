"""The bytes of one shard: the only module that knows them (`schema.py` specifies them).

`RawShard` maps a committed file and shows its items as one read-only view; `CodedShard` gives its compressed
chunks. `RawBuilder` and `CodedBuilder` write whole chunks into a working file and publish it, full or as a
tail, under its final name. None of them knows rows or columns.
"""

import math
import os
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.errors import CorruptError
from store.format.codecs import parse_codec, split_coded
from store.format.schema import ArrayLayout
from store.read.mapped_file import MappedFile
from store.write.files import Files

__all__ = ["RESTORE", "CodedBuilder", "CodedShard", "RawBuilder", "RawShard"]

_ENTRY = np.dtype("<u8")
_ABSENT = np.uint64(2**64 - 1)
_CRC_BYTES = 4
RESTORE = "restore it from a copy, or see python -m store repair"


def table_bytes(layout: ArrayLayout) -> int:
    """Size of the table behind the chunks: (offset, size) of every chunk of a full shard, and a CRC32C."""
    return layout.shard_chunks * layout.n_planes * 2 * _ENTRY.itemsize + _CRC_BYTES


def encode_table(layout: ArrayLayout, entries: np.ndarray) -> bytes:
    """The table of a shard whose first chunks have these (offset, size): uint64 `(n_chunks, n_planes, 2)`."""
    table = np.full((layout.shard_chunks, layout.n_planes, 2), _ABSENT, _ENTRY)
    table[: len(entries)] = entries
    data = table.tobytes()
    return data + crc32c(data).to_bytes(_CRC_BYTES, "little")


def raw_entries(layout: ArrayLayout, n_chunks: int, plane_stride: int) -> np.ndarray:
    """(offset, size) of the chunks of a raw shard with planes `plane_stride` bytes apart."""
    entries = np.empty((n_chunks, layout.n_planes, 2), _ENTRY)
    entries[:, :, 0] = np.arange(n_chunks)[:, None] * layout.chunk_bytes + np.arange(layout.n_planes) * plane_stride
    entries[:, :, 1] = layout.chunk_bytes
    return entries


class _Shard:
    """A committed shard file, mapped, and its table.

    Parameters
    ----------
    root
        The store.
    layout, number
        Which array, which of its shards.
    n_items
        Items that the store's manifest says this shard holds; a longer file is fine (a writer may have
        committed since), a shorter one is not.

    Attributes
    ----------
    n_data, end
        Bytes before the table, and where the last chunk ends; they are equal unless something was put between.

    Raises
    ------
    CorruptError
        The file is missing, too short, or its table is damaged. Checked against the file's size before any
        byte is touched, so that no access can end in SIGBUS.
    """

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        self.where = f"array {layout.path!r}, shard {number}"
        self.layout, self.n_items, self.n_chunks = layout, n_items, layout.n_chunks(n_items)
        path = root / layout.shard_path(number)
        try:
            self.file = MappedFile(path, table_bytes(layout))
        except OSError as error:
            raise CorruptError(f"{self.where}: expected {path}, found: {error.strerror}; {RESTORE}") from error
        self.data = self.file.bytes
        self.entries = self._read_table()

    def _read_table(self) -> np.ndarray:
        """(offset, size) of every chunk that holds items: int64 `(n_chunks, n_planes, 2)`."""
        layout, n_table = self.layout, table_bytes(self.layout)
        n_data = len(self.data) - n_table
        if n_data <= 0:
            raise CorruptError(f"{self.where}: expected more than {n_table} bytes, found {len(self.data)}; {RESTORE}")
        table = self.file.tail[:-_CRC_BYTES]
        stated, found = int.from_bytes(self.file.tail[-_CRC_BYTES:], "little"), crc32c(table)
        if found != stated:
            raise CorruptError(f"{self.where}: expected a table of checksum {stated:08x}, found {found:08x}; {RESTORE}")
        entries = np.frombuffer(table, _ENTRY).reshape(layout.shard_chunks, layout.n_planes, 2)
        present = entries[: self.n_chunks]
        self.n_data = n_data
        filled = entries[entries[:, 0, 0] != _ABSENT]  # by a commit since, too
        self.end = int(filled.sum(axis=2).max(initial=0))
        if (present > n_data).any() or (present.sum(axis=2) > n_data).any():
            raise CorruptError(
                f"{self.where}: expected {self.n_chunks} chunks a plane within {n_data} bytes, "
                f"found a table that points elsewhere; {RESTORE}"
            )
        return present.astype(np.int64)

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """CRC32C of the chunks `start:stop` as found; what is behind the items of the manifest counts as zeros."""
        raise NotImplementedError

    def is_sound(self, chunk: int) -> bool:
        """Whether a chunk is right by checksums of its own, in every plane; raw ones have none."""
        return False


class RawShard(_Shard):
    """An uncompressed shard.

    Attributes
    ----------
    items
        Read-only view `(n_items, *item_shape)` of the map, strided if the column is split. Whoever holds
        a view of it keeps the map alive.
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
        """Byte offset of every plane; raises unless chunks follow each other, planes at equal distances."""
        offsets = self.entries[0, :, 0]
        stride = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
        expected = raw_entries(self.layout, self.n_chunks, stride).astype(np.int64)
        expected[:, :, 0] += offsets[0]
        if not np.array_equal(self.entries, expected) or offsets[0] % self.layout.dtype.itemsize:
            raise CorruptError(f"{self.where}: expected chunks in order, found another table; {RESTORE}")
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
            crc32c(memory[i : i + n_bytes]) for i in range(first + start * n_bytes, first + whole * n_bytes, n_bytes)
        ]
        if whole < stop:
            rest = memory[first + whole * n_bytes : first + self.n_items * layout.plane_item_bytes]
            sums.append(crc32c(bytes(n_bytes - len(rest)), crc32c(rest)))
        return sums

    def byte_ranges(self, start: int, stop: int, planes: np.ndarray) -> list[tuple[int, int]]:
        """Where the items `start:stop` of some planes lie in the file."""
        n = self.layout.plane_item_bytes
        return [(offset + start * n, offset + stop * n) for offset in self.plane_offsets[planes].tolist()]


class CodedShard(_Shard):
    """A compressed shard."""

    def checksums(self, start: int, stop: int, plane: int) -> list[int]:
        """See `_Shard`: of the compressed bytes; another number if what stands behind them says otherwise.

        Of a last chunk that is not whole, that of its decoded items: it may have been compressed again since, with
        more items, by a commit or by one that did not come to its end.
        """
        return [self._checksum(chunk, plane) for chunk in range(start, stop)]

    def _checksum(self, chunk: int, plane: int) -> int:
        offset, n_bytes = self.entries[chunk, plane].tolist()
        packed, stated = split_coded(self.data[offset : offset + n_bytes])
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
        """Decode one chunk into `out`, uint8 `(chunk_bytes,)`; raises CorruptError if its bytes are damaged."""
        offset, n_bytes = self.entries[chunk, plane].tolist()
        where = f"{self.where}, chunk {chunk}" + (f", plane {plane}" if self.layout.n_planes > 1 else "")
        parse_codec(self.layout.codec).decode(self.data[offset : offset + n_bytes], out, where)

    def byte_ranges(self, start: int, stop: int, planes: np.ndarray) -> list[tuple[int, int]]:
        """Where the chunks with the items `start:stop` of some planes lie in the file."""
        k = self.layout.chunk_items
        entries = self.entries[start // k : (stop - 1) // k + 1, planes].reshape(-1, 2)
        return [(offset, offset + n) for offset, n in entries.tolist()]


def _c_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) * item_bytes for i in range(len(shape)))


class _Builder:
    """A shard that is being written, whole chunks at a time, in a working file nobody reads."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        self.files, self.layout, self.working = files, layout, working
        self.n_chunks = 0
        self._fd = files.create(working)

    @property
    def free_chunks(self) -> int:
        return self.layout.shard_chunks - self.n_chunks

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, items: np.ndarray) -> np.ndarray:
        """Write whole chunks; return their checksums.

        Parameters
        ----------
        items
            `(n * chunk_items, *item_shape)`, C-contiguous, with `n <= free_chunks`.

        Returns
        -------
        uint32 `(n, n_planes)`
        """
        raise NotImplementedError

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """Put a copy of what is written, and of `rest` as one more padded chunk, at `target`.

        Parameters
        ----------
        rest
            `(n, *item_shape)` with `n < chunk_items`: the items that do not fill a chunk yet.

        Returns
        -------
        The padded chunk's checksums: uint32 `(1, n_planes)`, or `(0, n_planes)` without a rest.
        """
        raise NotImplementedError

    def _finish(self, fd: int, table: bytes, position: int) -> None:
        self.files.write(fd, table, position)
        self.files.sync(fd)


class RawBuilder(_Builder):
    """Writes raw chunks. The working file has room for full planes (it is sparse until they fill); a tail is
    published as a compact copy, so the builder can go on after a commit.
    """

    @property
    def _plane_bytes(self) -> int:
        return self.layout.shard_chunks * self.layout.chunk_bytes

    def write(self, items: np.ndarray) -> np.ndarray:
        """See `_Builder`."""
        planes = _planes(items, self.layout)
        position = self.n_chunks * self.layout.chunk_bytes
        for plane, data in enumerate(planes):
            self.files.write(self._fd, data, plane * self._plane_bytes + position)
            self.files.start_sync(self._fd, plane * self._plane_bytes + position, data.nbytes)
        self.n_chunks += len(items) // self.layout.chunk_items
        return _whole_checksums(planes, self.layout)

    def adopt(self, path: Path, shard: RawShard, n_chunks: int) -> None:
        """Start from the first `n_chunks` chunks a plane of the committed shard at `path`."""
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for plane, offset in enumerate(shard.plane_offsets.tolist()):
                n_bytes = n_chunks * self.layout.chunk_bytes
                self.files.copy(source, offset, self._fd, plane * self._plane_bytes, n_bytes)
        finally:
            os.close(source)
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """Finish a full shard and put the working file itself at `target`."""
        table = encode_table(self.layout, raw_entries(self.layout, self.n_chunks, self._plane_bytes))
        self._finish(self._fd, table, self.layout.n_planes * self._plane_bytes)
        self.close()
        self.files.rename(self.working, target)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """See `_Builder`; the copy is compact, its planes without gaps."""
        layout, copy = self.layout, self.working.with_suffix(".tail")
        padded = _planes(pad_chunk(rest, layout), layout)
        n_chunks = self.n_chunks + bool(len(rest))
        stride, written = n_chunks * layout.chunk_bytes, self.n_chunks * layout.chunk_bytes
        fd = self.files.create(copy)
        try:
            for plane, data in enumerate(padded):
                self.files.copy(self._fd, plane * self._plane_bytes, fd, plane * stride, written)
                self.files.write(fd, data, plane * stride + written)
            table = encode_table(layout, raw_entries(layout, n_chunks, stride))
            self._finish(fd, table, layout.n_planes * stride)
        finally:
            os.close(fd)
        self.files.rename(copy, target)
        return _whole_checksums(padded, layout)


class CodedBuilder(_Builder):
    """Writes compressed chunks, one behind the other."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        super().__init__(files, layout, working)
        self._entries = np.empty((0, layout.n_planes, 2), _ENTRY)
        self._end = 0

    def write(self, items: np.ndarray) -> np.ndarray:
        """See `_Builder`."""
        data, entries, sums = self._encode(items, self._end)
        self.files.write(self._fd, data, self._end)
        self.files.start_sync(self._fd, self._end, len(data))
        self._end += len(data)
        self._entries = np.concatenate([self._entries, entries])
        self.n_chunks = len(self._entries)
        return sums

    def _encode(self, items: np.ndarray, position: int) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Compressed chunks one behind the other, where each lies if they begin at `position`, and their checksums."""
        layout, codec = self.layout, parse_codec(self.layout.codec)
        planes = _planes(items, layout)
        cuts = range(0, len(planes[0]), layout.chunk_bytes)
        packed = [codec.encode(p[i : i + layout.chunk_bytes], layout.dtype.itemsize) for i in cuts for p in planes]
        sizes = np.array([len(data) for data in packed], _ENTRY)
        offsets = position + np.cumsum(sizes) - sizes
        shape = (len(cuts), layout.n_planes)
        sums = np.array([split_coded(data)[1] for data in packed], np.uint32).reshape(shape)
        return b"".join(packed), np.stack([offsets, sizes], 1).reshape(*shape, 2), sums

    def adopt(self, path: Path, shard: CodedShard, n_chunks: int) -> None:
        """Start from the first `n_chunks` chunks a plane of the committed shard at `path`."""
        self._entries = shard.entries[:n_chunks].astype(_ENTRY)
        self._end = int(self._entries.sum(axis=2).max(initial=0))
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.files.copy(source, 0, self._fd, 0, self._end)
        finally:
            os.close(source)
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """Finish a full shard and put the working file itself at `target`."""
        self._finish(self._fd, encode_table(self.layout, self._entries), self._end)
        self.close()
        self.files.rename(self.working, target)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """See `_Builder`."""
        copy = self.working.with_suffix(".tail")
        padded = pad_chunk(rest, self.layout)
        data, entries, _ = self._encode(padded, self._end)
        fd = self.files.create(copy)
        try:
            self.files.copy(self._fd, 0, fd, 0, self._end)
            self.files.write(fd, data, self._end)
            table = encode_table(self.layout, np.concatenate([self._entries, entries]))
            self._finish(fd, table, self._end + len(data))
        finally:
            os.close(fd)
        self.files.rename(copy, target)
        return _whole_checksums(_planes(padded, self.layout), self.layout)


def pad_chunk(items: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """Fewer items than a chunk holds, with zeros behind them; none stay none."""
    padded = np.zeros((layout.chunk_items if len(items) else 0, *layout.item_shape), layout.dtype)
    padded[: len(items)] = items
    return padded


def _whole_checksums(planes: list[np.ndarray], layout: ArrayLayout) -> np.ndarray:
    starts = range(0, len(planes[0]), layout.chunk_bytes)
    sums = [[crc32c(plane[i : i + layout.chunk_bytes]) for plane in planes] for i in starts]
    return np.array(sums, np.uint32).reshape(len(starts), layout.n_planes)


def _planes(items: np.ndarray, layout: ArrayLayout) -> list[np.ndarray]:
    """The bytes of every plane of `items`, plane after plane."""
    if layout.n_planes == 1:
        return [np.ascontiguousarray(items).reshape(-1).view(np.uint8)]
    cut = np.moveaxis(items, [axis + 1 for axis in layout.split_axes], range(len(layout.split_axes)))
    planes = np.ascontiguousarray(cut).reshape(layout.n_planes, math.prod(cut.shape[len(layout.split_axes) :]))
    return list(planes.view(np.uint8))
