"""The bytes and files of a store that is not there yet, from its schema and its items. Pure.

Raw columns are planned to the byte, from the arrays that a writer would make (`format.contents`).
Only the JSON of the provenance is estimated, and how far a compressed column shrinks.

A disk gives whole blocks, to files and to folders, so a small store takes a quarter more than its
files have: 5.17 MB for the 4.04 MB of 48 traces of the example.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

from store.format.contents import StoredArray, arrays_of, files_of, metadata_files
from store.format.manifest import GROUP_FILE, Manifest
from store.format.schema import Schema
from store.format.shard_table import table_bytes

__all__ = ["BLOCK_BYTES", "OVERHEAD", "StoreSize", "plan_store"]

OVERHEAD = "offsets, checksums, ids"  # what no column owns
ROOT_BYTES = 12_000  # the manifest with the provenance of an extraction, measured on the example
# Of ext4, XFS and Btrfs. What statvfs says of a network's disk is the size of a transfer.
BLOCK_BYTES = 4096


class StoreSize(NamedTuple):
    """A store that is planned, in one part or several."""

    # column -> bytes on disk, in the order of the schema; the last is `OVERHEAD`
    columns: dict[str, int]
    n_files: int
    n_folders: int  # with that of the store itself; each takes an inode, as files do
    disk_bytes: int  # what the disk loses, as `du` counts: the blocks of all files and folders

    @property
    def n_bytes(self) -> int:
        """Bytes of the files."""
        return sum(self.columns.values())


def plan_store(
    schema: Schema,
    n_rows: int,
    n_items: Mapping[str, int],
    shrinks: Mapping[str, float],
    n_parts: int = 1,
) -> StoreSize:
    """Plan the bytes of a store in so many parts, of about equally many rows each.

    Parameters
    ----------
    n_items
        Ragged axis -> items of all rows together; of a text column, bytes of UTF-8.
    shrinks
        Compressed column -> how many times smaller it gets; 1, if it is not known.
    """
    n_parts = max(1, min(n_parts, n_rows))
    columns: Counter[str] = Counter(dict.fromkeys((*schema.stored, OVERHEAD), 0))
    totals: Counter[str] = Counter()
    # each part has files, tables and padding of its own
    for part_rows, n_alike in Counter((n_rows + k) // n_parts for k in range(n_parts)).items():
        items = {axis: round(n * part_rows / max(1, n_rows)) for axis, n in n_items.items()}
        part = _plan_part(schema, part_rows, items, shrinks)
        for total, found in ((columns, part.columns), (totals, part._asdict())):
            for name in found.keys() - {"columns"}:
                total[name] += n_alike * found[name]
    return StoreSize(dict(columns), **totals)


def _plan_part(
    schema: Schema, n_rows: int, n_items: Mapping[str, int], shrinks: Mapping[str, float]
) -> StoreSize:
    runs = ((0, n_rows),) if n_rows else ()
    counts = {axis: n_items[axis] for axis in schema.axes}
    manifest = Manifest(schema, n_rows=n_rows, n_items=counts, runs=runs)
    columns = Counter({OVERHEAD: ROOT_BYTES})
    n_blocks = _blocks(ROOT_BYTES)
    owners = {f"{array.layout.path}/{GROUP_FILE}": array.column for array in arrays_of(manifest)}
    for path, text in metadata_files(manifest).items():
        columns[owners.get(path) or OVERHEAD] += len(text)
        n_blocks += _blocks(len(text))
    for array in arrays_of(manifest):
        owner = array.column or OVERHEAD
        for n_alike, n_bytes in _shards(array, shrinks.get(owner, 1.0)):
            columns[owner] += n_alike * n_bytes
            n_blocks += n_alike * _blocks(n_bytes)
    files = files_of(manifest)
    n_folders = len({folder for file in files for folder in PurePath(file).parents})
    return StoreSize(columns, len(files), n_folders, (n_blocks + n_folders) * BLOCK_BYTES)


def _shards(array: StoredArray, shrink: float) -> Iterator[tuple[int, int]]:
    """How many shards are alike, and the bytes of each: the full ones, and the last.

    Chunks are whole, and `shrink` times smaller.
    """
    layout = array.layout
    n_full, n_last = divmod(layout.n_chunks(array.n_items), layout.shard_chunks)
    chunk_bytes = layout.n_planes * layout.chunk_bytes / shrink
    for n_alike, n_chunks in ((n_full, layout.shard_chunks), (int(n_last > 0), n_last)):
        yield n_alike, round(n_chunks * chunk_bytes) + table_bytes(layout)


def _blocks(n_bytes: int) -> int:
    return -(-n_bytes // BLOCK_BYTES)
