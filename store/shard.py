"""The bytes of one shard: the only module that knows them (`schema.py` specifies them).

`Shard` maps a committed file and shows its items as one read-only view. `ShardBuilder` writes whole chunks
into a working file and publishes it, full or as a tail, under its final name. Neither knows rows or columns.
"""

import math
import mmap
import os
from pathlib import Path

import google_crc32c
import numpy as np

from store.errors import CorruptError
from store.files import Files
from store.schema import ArrayLayout

__all__ = ["Shard", "ShardBuilder", "checksums"]

_ENTRY = np.dtype("<u8")
_ABSENT = np.uint64(2**64 - 1)
_CRC_BYTES = 4
VERIFY = "run python -m store verify on this store and restore the file"


def index_bytes(layout: ArrayLayout) -> int:
    """Size of the table behind the chunks: (offset, size) of every chunk of a full shard, and a CRC32C."""
    return layout.shard_chunks * layout.n_planes * 2 * _ENTRY.itemsize + _CRC_BYTES


def encode_index(layout: ArrayLayout, n_chunks: int, plane_stride: int) -> bytes:
    """The table of a shard with `n_chunks` chunks a plane, planes `plane_stride` bytes apart."""
    table = np.full((layout.shard_chunks, layout.n_planes, 2), _ABSENT, _ENTRY)
    chunk = np.arange(n_chunks, dtype=_ENTRY)[:, None] * _ENTRY.type(layout.chunk_bytes)
    plane = np.arange(layout.n_planes, dtype=_ENTRY)[None, :] * _ENTRY.type(plane_stride)
    table[:n_chunks, :, 0] = chunk + plane
    table[:n_chunks, :, 1] = layout.chunk_bytes
    data = table.tobytes()
    return data + google_crc32c.value(data).to_bytes(_CRC_BYTES, "little")


class Shard:
    """A committed shard file, mapped.

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
    items
        Read-only view `(n_items, *item_shape)` of the map, strided if the column is split. Whoever holds
        a view of it keeps the map alive.

    Raises
    ------
    CorruptError
        The file is missing, too short, or its table is damaged. Checked before anything is mapped, so
        that no access can end in SIGBUS.
    """

    def __init__(self, root: Path, layout: ArrayLayout, number: int, n_items: int) -> None:
        self.where = f"array {layout.path!r}, shard {number}"
        self.layout = layout
        data = _map_file(root / layout.shard_path(number), index_bytes(layout), self.where)
        self.plane_offsets = self._check_table(data, n_items)
        self.items = self._view(data, n_items)

    def _check_table(self, data: np.ndarray, n_items: int) -> np.ndarray:
        """Byte offset of every plane; raises if the chunks of `n_items` are not there, in order."""
        layout, n_index = self.layout, index_bytes(self.layout)
        table, stated = data[-n_index:-_CRC_BYTES].tobytes(), int.from_bytes(data[-_CRC_BYTES:].tobytes(), "little")
        found = google_crc32c.value(table)
        if found != stated:
            raise CorruptError(f"{self.where}: expected a table of checksum {stated:08x}, found {found:08x}; {VERIFY}")
        entries = np.frombuffer(table, _ENTRY).reshape(layout.shard_chunks, layout.n_planes, 2)
        n_chunks = layout.n_chunks(n_items)
        present = entries[:n_chunks]
        steps = np.arange(n_chunks, dtype=_ENTRY)[:, None] * _ENTRY.type(layout.chunk_bytes)
        whole = (present[:, :, 1] == layout.chunk_bytes).all()
        in_order = whole and (present[:, :, 0] == present[0, :, 0] + steps).all()
        plane_offsets = present[0, :, 0].astype(np.int64)
        n_data, last = len(data) - n_index, n_chunks * layout.chunk_bytes
        if not in_order or plane_offsets.min() < 0 or plane_offsets.max() + last > n_data:
            raise CorruptError(
                f"{self.where}: expected {n_chunks} chunks of {layout.chunk_bytes} bytes a plane, in order, "
                f"found {n_data} bytes and another table; {VERIFY}"
            )
        return plane_offsets

    def _view(self, data: np.ndarray, n_items: int) -> np.ndarray:
        layout, offsets = self.layout, self.plane_offsets
        strides = np.diff(offsets)
        if (strides != strides[:1]).any() or offsets[0] % layout.dtype.itemsize:
            found = offsets[:4].tolist()
            raise CorruptError(f"{self.where}: expected planes at equal distances, found offsets {found}; {VERIFY}")
        stride = int(strides[0]) if len(strides) else 0
        shape = (layout.n_planes, n_items, *layout.plane_item_shape)
        item_strides = _c_strides((n_items, *layout.plane_item_shape), layout.dtype.itemsize)
        start = int(offsets[0])
        planes = np.ndarray(shape, layout.dtype, data, start, (stride, *item_strides))
        grid = np.ndarray(
            (*layout.plane_grid, *shape[1:]),
            layout.dtype,
            data,
            start,
            (*_c_strides(layout.plane_grid, stride), *planes.strides[1:]),
        )
        items = layout.planes_as_items(grid)
        items.flags.writeable = False
        return items


