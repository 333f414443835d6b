"""One array that grows: gathers items, writes whole chunks, publishes shards when it commits.

It knows items and shards, not rows, ids or strings.
"""

from pathlib import Path

import numpy as np

from store.format.array_info import ArrayInfo
from store.format.contents import WORKING_DIR, StoredArray
from store.format.manifest import GROUP_FILE, Manifest
from store.format.zarr_json import array_json
from store.read.directory import StoreDirectory
from store.read.open_array import open_array
from store.read.shard import CompressedShard, RawShard
from store.write.files import Files
from store.write.shard_builder import CompressedBuilder, RawBuilder

__all__ = ["ArrayWriter", "write_metadata"]

# items gathered before they are written: still in the processor's cache then
BUFFER_BYTES = 1024 * 1024


class ArrayWriter:
    """One array that grows: gathers items, writes whole chunks, publishes shards when it commits.

    Parameters
    ----------
    root, files
        The store, and the file operations to use.
    array
        The array, with the committed items, taken up where they end.
    info
        What other Zarr clients are told of it.
    manifest
        What is committed. If given, a checksum of every whole chunk is kept in an array beside it;
        None: no checksums.
    """

    def __init__(
        self,
        root: Path,
        files: Files,
        array: StoredArray,
        info: ArrayInfo,
        manifest: Manifest | None = None,
    ) -> None:
        self.root, self.files, self.layout, self.info = root, files, array.layout, info
        layout, n_items = array.layout, array.n_items
        self._working = root / WORKING_DIR / f"{layout.path.replace('/', '.')}.shard"
        self._n_items = n_items
        self._n_committed = n_items or None  # None: not even an empty array is there
        self._tail_sums = manifest.tails.get(layout.path, []) if manifest else []
        per_buffer = max(1, BUFFER_BYTES // (layout.chunk_items * layout.item_bytes))
        self._buffer = np.empty((layout.chunk_items * per_buffer, *layout.item_shape), layout.dtype)
        self._n_pending = 0  # items in the buffer, not yet written
        self._builder: RawBuilder | CompressedBuilder | None = None
        self._dirty: set[Path] = set()
        self._sums = ArrayWriter(root, files, array.checksums, ArrayInfo()) if manifest else None
        # a tail not yet taken up
        self._begun = (array, manifest) if n_items % layout.shard_items else None

    @property
    def _shard(self) -> int:
        """The shard that the next whole chunk goes to."""
        return (self._n_items - self._n_pending) // self.layout.shard_items

    def _take_up_tail(self, array: StoredArray, manifest: Manifest | None) -> None:
        """The committed tail shard's whole chunks go into a builder, the rest become pending
        items."""
        layout, shard = self.layout, self._n_items // self.layout.shard_items
        n_items = layout.items_in_shard(shard, self._n_items)
        n_chunks, self._n_pending = divmod(n_items, layout.chunk_items)
        committed = open_array(StoreDirectory.at(self.root), array, check=manifest)
        self._buffer[: self._n_pending] = committed.read(
            self._n_items - self._n_pending, self._n_items
        )
        if n_chunks:
            self._builder = self._new_builder()
            tail = (RawShard if layout.codec is None else CompressedShard)(
                self.root, layout, shard, n_items
            )
            self._builder.adopt(self.root / layout.shard_path(shard), tail, n_chunks)

    def _new_builder(self) -> RawBuilder | CompressedBuilder:
        builder = RawBuilder if self.layout.codec is None else CompressedBuilder
        return builder(self.files, self.layout, self._working)

    def append(self, items: np.ndarray) -> None:
        """Add items `(n, *item_shape)`; they are copied, so the caller may reuse their memory.

        Raises
        ------
        CorruptError
            The committed tail is damaged: what is taken up from it would get a new checksum.
        """
        if self._begun and len(items):
            self._take_up_tail(*self._begun)
            self._begun = None
        self.layout.check_size(self._n_items + len(items))
        start = 0
        while start < len(items):
            n = min(len(items) - start, len(self._buffer) - self._n_pending)
            self._buffer[self._n_pending : self._n_pending + n] = items[start : start + n]
            self._n_pending, self._n_items, start = (
                self._n_pending + n,
                self._n_items + n,
                start + n,
            )
            if self._n_pending == len(self._buffer):
                self._write_chunks()

    def _write_chunks(self) -> None:
        """Write the buffered items that fill whole chunks, shard after shard."""
        layout, start = self.layout, 0
        n_whole = self._n_pending // layout.chunk_items * layout.chunk_items
        while start < n_whole:
            self._builder = self._builder or self._new_builder()
            stop = min(n_whole, start + self._builder.free_chunks * layout.chunk_items)
            sums = self._builder.write(self._buffer[start:stop])
            if self._sums:
                self._sums.append(sums)
            if not self._builder.free_chunks:
                self._builder.publish_full(self._target(self._shard))
                self._builder = None
            self._n_pending -= stop - start
            start = stop
        self._buffer[: self._n_pending] = self._buffer[start : start + self._n_pending].copy()

    def _target(self, shard: int) -> Path:
        path = self.root / self.layout.shard_path(shard)
        self.files.make_dirs(path.parent)
        self._dirty.add(path.parent)
        return path

    def commit(self) -> list[int]:
        """Publish all items under their final names, durably, and then the array's metadata.

        Returns
        -------
        CRC32C of the padded last chunk in each plane (none if the last chunk is whole).
        """
        if self._n_items != self._n_committed:
            self._write_chunks()
            self._publish_tail()
            for directory in self._dirty:
                self.files.sync_dir(directory)
            self._dirty.clear()
            self._n_committed = self._n_items
            self._write_metadata()
        if self._sums is None:
            return []
        self._sums.commit()
        return self._tail_sums

    def _publish_tail(self) -> None:
        rest = self._buffer[: self._n_pending]
        self._tail_sums = []
        if len(rest) or self._builder:
            self._builder = self._builder or self._new_builder()
            self._tail_sums = (
                self._builder.publish_tail(self._target(self._shard), rest).ravel().tolist()
            )

    def _write_metadata(self) -> None:
        text = array_json(self.layout, self._n_items, self.info)
        write_metadata(self.root, self.files, self.layout.path, text)

    def describe(self, info: ArrayInfo) -> None:
        """Tell other Zarr clients something else of the array, which has no uncommitted items."""
        if info != self.info:
            self.info = info
            self._write_metadata()

    def close(self) -> None:
        """Release the working file; what was not committed is gone."""
        for part in (self._builder, self._sums):
            if part:
                part.close()


def write_metadata(root: Path, files: Files, path: str, text: bytes) -> None:
    """Put the metadata of a group or an array in its place, durably."""
    files.make_dirs(root / path)
    files.replace_text(root / path / GROUP_FILE, text, root / WORKING_DIR / GROUP_FILE)
