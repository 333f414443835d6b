"""The bytes and files of a store that is not there yet, from its schema and its items. Pure.

Raw columns are planned to the byte, from the arrays that a writer would make (`format.contents`).
Only the JSON of the provenance is estimated, and how far a compressed column shrinks.

A disk gives whole blocks, to files and to folders, so a small store takes a quarter more than its
files have: 5.17 MB for the 4.04 MB of 48 traces of the example.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from store.format.contents import StoredArray, arrays_of, files_of, metadata_files
from store.format.manifest import GROUP_FILE, Manifest
from store.format.schema import Schema
from store.format.shard_table import table_bytes

__all__ = ["BLOCK_BYTES", "OVERHEAD", "StoreSize", "plan_parts", "plan_store"]

OVERHEAD = "offsets, checksums, ids"  # what no column owns
ROOT_BYTES = 12_000  # the manifest with the provenance of an extraction, measured on the example
# Of ext4, XFS and Btrfs. What statvfs says of a network's disk is the size of a transfer.
BLOCK_BYTES = 4096


class StoreSize(NamedTuple):
    """A store that is planned.

    Attributes
    ----------
    columns
        Column -> bytes on disk, in the order of the schema; the last is `OVERHEAD`.
    n_files, n_folders
        Files, and folders with that of the store itself: each takes an inode.
    disk_bytes
        What the disk loses, as `du` counts: the blocks of all files and folders.
    """

    n_rows: int
    columns: dict[str, int]
    n_files: int
    n_folders: int
    disk_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the files."""
        return sum(self.columns.values())


def plan_store(
    schema: Schema,
    n_rows: int,
    n_items: Mapping[str, int],
    shrinks: Mapping[str, float] | None = None,
) -> StoreSize:
    """Plan the bytes of one store.

    Parameters
    ----------
    n_items
        Ragged axis -> items of all rows together; of a text column, bytes of UTF-8.
    shrinks
        Compressed column -> how many times smaller it gets; 1, if it is not known.
    """
    runs = ((0, n_rows),) if n_rows else ()
    counts = {axis: n_items[axis] for axis in schema.axes}
    manifest = Manifest(schema, n_rows=n_rows, n_items=counts, runs=runs)
    sizes = dict.fromkeys((*schema.stored, OVERHEAD), 0)
    texts = metadata_files(manifest)
    n_blocks = sum(_n_blocks(len(text)) for text in texts.values()) + _n_blocks(ROOT_BYTES)
    for array in arrays_of(manifest):
        owner = array.column or OVERHEAD
        sizes[owner] += len(texts.pop(f"{array.layout.path}/{GROUP_FILE}"))
        for n_alike, n_bytes in _shards(array, (shrinks or {}).get(owner, 1.0)):
            sizes[owner] += n_alike * n_bytes
            n_blocks += n_alike * _n_blocks(n_bytes)
    sizes[OVERHEAD] += sum(map(len, texts.values())) + ROOT_BYTES
    files = files_of(manifest)
    n_folders = _count_folders(files)
    disk_bytes = (n_blocks + n_folders) * BLOCK_BYTES
    return StoreSize(n_rows, sizes, len(files), n_folders, disk_bytes)


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
    rows_of_parts = Counter((n_rows + part) // n_parts for part in range(n_parts))
    columns: Counter[str] = Counter()
    totals = Counter(n_files=0, n_folders=0, disk_bytes=0)
    for part_rows, n_alike in rows_of_parts.items():
        items = {axis: round(n * part_rows / max(1, n_rows)) for axis, n in n_items.items()}
        part = plan_store(schema, part_rows, items, shrinks)
        for name, n_bytes in part.columns.items():
            columns[name] += n_alike * n_bytes
        for name in totals:
            totals[name] += n_alike * getattr(part, name)
    return StoreSize(n_rows, dict(columns), **totals)


def _shards(array: StoredArray, shrink: float) -> Iterator[tuple[int, int]]:
    """How many shards are alike, and the bytes of each: the full ones, and the last.

    Chunks are whole, and `shrink` times smaller.
    """
    layout = array.layout
    n_full, n_last = divmod(layout.n_chunks(array.n_items), layout.shard_chunks)
    chunk_bytes = layout.n_planes * layout.chunk_bytes / shrink
    for n_alike, n_chunks in ((n_full, layout.shard_chunks), (int(n_last > 0), n_last)):
        yield n_alike, round(n_chunks * chunk_bytes) + table_bytes(layout)


def _n_blocks(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK_BYTES)


def _count_folders(files: Iterable[str]) -> int:
    """The folders of files, with the one that their paths begin in."""
    folders = {""}
    for file in files:
        folder = file
        while folder:
            folder = folder.rpartition("/")[0]
            folders.add(folder)
    return len(folders)