def _c_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    strides = [item_bytes]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides[: len(shape)]))


def _map_file(path: Path, at_least: int, where: str) -> np.ndarray:
    """A read-only map of a whole file, as bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CorruptError(f"{where}: expected {path}, found: {error.strerror}; {VERIFY}") from error
    try:
        n_bytes = os.fstat(fd).st_size
        if n_bytes <= at_least:
            raise CorruptError(f"{where}: expected more than {at_least} bytes, found {n_bytes}; {VERIFY}")
        return np.frombuffer(mmap.mmap(fd, n_bytes, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED), np.uint8)
    finally:
        os.close(fd)


class ShardBuilder:
    """A shard that is being written, whole chunks at a time, in a working file nobody reads.

    The working file has room for full planes (it is sparse until they fill); a tail is published as a
    compact copy, so the builder can go on after a commit.
    """

    def __init__(self, files: Files, layout: ArrayLayout, working: Path) -> None:
        self.files, self.layout, self.working = files, layout, working
        self.n_chunks = 0
        self._fd = files.create(working)
        self._plane_bytes = layout.shard_chunks * layout.chunk_bytes

    @property
    def free_chunks(self) -> int:
        return self.layout.shard_chunks - self.n_chunks

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
        layout, planes = self.layout, _planes(items, self.layout)
        position = self.n_chunks * layout.chunk_bytes
        for plane, data in enumerate(planes):
            self.files.write(self._fd, data, plane * self._plane_bytes + position)
        self.n_chunks += len(items) // layout.chunk_items
        return _whole_checksums(planes, layout)

    def adopt(self, shard: Path, plane_offsets: np.ndarray, n_chunks: int) -> None:
        """Start from the first `n_chunks` chunks a plane of a committed tail shard."""
        source = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for plane, offset in enumerate(plane_offsets.tolist()):
                n_bytes = n_chunks * self.layout.chunk_bytes
                self.files.copy(source, offset, self._fd, plane * self._plane_bytes, n_bytes)
        finally:
            os.close(source)
        self.n_chunks = n_chunks

    def publish_full(self, target: Path) -> None:
        """Finish a full shard and put the working file itself at `target`."""
        self.files.write(
            self._fd,
            encode_index(self.layout, self.n_chunks, self._plane_bytes),
            self.layout.n_planes * self._plane_bytes,
        )
        self.files.sync(self._fd)
        self.close()
        self.files.rename(self.working, target)

    def publish_tail(self, target: Path, rest: np.ndarray) -> None:
        """Put a compact copy of what is written, and of `rest` as one more padded chunk, at `target`.

        Parameters
        ----------
        rest
            `(n, *item_shape)` with `n < chunk_items`: the items that do not fill a chunk yet.
        """
        layout, copy = self.layout, self.working.with_suffix(".tail")
        n_chunks = self.n_chunks + bool(len(rest))
        stride, written = n_chunks * layout.chunk_bytes, self.n_chunks * layout.chunk_bytes
        fd = self.files.create(copy)
        try:
            for plane, data in enumerate(_planes(pad_chunk(rest, layout), layout)):
                self.files.copy(self._fd, plane * self._plane_bytes, fd, plane * stride, written)
                self.files.write(fd, data, plane * stride + written)
            self.files.write(fd, encode_index(layout, n_chunks, stride), layout.n_planes * stride)
            self.files.sync(fd)
        finally:
            os.close(fd)
        self.files.rename(copy, target)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def pad_chunk(items: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """Fewer items than a chunk holds, with zeros behind them; none stay none."""
    padded = np.zeros((layout.chunk_items if len(items) else 0, *layout.item_shape), layout.dtype)
    padded[: len(items)] = items
    return padded


def checksums(items: np.ndarray, layout: ArrayLayout) -> np.ndarray:
    """CRC32C of every chunk of `items`, the last one padded: uint32 `(n_chunks, n_planes)`."""
    n_whole = len(items) // layout.chunk_items * layout.chunk_items
    parts = [items[:n_whole], pad_chunk(items[n_whole:], layout)]
    return np.concatenate([_whole_checksums(_planes(part, layout), layout) for part in parts])


def _whole_checksums(planes: list[np.ndarray], layout: ArrayLayout) -> np.ndarray:
    starts = range(0, len(planes[0]), layout.chunk_bytes)
    sums = [[google_crc32c.value(plane[i : i + layout.chunk_bytes]) for plane in planes] for i in starts]
    return np.array(sums, np.uint32).reshape(len(starts), layout.n_planes)


def _planes(items: np.ndarray, layout: ArrayLayout) -> list[np.ndarray]:
    """The bytes of every plane of `items`, plane after plane."""
    if layout.n_planes == 1:
        return [np.ascontiguousarray(items).reshape(-1).view(np.uint8)]
    cut = np.moveaxis(items, [axis + 1 for axis in layout.split_axes], range(len(layout.split_axes)))
    planes = np.ascontiguousarray(cut).reshape(layout.n_planes, math.prod(cut.shape[len(layout.split_axes) :]))
    return list(planes.view(np.uint8))
