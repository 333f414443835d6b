"""The bytes of one shard that is being written (`schema.py` specifies them).

`RawBuilder` and `CompressedBuilder` write whole chunks into a working file and publish it, full or as a
tail, under its final name. Neither knows rows or columns.
"""

import math
import os
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.codecs import parse_codec, split_compressed
from store.format.layout import ArrayLayout
from store.format.shard_table import ENTRY, encode_table, raw_entries
from store.read.shard import CompressedShard, RawShard
from store.write.files import Files

__all__ = ["CompressedBuilder", "RawBuilder"]


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
    """Writes raw chunks. The working file has room for full planes (it is sparse until they fill);
    a tail is published as a compact copy, so the builder can go on after a commit.
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
        table = encode_table(
            self.layout, raw_entries(self.layout, self.n_chunks, self._plane_bytes)
        )
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


class CompressedBuilder(_Builder):
    """Writes compressed chunks, one behind the other."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        super().__init__(files, layout, working)
        self._entries = np.empty((0, layout.n_planes, 2), ENTRY)
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
        """Compressed chunks one behind the other, where each lies if they begin at `position`, and
        their checksums."""
        layout, codec = self.layout, parse_codec(self.layout.codec)
        planes = _planes(items, layout)
        cuts = range(0, len(planes[0]), layout.chunk_bytes)
        packed = [
            codec.encode(p[i : i + layout.chunk_bytes], layout.dtype.itemsize)
            for i in cuts
            for p in planes
        ]
        sizes = np.array([len(data) for data in packed], ENTRY)
        offsets = position + np.cumsum(sizes) - sizes
        shape = (len(cuts), layout.n_planes)
        sums = np.array([split_compressed(data)[1] for data in packed], np.uint32).reshape(shape)
        return b"".join(packed), np.stack([offsets, sizes], 1).reshape(*shape, 2), sums

    def adopt(self, path: Path, shard: CompressedShard, n_chunks: int) -> None:
        """Start from the first `n_chunks` chunks a plane of the committed shard at `path`."""
        self._entries = shard.entries[:n_chunks].astype(ENTRY)
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
    cut = np.moveaxis(
        items, [axis + 1 for axis in layout.split_axes], range(len(layout.split_axes))
    )
    planes = np.ascontiguousarray(cut).reshape(
        layout.n_planes, math.prod(cut.shape[len(layout.split_axes) :])
    )
    return list(planes.view(np.uint8))
