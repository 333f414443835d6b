"""The bytes of one shard that is being written (`schema.py` specifies them).

`RawBuilder` and `CompressedBuilder` write whole chunks into a working file and publish it, full or
as a tail, under its final name. Neither knows rows or columns.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.codecs import parse_codec, split_compressed
from store.format.schema import ArrayLayout
from store.format.shard_table import ENTRY, encode_table, raw_entries
from store.read.shard import CompressedShard, RawShard
from store.write.files import Files

__all__ = ["CompressedBuilder", "RawBuilder"]


class _Builder:
    """A shard that is being written, whole chunks at a time, in a working file that no one reads.

    Attributes
    ----------
    n_chunks
        Chunks in each plane so far.
    """

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        self.files = files
        self.layout = layout
        self.working = working
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

    def adopt(self, root: Path, number: int, n_items: int, n_chunks: int) -> None:
        """Begin with the first `n_chunks` chunks a plane of a committed shard of `n_items` items.

        Raises
        ------
        CorruptError
            The shard's file is damaged.
        """
        raise NotImplementedError

    def publish_full(self, target: Path) -> None:
        """Finish a full shard and put the working file itself at `target`."""
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

    def _copy_in(self, path: Path, ranges: list[tuple[int, int, int]]) -> None:
        """Copy ranges (position there, position here, bytes) of a file into the working file."""
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for start, position, n_bytes in ranges:
                self.files.copy(source, start, self._fd, position, n_bytes)
        finally:
            os.close(source)

    def _finish(self, fd: int, entries: np.ndarray, position: int) -> None:
        self.files.write(fd, encode_table(self.layout, entries), position)
        self.files.sync(fd)

    def _publish(self, target: Path) -> None:
        self.close()
        self.files.rename(self.working, target)

    @contextmanager
    def _copy_at(self, target: Path) -> Iterator[int]:
        """The descriptor of a new file, which is put at `target` when the block has ended."""
        copy = self.working.with_suffix(".tail")
        fd = self.files.create(copy)
        try:
            yield fd
        finally:
            os.close(fd)
        self.files.rename(copy, target)


class RawBuilder(_Builder):
    """Writes raw chunks.

    The working file has room for full planes (it is sparse until they fill); a tail is published as
    a compact copy, so the builder can continue after a commit.
    """

    @property
    def _plane_bytes(self) -> int:
        return self.layout.shard_chunks * self.layout.chunk_bytes

    def write(self, items: np.ndarray) -> np.ndarray:
        """See `_Builder`."""
        planes = _planes(items, self.layout)
        position = self.n_chunks * self.layout.chunk_bytes
        for plane in planes:
            self.files.write(self._fd, plane.data, position)
            self.files.start_sync(self._fd, position, plane.nbytes)
            position += self._plane_bytes
        self.n_chunks += len(items) // self.layout.chunk_items
        return _checksums(planes, self.layout)

    def adopt(self, root: Path, number: int, n_items: int, n_chunks: int) -> None:
        """See `_Builder`."""
        shard = RawShard(root, self.layout, number, n_items)
        n_bytes = n_chunks * self.layout.chunk_bytes
        ranges = [
            (offset, plane * self._plane_bytes, n_bytes)
            for plane, offset in enumerate(shard.plane_offsets.tolist())
        ]
        self._copy_in(root / self.layout.shard_path(number), ranges)
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """See `_Builder`."""
        entries = raw_entries(self.layout, self.n_chunks, self._plane_bytes)
        self._finish(self._fd, entries, self.layout.n_planes * self._plane_bytes)
        self._publish(target)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """See `_Builder`; the copy is compact, its planes without gaps."""
        layout = self.layout
        padded = _planes(_pad_chunk(rest, layout), layout)
        written = self.n_chunks * layout.chunk_bytes
        stride = written + len(padded[0])
        with self._copy_at(target) as fd:
            for number, plane in enumerate(padded):
                position = number * stride
                self.files.copy(self._fd, number * self._plane_bytes, fd, position, written)
                self.files.write(fd, plane.data, position + written)
            entries = raw_entries(layout, stride // layout.chunk_bytes, stride)
            self._finish(fd, entries, layout.n_planes * stride)
        return _checksums(padded, layout)


class CompressedBuilder(_Builder):
    """Writes compressed chunks, one after the other."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        super().__init__(files, layout, working)
        self._entries = np.empty((0, layout.n_planes, 2), ENTRY)
        self._end = 0

    def write(self, items: np.ndarray) -> np.ndarray:
        """See `_Builder`."""
        data, entries, sums = self._encode(items)
        self.files.write(self._fd, data, self._end)
        self.files.start_sync(self._fd, self._end, len(data))
        self._end += len(data)
        self._entries = np.concatenate([self._entries, entries])
        self.n_chunks = len(self._entries)
        return sums

    def _encode(self, items: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Compressed chunks one after the other, their entries in the table, their checksums."""
        layout = self.layout
        codec = parse_codec(layout.codec)
        planes = _planes(items, layout)
        starts = range(0, len(planes[0]), layout.chunk_bytes)
        packed = [
            codec.encode(plane[start : start + layout.chunk_bytes], layout.dtype.itemsize)
            for start in starts
            for plane in planes
        ]
        shape = (len(starts), layout.n_planes)
        sizes = np.array([len(data) for data in packed], ENTRY)
        offsets = self._end + np.cumsum(sizes) - sizes
        entries = np.stack([offsets, sizes], 1).reshape(*shape, 2)
        sums = np.array([split_compressed(data)[1] for data in packed], np.uint32)
        return b"".join(packed), entries, sums.reshape(shape)

    def adopt(self, root: Path, number: int, n_items: int, n_chunks: int) -> None:
        """See `_Builder`."""
        shard = CompressedShard(root, self.layout, number, n_items)
        self._entries = shard.entries[:n_chunks].astype(ENTRY)
        self._end = int(self._entries.sum(axis=2).max(initial=0))
        self._copy_in(root / self.layout.shard_path(number), [(0, 0, self._end)])
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """See `_Builder`."""
        self._finish(self._fd, self._entries, self._end)
        self._publish(target)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """See `_Builder`."""
        padded = _pad_chunk(rest, self.layout)
        data, entries, _ = self._encode(padded)
        with self._copy_at(target) as fd:
            self.files.copy(self._fd, 0, fd, 0, self._end)
            self.files.write(fd, data, self._end)
            self._finish(fd, np.concatenate([self._entries, entries]), self._end + len(data))
        return _checksums(_planes(padded, self.layout), self.layout)


def _pad_chunk(items: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """Fewer items than a chunk holds, followed by zeros; no items stay none."""
    padded = np.zeros((layout.chunk_items if len(items) else 0, *layout.item_shape), layout.dtype)
    padded[: len(items)] = items
    return padded


def _checksums(planes: list[np.ndarray], layout: ArrayLayout) -> np.ndarray:
    """CRC32C of every chunk: uint32 `(n, n_planes)`."""
    starts = range(0, len(planes[0]), layout.chunk_bytes)
    sums = [
        [crc32c(plane.data[start : start + layout.chunk_bytes]) for plane in planes]
        for start in starts
    ]
    return np.array(sums, np.uint32).reshape(len(starts), layout.n_planes)


def _planes(items: np.ndarray, layout: ArrayLayout) -> list[np.ndarray]:
    """The bytes of every plane of `items`, uint8, plane after plane."""
    if layout.n_planes == 1:
        return [np.ascontiguousarray(items).reshape(-1).view(np.uint8)]
    n_split = len(layout.split_axes)
    first = np.moveaxis(items, [axis + 1 for axis in layout.split_axes], range(n_split))
    plane_size = math.prod(first.shape[n_split:])
    planes = np.ascontiguousarray(first).reshape(layout.n_planes, plane_size)
    return list(planes.view(np.uint8))
