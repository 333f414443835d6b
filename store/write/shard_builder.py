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
from store.format.layout import ArrayLayout
from store.format.shard_table import ENTRY, encode_table, raw_entries
from store.read.shard import CompressedShard, RawShard
from store.write.files import Files, opened

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

    def _publish(self, target: Path, entries: np.ndarray, position: int) -> None:
        """Write the table at `position`, and put the working file at `target`."""
        self.files.write(self._fd, encode_table(self.layout, entries), position)
        self.files.sync(self._fd)
        self.close()
        self.files.rename(self.working, target)

    @contextmanager
    def _copy_at(self, target: Path) -> Iterator[int]:
        """Give the descriptor of a new file, which is put at `target` when the block has ended."""
        copy = self.working.with_suffix(".tail")
        with self.files.created(copy) as fd:
            yield fd
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
        """Write whole chunks; return their checksums.

        Parameters
        ----------
        items
            `(n * chunk_items, *item_shape)`, C-contiguous, with `n <= free_chunks`.

        Returns
        -------
        uint32 `(n, n_planes)`
        """
        planes = _planes(items, self.layout)
        position = self.n_chunks * self.layout.chunk_bytes
        for plane in planes:
            self.files.write(self._fd, plane.data, position)
            self.files.start_sync(self._fd, position, plane.nbytes)
            position += self._plane_bytes
        self.n_chunks += len(items) // self.layout.chunk_items
        return _checksums(planes, self.layout)

    def adopt(self, root: Path, number: int, n_items: int, n_chunks: int) -> None:
        """Begin with the first `n_chunks` chunks a plane of a committed shard of `n_items` items.

        Raises
        ------
        CorruptError
            The shard's file is damaged.
        """
        shard = RawShard(root, self.layout, number, n_items)
        n_bytes = n_chunks * self.layout.chunk_bytes
        position = 0
        with opened(root / self.layout.shard_path(number)) as source:
            for offset in shard.plane_offsets.tolist():
                self.files.copy(source, offset, self._fd, position, n_bytes)
                position += self._plane_bytes
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """Finish a full shard and put the working file itself at `target`."""
        entries = raw_entries(self.layout, self.n_chunks, self._plane_bytes)
        self._publish(target, entries, self.layout.n_planes * self._plane_bytes)

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
        padded = _planes(_pad_chunk(rest, self.layout), self.layout)
        written = self.n_chunks * self.layout.chunk_bytes
        stride = written + len(padded[0])
        source = 0
        position = 0
        with self._copy_at(target) as fd:
            for plane in padded:
                self.files.copy(self._fd, source, fd, position, written)
                self.files.write(fd, plane.data, position + written)
                source += self._plane_bytes
                position += stride
            n_chunks = stride // self.layout.chunk_bytes
            table = encode_table(self.layout, raw_entries(self.layout, n_chunks, stride))
            self.files.write(fd, table, position)
        return _checksums(padded, self.layout)


class CompressedBuilder(_Builder):
    """Writes compressed chunks, one after the other."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        super().__init__(files, layout, working)
        self._entries = np.empty((0, layout.n_planes, 2), ENTRY)
        self._end = 0

    def write(self, items: np.ndarray) -> np.ndarray:
        """See `RawBuilder`."""
        packed = self._compress(items)
        self._entries = self._entries_with(packed)
        data = b"".join(packed)
        self.files.write(self._fd, data, self._end)
        self.files.start_sync(self._fd, self._end, len(data))
        self._end += len(data)
        self.n_chunks = len(self._entries)
        sums = [stated for _, stated in map(split_compressed, packed)]
        return _by_plane(sums, self.layout)

    def _compress(self, items: np.ndarray) -> list[bytes]:
        """The chunks of some items."""
        codec = parse_codec(self.layout.codec)
        chunks = _chunks(_planes(items, self.layout), self.layout)
        return [codec.encode(chunk, self.layout.dtype.itemsize) for chunk in chunks]

    def _entries_with(self, packed: list[bytes]) -> np.ndarray:
        """The entries of the shard's table, with those of more chunks after its last one."""
        sizes = np.array([len(data) for data in packed], ENTRY)
        offsets = self._end + np.cumsum(sizes) - sizes
        entries = np.stack([offsets, sizes], axis=1)
        by_plane = entries.reshape(-1, self.layout.n_planes, 2)
        return np.concatenate([self._entries, by_plane])

    def adopt(self, root: Path, number: int, n_items: int, n_chunks: int) -> None:
        """See `RawBuilder`."""
        shard = CompressedShard(root, self.layout, number, n_items)
        self._entries = shard.entries[:n_chunks].astype(ENTRY)
        ends = self._entries.sum(axis=2)
        self._end = int(ends.max(initial=0))
        with opened(root / self.layout.shard_path(number)) as source:
            self.files.copy(source, 0, self._fd, 0, self._end)
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """See `RawBuilder`."""
        self._publish(target, self._entries, self._end)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """See `RawBuilder`."""
        padded = _pad_chunk(rest, self.layout)
        packed = self._compress(padded)
        data = b"".join(packed)
        with self._copy_at(target) as fd:
            self.files.copy(self._fd, 0, fd, 0, self._end)
            self.files.write(fd, data, self._end)
            table = encode_table(self.layout, self._entries_with(packed))
            self.files.write(fd, table, self._end + len(data))
        return _checksums(_planes(padded, self.layout), self.layout)


def _pad_chunk(items: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """Fewer items than a chunk holds, followed by zeros; no items stay none."""
    n_items = layout.chunk_items if len(items) else 0
    padded = np.zeros((n_items, *layout.item_shape), layout.dtype)
    padded[: len(items)] = items
    return padded


def _checksums(planes: list[np.ndarray], layout: ArrayLayout) -> np.ndarray:
    """CRC32C of every chunk: uint32 `(n, n_planes)`."""
    return _by_plane([crc32c(chunk.data) for chunk in _chunks(planes, layout)], layout)


def _by_plane(sums: list[int], layout: ArrayLayout) -> np.ndarray:
    return np.array(sums, np.uint32).reshape(-1, layout.n_planes)


def _chunks(planes: list[np.ndarray], layout: ArrayLayout) -> list[np.ndarray]:
    """The bytes of every chunk: the first of each plane, then the second of each plane, ..."""
    n_bytes = layout.chunk_bytes
    starts = range(0, len(planes[0]), n_bytes)
    return [plane[start : start + n_bytes] for start in starts for plane in planes]


def _planes(items: np.ndarray, layout: ArrayLayout) -> list[np.ndarray]:
    """The bytes of every plane of `items`, uint8, plane after plane."""
    axes = [axis + 1 for axis in layout.split_axes]
    split_first = np.moveaxis(items, axes, range(len(axes)))
    plane_shape = split_first.shape[len(axes) :]
    planes = np.ascontiguousarray(split_first).reshape(layout.n_planes, math.prod(plane_shape))
    return list(planes.view(np.uint8))
