"""How the bytes of an array lie on disk: shards, planes and chunks. Pure arithmetic.

At the end of a shard is a table that says where its chunks lie (Zarr's `sharding_indexed` codec).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from crc32c import crc32c

from store.errors import SchemaError

__all__ = [
    "ABSENT",
    "CRC_BYTES",
    "ENTRY",
    "ArrayLayout",
    "checksums_layout",
    "encode_table",
    "index_layouts",
    "offsets_layout",
    "raw_entries",
    "table_bytes",
]

CHUNK_BYTES = 64 * 1024  # a checksum's grain: small enough to check one row, 16 bytes of index each
SHARD_BYTES = 128 * 1024 * 1024  # 4,000 files for 500 GB; the most that an append writes again
SMALL_CHUNK_BYTES = 4 * 1024  # of offsets and checksums: the padding of a tail
MAX_SHARDS = 2**17  # of an array: 16 TiB of usual shards; a bound on what has to be looked for


@dataclass(frozen=True)
class ArrayLayout:
    """The bytes of one array: which shard, plane and chunk an item lies in. Pure arithmetic.

    `path` is inside the store; dtype and shape are those of one item, as stored; `split_axes` are
    the item axes that are stored plane by plane; without a codec the array is raw.
    """

    path: str
    dtype: np.dtype
    item_shape: tuple[int, ...]
    split_axes: tuple[int, ...]
    chunk_items: int
    shard_items: int
    codec: str | None = None

    @cached_property
    def plane_grid(self) -> tuple[int, ...]:
        """Planes along each split axis; its product is the number of planes."""
        return tuple(self.item_shape[axis] for axis in self.split_axes)

    @cached_property
    def plane_item_shape(self) -> tuple[int, ...]:
        sizes = enumerate(self.item_shape)
        return tuple(size for axis, size in sizes if axis not in self.split_axes)

    @cached_property
    def n_planes(self) -> int:
        return math.prod(self.plane_grid)

    @cached_property
    def item_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.item_shape)

    @cached_property
    def plane_item_bytes(self) -> int:
        return self.item_bytes // self.n_planes

    @cached_property
    def chunk_bytes(self) -> int:
        return self.chunk_items * self.plane_item_bytes

    @cached_property
    def shard_chunks(self) -> int:
        """Chunks a full shard holds in each plane."""
        return self.shard_items // self.chunk_items

    @cached_property
    def max_items(self) -> int:
        """Items that fill as many shards as an array may have."""
        return MAX_SHARDS * self.shard_items

    def n_shards(self, n_items: int) -> int:
        return -(-n_items // self.shard_items)

    def check_size(self, n_items: int) -> None:
        """Raise SchemaError if so many items are too many shards."""
        if n_items > self.max_items:
            found = f"{n_items} items, {self.shard_items} a shard"
            raise SchemaError(
                f"array {self.path!r}: expected at most {MAX_SHARDS} shards, found {found}; "
                "choose larger ones"
            )

    def n_chunks(self, n_items: int) -> int:
        """Chunks along the items, the padded last one included, in each plane."""
        return -(-n_items // self.chunk_items)

    def shard_path(self, shard: int) -> str:
        """Path of a shard's file inside the store (Zarr's default chunk keys)."""
        return "/".join((self.path, "c", str(shard), *("0" for _ in self.item_shape)))

    def planes_as_items(self, planes: np.ndarray) -> np.ndarray:
        """View `(*plane_grid, n, *plane_item_shape)` as `(n, *item_shape)` without a copy."""
        destinations = [axis + 1 for axis in self.split_axes]
        return np.moveaxis(planes, range(len(destinations)), destinations)

    def items_as_planes(self, items: np.ndarray) -> np.ndarray:
        """View `(n, *item_shape)` as `(*plane_grid, n, *plane_item_shape)` without a copy."""
        sources = [axis + 1 for axis in self.split_axes]
        return np.moveaxis(items, sources, range(len(sources)))


def offsets_layout(axis: str) -> ArrayLayout:
    """The offsets of a ragged axis: int64 `(n_rows + 1,)`."""
    return _small_layout(f"_offsets/{axis}", "<i8", ())


def checksums_layout(checked: ArrayLayout) -> ArrayLayout:
    """The checksums of an array: uint32 `(n_chunks, n_planes)`."""
    name = checked.path.removeprefix("_").replace("/", ".")
    return _small_layout(f"_checksums/{name}", "<u4", (checked.n_planes,))


def index_layouts(run: str, n_rows: int) -> tuple[ArrayLayout, ArrayLayout]:
    """The two arrays of one run of the id table; each is a single shard, so that it is one map."""
    chunk_items = CHUNK_BYTES // 8
    n_chunks = max(1, -(-n_rows // chunk_items))

    def layout(name: str, dtype: str) -> ArrayLayout:
        path = f"_index/{run}/{name}"
        return ArrayLayout(path, np.dtype(dtype), (), (), chunk_items, n_chunks * chunk_items)

    return layout("hash", "<u8"), layout("row", "<i8")


def _small_layout(path: str, dtype_name: str, item_shape: tuple[int, ...]) -> ArrayLayout:
    dtype = np.dtype(dtype_name)
    item_bytes = dtype.itemsize * math.prod(item_shape)
    chunk_items = max(1, SMALL_CHUNK_BYTES // item_bytes)
    shard_items = chunk_items * (SHARD_BYTES // CHUNK_BYTES)
    return ArrayLayout(path, dtype, item_shape, (), chunk_items, shard_items)


ENTRY = np.dtype("<u8")
ABSENT = np.uint64(2**64 - 1)  # what Zarr writes for a chunk that is not there
CRC_BYTES = 4


def table_bytes(layout: ArrayLayout) -> int:
    """Size of the table: (offset, size) of every chunk of a full shard, and a CRC32C."""
    n_chunks = layout.shard_chunks * layout.n_planes
    return n_chunks * 2 * ENTRY.itemsize + CRC_BYTES


def encode_table(layout: ArrayLayout, entries: np.ndarray) -> bytes:
    """The table of a shard.

    `entries` are the (offset, size) of its first chunks: uint64 `(n_chunks, n_planes, 2)`.
    """
    table = np.full((layout.shard_chunks, layout.n_planes, 2), ABSENT, ENTRY)
    table[: len(entries)] = entries
    data = table.tobytes()
    return data + crc32c(data).to_bytes(CRC_BYTES, "little")


def raw_entries(layout: ArrayLayout, n_chunks: int, plane_stride: int) -> np.ndarray:
    """(offset, size) of the chunks of a raw shard with planes `plane_stride` bytes apart."""
    chunk_offsets = np.arange(n_chunks) * layout.chunk_bytes
    plane_offsets = np.arange(layout.n_planes) * plane_stride
    entries = np.empty((n_chunks, layout.n_planes, 2), ENTRY)
    entries[:, :, 0] = chunk_offsets[:, None] + plane_offsets
    entries[:, :, 1] = layout.chunk_bytes
    return entries
