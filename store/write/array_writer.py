"""An array that grows: gathers items, writes whole chunks, publishes shards when it commits.

It knows items and shards, not rows or strings; the runs of the id table are such arrays too.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.contents import WORKING_DIR, StoredArray, run_arrays, run_name
from store.format.ids import Run, build_run, hash_ids
from store.format.manifest import GROUP_FILE, Manifest
from store.format.zarr_json import RUN_INFO, ArrayInfo, array_json, group_json
from store.read.arrays.file_array import FileArray
from store.read.directory import StoreDirectory
from store.read.id_table import IdTable
from store.read.source import StoreSource, open_array
from store.write.files import Files
from store.write.shard_builder import CompressedBuilder, RawBuilder

__all__ = ["ArrayWriter", "merge_runs", "write_array", "write_metadata", "write_run"]

# items gathered before they are written: still in the processor's cache then
BUFFER_BYTES = 1024 * 1024


class ArrayWriter:
    """An array that grows: gathers items, writes whole chunks, publishes shards when it commits.

    Appending continues after the committed items of `array`; `info` describes it to other Zarr
    clients. Given a manifest, a checksum of every whole chunk is kept in an array beside it.
    """

    def __init__(
        self,
        root: Path,
        files: Files,
        array: StoredArray,
        info: ArrayInfo,
        manifest: Manifest | None = None,
    ) -> None:
        layout = array.layout
        name = layout.path.replace("/", ".")
        self.root = root
        self.files = files
        self.layout = layout
        self.info = info
        self._working = root / WORKING_DIR / f"{name}.shard"
        # places: the padding between segments counts, and the last segment grows
        self._n_items = array.n_places
        self._n_padding = array.n_places - array.n_items
        self._n_committed = array.n_places or None  # None: not even an empty array is committed
        chunk_bytes = layout.chunk_items * layout.item_bytes
        n_chunks = max(1, BUFFER_BYTES // chunk_bytes)
        n_items = n_chunks * layout.chunk_items
        self._buffer = np.empty((n_items, *layout.item_shape), layout.dtype)
        self._n_pending = 0  # items in the buffer, not yet written
        self._builder: RawBuilder | CompressedBuilder | None = None
        self._sums: ArrayWriter | None = None
        self._tail_sums: list[int] = []
        if manifest:
            self._sums = ArrayWriter(root, files, array.checksums, ArrayInfo())
            self._tail_sums = manifest.tails.get(layout.path, [])
        has_tail = array.n_places % layout.shard_items != 0
        # the tail's items are read when the first new item comes
        directory = StoreDirectory.at(root)
        self._committed = open_array(directory, array, check=manifest) if has_tail else None

    @property
    def _n_written(self) -> int:
        """Items in whole chunks, which are written."""
        return self._n_items - self._n_pending

    def _read_tail(self, committed: FileArray) -> None:
        """Put the committed tail's whole chunks into a builder; its other items become pending."""
        layout = self.layout
        number = self._n_items // layout.shard_items
        self._n_pending = self._n_items % layout.chunk_items
        first = self._n_written - self._n_padding
        self._buffer[: self._n_pending] = committed.read(first, committed.n_items)
        shard = committed.shard(number)
        n_chunks = shard.n_items // layout.chunk_items
        if n_chunks:
            file = self.root / layout.shard_path(number)
            self._open_builder().adopt(file, shard.entries[:n_chunks])

    def _open_builder(self) -> RawBuilder | CompressedBuilder:
        """The builder of the shard that the next whole chunk goes to."""
        if self._builder is None:
            builder = RawBuilder if self.layout.codec is None else CompressedBuilder
            self._builder = builder(self.files, self.layout, self._working)
        return self._builder

    def append(self, items: np.ndarray) -> None:
        """Add items `(n, *item_shape)`; they are copied, so the caller may reuse their memory.

        Raises CorruptError if the committed tail is damaged: a copy of its items would get a new
        checksum.
        """
        n = len(items)
        if self._committed and n:
            self._read_tail(self._committed)
            self._committed = None
        self.layout.check_size(self._n_items + n)
        end = self._n_pending + n
        if end < len(self._buffer):  # small rows: nothing but this copy
            self._buffer[self._n_pending : end] = items
            self._n_pending = end
            self._n_items += n
            return
        self._append_and_write(items)

    def _append_and_write(self, items: np.ndarray) -> None:
        """Add items that fill the buffer, which is written as often as it is full."""
        while len(items):
            free = self._buffer[self._n_pending :]
            some = items[: len(free)]
            items = items[len(some) :]
            free[: len(some)] = some
            self._n_pending += len(some)
            self._n_items += len(some)
            if len(some) == len(free):
                self._write_chunks()

    def _write_chunks(self) -> None:
        """Write the buffered items that fill whole chunks, shard after shard."""
        chunk_items = self.layout.chunk_items
        n_whole = self._n_pending // chunk_items * chunk_items
        start = 0
        while start < n_whole:
            builder = self._open_builder()
            stop = min(n_whole, start + builder.free_chunks * chunk_items)
            sums = builder.write(self._buffer[start:stop])
            if self._sums:
                self._sums.append(sums)
            if not builder.free_chunks:
                builder.publish_full(self._target())
                self._builder = None
            self._n_pending -= stop - start
            start = stop
        rest = self._buffer[start : start + self._n_pending]
        self._buffer[: self._n_pending] = rest.copy()

    def _target(self) -> Path:
        """The final path of the shard that is being built."""
        number = self._n_written // self.layout.shard_items
        path = self.root / self.layout.shard_path(number)
        self.files.make_dirs(path.parent)
        return path

    def commit(self) -> list[int]:
        """Publish all items under their final names, durably, and then the array's metadata.

        Returns the CRC32C of the padded last chunk in each plane (none if the last chunk is whole).
        """
        if self._n_items != self._n_committed:
            self._write_chunks()
            rest = self._buffer[: self._n_pending]
            self._tail_sums = []
            if len(rest) or self._builder:
                sums = self._open_builder().publish_tail(self._target(), rest)
                self._tail_sums = sums.ravel().tolist()
            self._n_committed = self._n_items
            self._write_metadata()
        if self._sums:
            self._sums.commit()
        return self._tail_sums

    def _write_metadata(self) -> None:
        text = array_json(self.layout, self._n_items, self.info)
        write_metadata(self.root, self.files, self.layout.path, text)

    def describe(self, info: ArrayInfo) -> None:
        """Change the description for other Zarr clients; there are no uncommitted items."""
        if info != self.info:
            self.info = info
            self._write_metadata()

    def close(self) -> None:
        """Release the working file; what was not committed is lost."""
        for part in (self._builder, self._sums):
            if part:
                part.close()

    def remove(self) -> None:
        """Remove the array and its checksums, committed or not."""
        self.close()
        self.files.remove_tree(self.root / self.layout.path)
        if self._sums:
            self._sums.remove()


