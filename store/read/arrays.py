"""The arrays of one committed state of a store, opened when first needed.

A process that was forked opens its own: it shares pages through the kernel, never this object's
state.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from store.errors import CorruptError, DamagedItemsError
from store.format.contents import StoredArray, column_array, offsets_array
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.format.schema import Schema
from store.read.array import Array
from store.read.buffers import MOST_BYTES, BufferPool
from store.read.chunk_cache import ChunkCache
from store.read.directory import StoreDirectory
from store.read.id_table import IdTable
from store.read.mirror import Mirror
from store.read.offsets import Offsets
from store.read.open_array import open_array
from store.read.plan import Span, slice_ranges

__all__ = ["Arrays"]

# of a store, shared by its arrays, which may hold as many again that were closed lately
MAX_MAPS = 16_384
CACHE_BYTES = 64 * 1024 * 1024


class Arrays:
    """The arrays of a store by name, with what they share.

    Parameters
    ----------
    directory
        Where the store is.
    manifest
        What is committed.
    cache_bytes
        Decoded chunks to keep; see `TraceStore.open`.
    check
        Whether every chunk is checked against its checksum before it is first used.
    mirror
        What brings chunks to `directory`; None: all files are there.

    Attributes
    ----------
    cache
        Decoded chunks of compressed columns.
    id_table
        Hashes of the trace ids.
    pool
        Memory of batches, used again after the last tensor over it is gone.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        manifest: Manifest,
        cache_bytes: int | None = None,
        check: bool = False,
        mirror: Mirror | None = None,
    ) -> None:
        self.directory = directory
        self.manifest = manifest
        self.cache_bytes = _check_cache_bytes(cache_bytes, manifest.schema)
        self.check = check
        self.mirror = mirror
        # when the manifest that was read last was written, and whether it is another one
        self._looked_at = (0, False)
        self._forget()

    def _forget(self) -> None:
        """Hold nothing: no map, no chunk, no memory, no lock of another process."""
        self.cache = ChunkCache(self.cache_bytes)
        self.id_table = IdTable(self.directory, self.manifest, self.check, self.mirror)
        self.pool = BufferPool(most_bytes=MOST_BYTES)
        self._arrays: dict[str, Array] = {}
        self._axes: dict[str, Offsets] = {}
        self._pid = os.getpid()  # last: another thread trusts the rest from here on

    def column(self, name: str) -> Array:
        """The array of a column's items."""
        array = self._arrays.get(name) if self._pid == os.getpid() else None
        if array is None:
            array = self._open(name, column_array(self.manifest, name))
        return array

    def offsets(self, axis: str) -> Offsets:
        """The offsets of the rows on a ragged axis."""
        offsets = self._axes.get(axis) if self._pid == os.getpid() else None
        if offsets is None:
            array = self._open(f"offsets of {axis}", offsets_array(axis, self.manifest.n_rows))
            offsets = Offsets(axis, array, self.manifest.n_items.get(axis, 0))
            self._axes[axis] = offsets
        return offsets

    def _open(self, key: str, array: StoredArray) -> Array:
        if self._pid != os.getpid():
            self._forget()
        max_maps = MAX_MAPS // (len(self.manifest.schema.stored) * 2 + 8)
        check = self.manifest if self.check else None
        opened = open_array(self.directory, array, self.cache, max_maps, check, self.mirror)
        return self._arrays.setdefault(key, opened)

    def ranges(self, span: Span, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Item ranges of rows: starts and stops, int64 `(n,)`."""
        if span.axis is None:
            return rows, rows + 1
        starts, stops = self.offsets(span.axis).item_ranges(rows)
        return slice_ranges(starts, stops, span)

    @contextmanager
    def explained(self, axis: str | None = None) -> Iterator[None]:
        """A block that reads one column, whose errors are explained; see `explain`."""
        try:
            yield
        except CorruptError as error:
            raise self.explain(error, axis) from error

    def explain(self, error: CorruptError, axis: str | None = None) -> CorruptError:
        """The error with the rows of damaged items, and whether the store has changed since.

        Parameters
        ----------
        error
            What a read of one column raised.
        axis
            The ragged axis of the column, if any.
        """
        message = str(error)
        if isinstance(error, DamagedItemsError):
            first, stop = error.items
            last = stop - 1
            if axis is not None:
                first, last = self.offsets(axis).rows_of((first, last)).tolist()
            rows = f"row {first}" if first == last else f"rows {first} to {last}"
            message = f"{message}; {rows}"
        return CorruptError(f"{self._change_hint()}{message}")

    def _change_hint(self) -> str:
        """What to do first if the store is no longer what was opened."""
        path = self.directory.path
        try:
            written = (path / GROUP_FILE).stat().st_mtime_ns
        except OSError:  # what was read says so
            return ""
        if self._looked_at[0] != written:  # many errors ask, and it may be large
            now = read_manifest(path)
            is_changed = (now.uuid, now.generation) != (
                self.manifest.uuid,
                self.manifest.generation,
            )
            self._looked_at = (written, is_changed)
        _, is_changed = self._looked_at
        if not is_changed:
            return ""
        return f"{path}: it was changed meanwhile: open the store again; if that does not help: "


def _check_cache_bytes(cache_bytes: int | None, schema: Schema) -> int:
    """The cache's size; raises ValueError if it could not hold one chunk."""
    compressed = [schema.layout(name) for name, column in schema.columns.items() if column.codec]
    largest = max((layout.chunk_bytes for layout in compressed), default=0)
    if cache_bytes is None:
        return max(CACHE_BYTES, largest)
    if cache_bytes and cache_bytes < largest:
        expected = f"0, or at least one chunk of {largest} bytes"
        raise ValueError(f"cache_bytes: expected {expected}, found {cache_bytes}")
    return cache_bytes
