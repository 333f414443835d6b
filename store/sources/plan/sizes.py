"""The bytes and files of a store that is not there yet, from its schema and its items. Pure.

Raw columns are planned to the byte: arrays, tables of shards, padding of the last chunk, offsets,
checksums and the id table are those that a writer would make (`format.contents`). Only the JSON of
the provenance is estimated, and how far a compressed column shrinks.

A disk gives whole blocks, to files and to folders, so a small store takes a quarter more than its
files have: 5.17 MB for the 4.04 MB of 48 traces of the example, of which .47 MB are the ends of 136
files and .66 MB are 161 folders.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from store.format.contents import StoredArray, arrays_of, files_of, metadata_of
from store.format.manifest import Manifest
from store.format.schema import Schema
from store.format.shard_table import table_bytes

__all__ = [
    "BLOCK_BYTES",
    "OVERHEAD",
    "ColumnSize",
    "StoreSize",
    "array_bytes",
    "plan_parts",
    "plan_store",
]

OVERHEAD = "offsets, checksums, ids"  # what no column owns
ROOT_BYTES = 12_000  # the manifest with the provenance of an extraction, measured on the example
# Of ext4, XFS and Btrfs. What statvfs says of a network's disk is the size of a transfer.
BLOCK_BYTES = 4096


class ColumnSize(NamedTuple):
    """The bytes of a column on disk."""

    name: str
    n_bytes: int


class StoreSize(NamedTuple):
    """A store that is planned.

    Attributes
    ----------
    n_rows
        Rows.
    columns
        In the order of the schema; the last one is what no column owns, `OVERHEAD`.
    n_files, n_folders
        Files, and folders with that of the store itself: each takes an inode.
    disk_bytes
        What the disk loses, as `du` counts: the blocks of all files and folders.
    """

    n_rows: int
    columns: list[ColumnSize]
    n_files: int
    n_folders: int
    disk_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the files."""
        return sum(column.n_bytes for column in self.columns)


def plan_store(
    schema: Schema,
    n_rows: int,
    n_items: Mapping[str, int],
    shrinks: Mapping[str, float] | None = None,
) -> StoreSize:
    """Plan the bytes of one store.

    Parameters
    ----------
    schema
        Its columns.
    n_rows
        Its rows.
    n_items
        Ragged axis -> items of all rows together; of a text column, bytes of UTF-8.
    shrinks
        Compressed column -> how many times smaller it gets; 1, if it is not known.
    """
    runs = ((0, n_rows),) if n_rows else ()
    counts = {axis: n_items[axis] for axis in schema.axes}
    manifest = Manifest(schema, n_rows=n_rows, n_items=counts, runs=runs)
    sizes = Counter(dict.fromkeys((*schema.stored, OVERHEAD), 0))
    texts = metadata_of(manifest)
    n_blocks = sum(_n_blocks(len(text)) for text in texts.values()) + _n_blocks(ROOT_BYTES)
    for array in arrays_of(manifest):
        shrink = (shrinks or {}).get(array.column or "", 1.0)
        owner = array.column or OVERHEAD
        sizes[owner] += array_bytes(array, shrink) + len(texts.pop(array.layout.path))
        n_blocks += sum(n * _n_blocks(n_bytes) for n, n_bytes in _shards(array, shrink))
    sizes[OVERHEAD] += sum(map(len, texts.values())) + ROOT_BYTES
    columns = [ColumnSize(name, n_bytes) for name, n_bytes in sizes.items()]
    files = files_of(manifest)
    n_folders = _count_folders(files)
    disk_bytes = (n_blocks + n_folders) * BLOCK_BYTES
    return StoreSize(n_rows, columns, len(files), n_folders, disk_bytes)


def plan_parts(
    schema: Schema,
    n_rows: int,
    n_items: Mapping[str, int],
    shrinks: Mapping[str, float] | None = None,
    n_parts: int = 1,
) -> StoreSize:
    """Plan as many stores as there are parts, of about equally many rows each; see `plan_store`.

    Each part has files, tables and padding of its own.
    """
    n_parts = max(1, min(n_parts, n_rows))
    n_larger = n_rows % n_parts
    total: Counter[str] = Counter()
    n_files = n_folders = disk_bytes = 0
    for n_alike, part_rows in (
        (n_larger, n_rows // n_parts + 1),
        (n_parts - n_larger, n_rows // n_parts),
    ):
        share = part_rows / n_rows if n_rows else 0
        items = {axis: round(n * share) for axis, n in n_items.items()}
        part = plan_store(schema, part_rows, items, shrinks)
        for name, n_bytes in part.columns:
            total[name] += n_alike * n_bytes
        n_files += n_alike * part.n_files
        n_folders += n_alike * part.n_folders
        disk_bytes += n_alike * part.disk_bytes
    columns = [ColumnSize(name, n_bytes) for name, n_bytes in total.items()]
    return StoreSize(n_rows, columns, n_files, n_folders, disk_bytes)


def array_bytes(array: StoredArray, shrink: float = 1.0) -> int:
    """The bytes of an array's shards; its chunks are whole, and `shrink` times smaller."""
    return sum(n * n_bytes for n, n_bytes in _shards(array, shrink))


def _shards(array: StoredArray, shrink: float) -> Iterator[tuple[int, int]]:
    """How many shards are alike, and the bytes of each: the full ones, and the last."""
    layout = array.layout
    n_full, n_last = divmod(layout.n_chunks(array.n_items), layout.shard_chunks)
    chunk_bytes = layout.n_planes * layout.chunk_bytes / shrink
    for n, n_chunks in ((n_full, layout.shard_chunks), (int(n_last > 0), n_last)):
        yield n, round(n_chunks * chunk_bytes) + table_bytes(layout)


def _n_blocks(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK_BYTES)


def _count_folders(files: Iterable[str]) -> int:
    """The folders of files, with the one that their paths begin in."""
    folders = {""}
    for file in files:
        folder, _, _ = file.rpartition("/")
        while folder not in folders:
            folders.add(folder)
            folder, _, _ = folder.rpartition("/")
    return len(folders)