def write_array(
    root: Path,
    files: Files,
    array: StoredArray,
    info: ArrayInfo,
    blocks: Iterable[np.ndarray],
    manifest: Manifest | None = None,
) -> list[int]:
    """Write a new array of these items, durably; return the checksums of its padded last chunk.

    `array` says how they are stored, not how many they are.
    """
    empty = StoredArray(array.layout, 0)
    writer = ArrayWriter(root, files, empty, info, manifest)
    for items in blocks:
        writer.append(items)
    sums = writer.commit()
    writer.close()
    return sums


def write_metadata(root: Path, files: Files, path: str, text: bytes) -> None:
    """Put the metadata of a group or an array in its place, durably."""
    files.make_dirs(root / path)
    files.replace_text(root / path / GROUP_FILE, text, root / WORKING_DIR / GROUP_FILE)


def merge_runs(
    root: Path, files: Files, manifest: Manifest, run: Run, new_ids: Iterable[str]
) -> int:
    """Write a run that contains committed runs and the ids of new rows; return its checksum.

    `run` begins at the first row of a committed run, or at a new row, and ends at the end of all
    rows; `new_ids` are of the rows that are not committed. Raises CorruptError if a committed run
    is damaged: a copy of it would get a new checksum.
    """
    first, n_rows = run
    table = IdTable(StoreSource(StoreDirectory.at(root)), manifest, check=True)
    runs = [table.run(old) for old in manifest.runs if old[0] >= first]
    runs.append((hash_ids(new_ids), np.arange(manifest.n_rows, n_rows)))
    hashes, rows = map(np.concatenate, zip(*runs, strict=True))
    return write_run(root, files, run, hashes, rows)


def write_run(root: Path, files: Files, run: Run, hashes: np.ndarray, rows: np.ndarray) -> int:
    """Write a run of the id table, of these hashes and rows in any order; return its checksum."""
    checksum = 0
    write_metadata(root, files, f"_index/{run_name(run)}", group_json())
    for array, values in zip(run_arrays(run), build_run(hashes, rows), strict=True):
        write_array(root, files, array, RUN_INFO, [values])
        checksum = crc32c(values.data, checksum)
    return checksum
