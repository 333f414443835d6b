"""The bytes of one shard that is being written (`layout.py` says where they lie).

`RawBuilder` and `CompressedBuilder` write whole chunks into a working file and publish it, full or
as a tail, under its final name. Neither knows rows or columns.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.codecs import parse_codec, split_compressed
from store.format.layout import ENTRY, ArrayLayout, encode_table, raw_entries
from store.write.files import Files, opened

__all__ = ["CompressedBuilder", "RawBuilder"]


class _Builder:
    """A shard that is being written, whole chunks at a time, in a file that no one reads."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        self.files = files
        self.layout = layout
        self.working = working
        self.n_chunks = 0  # in each plane so far
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
        self.files.rename_durably(self.working, target)

    @contextmanager
    def _copy_at(self, target: Path) -> Iterator[int]:
        """Give the descriptor of a new file, which is put at `target` when the block has ended."""
        copy = self.working.with_suffix(".tail")
        with self.files.created(copy) as fd:
            yield fd
        self.files.rename_durably(copy, target)


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

        `items` are `(n * chunk_items, *item_shape)`, C-contiguous, with `n <= free_chunks`; the
        checksums are uint32 `(n, n_planes)`.
        """
        planes = _planes(items, self.layout)
        position = self.n_chunks * self.layout.chunk_bytes
        for plane in planes:
            self.files.write(self._fd, plane.ravel().data, position)
            self.files.start_sync(self._fd, position, plane.nbytes)
            position += self._plane_bytes
        self.n_chunks += planes.shape[1]
        return _checksums(planes)

    def adopt(self, file: Path, entries: np.ndarray) -> None:
        """Begin with the chunks of a committed shard.

        `file` is of that shard; `entries` are the (offset, size) of its chunks,
        `(n_chunks, n_planes, 2)`.
        """
        self.n_chunks = len(entries)
        n_bytes = self.n_chunks * self.layout.chunk_bytes
        with opened(file) as source:
            for i, offset in enumerate(entries[0, :, 0].tolist()):
                self.files.copy(source, offset, self._fd, i * self._plane_bytes, n_bytes)

    def publish_full(self, target: Path) -> None:
        """Finish a full shard and put the working file itself at `target`."""
        entries = raw_entries(self.layout, self.n_chunks, self._plane_bytes)
        self._publish(target, entries, self.layout.n_planes * self._plane_bytes)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        """Put a copy of what is written, and of `rest` as one more padded chunk, at `target`.

        `rest` has the items that do not fill a chunk yet, `(n, *item_shape)` with
        `n < chunk_items`. Returns the padded chunk's checksums: uint32 `(1, n_planes)`, or
        `(0, n_planes)` without a rest.
        """
        padded = _planes(rest, self.layout)
        written = self.n_chunks * self.layout.chunk_bytes
        stride = written + padded[0].nbytes
        with self._copy_at(target) as fd:
            for i, plane in enumerate(padded):
                self.files.copy(self._fd, i * self._plane_bytes, fd, i * stride, written)
                self.files.write(fd, plane.ravel().data, i * stride + written)
            entries = raw_entries(self.layout, self.n_chunks + padded.shape[1], stride)
            end = self.layout.n_planes * stride
            self.files.write(fd, encode_table(self.layout, entries), end)
        return _checksums(padded)


class CompressedBuilder(_Builder):
    """Writes compressed chunks, one after the other."""

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        super().__init__(files, layout, working)
        self._entries = np.empty((0, layout.n_planes, 2), ENTRY)
        self._end = 0

    def write(self, items: np.ndarray) -> np.ndarray:
        packed = self._compress(_planes(items, self.layout))
        self._entries = self._entries_with(packed)
        data = b"".join(packed)
        self.files.write(self._fd, data, self._end)
        self.files.start_sync(self._fd, self._end, len(data))
        self._end += len(data)
        self.n_chunks = len(self._entries)
        sums = [stated for _, stated in map(split_compressed, packed)]
        return np.array(sums, np.uint32).reshape(-1, self.layout.n_planes)

    def _compress(self, planes: np.ndarray) -> list[bytes]:
        """The first chunk of each plane, then the second of each plane, ..."""
        codec = parse_codec(self.layout.codec)
        chunks = chain.from_iterable(planes.swapaxes(0, 1))
        return [codec.encode(chunk, self.layout.dtype.itemsize) for chunk in chunks]

    def _entries_with(self, packed: list[bytes]) -> np.ndarray:
        """The entries of the shard's table, with those of more chunks after its last one."""
        sizes = np.array(list(map(len, packed)), ENTRY)
        offsets = self._end + np.cumsum(sizes) - sizes
        entries = np.stack([offsets, sizes], axis=1)
        by_plane = entries.reshape(-1, self.layout.n_planes, 2)
        return np.concatenate([self._entries, by_plane])

    def adopt(self, file: Path, entries: np.ndarray) -> None:
        self.n_chunks = len(entries)
        self._entries = entries.astype(ENTRY)
        self._end = int(entries.sum(axis=2).max())
        with opened(file) as source:
            self.files.copy(source, 0, self._fd, 0, self._end)

    def publish_full(self, target: Path) -> None:
        self._publish(target, self._entries, self._end)

    def publish_tail(self, target: Path, rest: np.ndarray) -> np.ndarray:
        padded = _planes(rest, self.layout)
        packed = self._compress(padded)
        data = b"".join(packed)
        with self._copy_at(target) as fd:
            self.files.copy(self._fd, 0, fd, 0, self._end)
            self.files.write(fd, data, self._end)
            table = encode_table(self.layout, self._entries_with(packed))
            self.files.write(fd, table, self._end + len(data))
        return _checksums(padded)


def _checksums(planes: np.ndarray) -> np.ndarray:
    """CRC32C of every chunk of `_planes`: uint32 `(n, n_planes)`."""
    return np.array([[crc32c(chunk.data) for chunk in plane] for plane in planes], np.uint32).T


def _planes(items: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """The chunks of `items`: uint8 `(n_planes, n, chunk_bytes)`, the last padded with zeros."""
    n_missing = -len(items) % layout.chunk_items
    if n_missing:
        padding = np.zeros((n_missing, *layout.item_shape), layout.dtype)
        items = np.concatenate([items, padding])
    planes = np.ascontiguousarray(layout.items_as_planes(items))
    return planes.reshape(-1).view(np.uint8).reshape(layout.n_planes, -1, layout.chunk_bytes)
