"""One array that grows: gathers items, writes whole chunks, publishes shards when it commits.

It knows items and shards, not rows, ids or strings.
"""

from pathlib import Path

import numpy as np

from store.array import open_array
from store.files import Files
from store.manifest import GROUP_FILE
from store.schema import ArrayLayout, checksums_layout
from store.shard import CodedBuilder, CodedShard, RawBuilder, RawShard, checksums
from store.zarr_json import array_json

__all__ = ["WORKING_DIR", "ArrayWriter"]

WORKING_DIR = "_tmp"
BUFFER_BYTES = 4 * 1024 * 1024  # items gathered before they are written, for each array


class ArrayWriter:
    """One array that grows: gathers items, writes whole chunks, publishes shards when it commits.

    Parameters
    ----------
    root, files
        The store, and the file operations to use.
    layout
        The array's bytes.
    n_items
        Committed items, taken up where they end.
    names
        Names of the dimensions, for other Zarr clients.
    checked
        Keep a checksum of every whole chunk in an array beside it.
    """

    def __init__(
        self,
        root: Path,
        files: Files,
        layout: ArrayLayout,
        n_items: int = 0,
        names: tuple[str | None, ...] = (),
        checked: bool = True,
    ) -> None:
        self.root, self.files, self.layout, self.names = root, files, layout, names
        self._working = root / WORKING_DIR / f"{layout.path.replace('/', '.')}.shard"
        self._n_items = self._n_committed = n_items
        self._pending: list[np.ndarray] = []  # items that do not fill a chunk, or wait for more
        self._n_pending = 0
        self._builder: RawBuilder | CodedBuilder | None = None
        self._dirty: set[Path] = set()
        self._tail: list[int] = []
        self._sums: ArrayWriter | None = None
        if checked and layout.codec is None:
            n_whole = n_items // layout.chunk_items
            self._sums = ArrayWriter(root, files, checksums_layout(layout), n_whole, checked=False)
        if n_items % layout.shard_items:
            self._take_up_tail()

    @property
    def _shard(self) -> int:
        """The shard that the next whole chunk goes to."""
        return (self._n_items - self._n_pending) // self.layout.shard_items

    def _take_up_tail(self) -> None:
        """The committed tail shard's whole chunks go into a builder, the rest become pending items."""
        layout, shard = self.layout, self._n_items // self.layout.shard_items
        n_items = layout.items_in_shard(shard, self._n_items)
        n_chunks, self._n_pending = divmod(n_items, layout.chunk_items)
        self._pending = [
            open_array(self.root, layout, self._n_items).read(self._n_items - self._n_pending, self._n_items)
        ]
        if n_chunks:
            self._builder = self._new_builder()
            tail = (RawShard if layout.codec is None else CodedShard)(self.root, layout, shard, n_items)
            self._builder.adopt(self.root / layout.shard_path(shard), tail, n_chunks)

    def _new_builder(self) -> RawBuilder | CodedBuilder:
        builder = RawBuilder if self.layout.codec is None else CodedBuilder
        return builder(self.files, self.layout, self._working)

    def append(self, items: np.ndarray) -> None:
        """Add items `(n, *item_shape)` of the array's dtype; the caller may reuse their memory."""
        self._pending.append(np.array(items, self.layout.dtype))
        self._n_items += len(items)
        self._n_pending += len(items)
        if self._n_pending * self.layout.item_bytes >= BUFFER_BYTES and self._n_pending >= self.layout.chunk_items:
            self._write_chunks()

    def _write_chunks(self) -> None:
        """Write the pending items that fill whole chunks, shard after shard."""
        layout, items = self.layout, self._joined()
        start, n_whole = 0, len(items) // layout.chunk_items * layout.chunk_items
        while start < n_whole:
            self._builder = self._builder or self._new_builder()
            stop = min(n_whole, start + self._builder.free_chunks * layout.chunk_items)
            sums = self._builder.write(items[start:stop])
            if self._sums:
                self._sums.append(sums)
            if not self._builder.free_chunks:
                self._builder.publish_full(self._target(self._shard))
                self._builder = None
            self._n_pending -= stop - start
            start = stop
        self._pending = [items[start:].copy()]

    def _joined(self) -> np.ndarray:
        if len(self._pending) == 1:
            return self._pending[0]
        return np.concatenate([np.empty((0, *self.layout.item_shape), self.layout.dtype), *self._pending])

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
        if self._n_items != self._n_committed or not self._n_items:
            self._write_chunks()
            self._tail = self._publish_tail()
            for directory in self._dirty:
                self.files.sync_dir(directory)
            self._dirty.clear()
            self._n_committed = self._n_items
            self._write_metadata()
        if self._sums:
            self._sums.commit()
        return self._tail

    def _publish_tail(self) -> list[int]:
        rest = self._joined()
        if not len(rest) and self._builder is None:
            return []
        self._builder = self._builder or self._new_builder()
        self._builder.publish_tail(self._target(self._shard), rest)
        return checksums(rest, self.layout)[0].tolist() if len(rest) and self._sums else []

    def _write_metadata(self) -> None:
        directory = self.root / self.layout.path
        self.files.make_dirs(directory)
        text = array_json(self.layout, self._n_items, self.names)
        self.files.replace_text(directory / GROUP_FILE, text, self.root / WORKING_DIR / GROUP_FILE)

    def close(self) -> None:
        """Release the working file; what was not committed is gone."""
        for part in (self._builder, self._sums):
            if part:
                part.close()
