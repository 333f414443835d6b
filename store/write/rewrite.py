"""The small arrays of a store that is merged by reference, made from those of its parts.

Offsets, ids, the id table and small columns; the checksums of what is linked; metadata. What is
read is checked: a copy would hide that it was damaged.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from store.format.contents import (
    GROUPS,
    StoredArray,
    column_array,
    infos_of,
    offsets_array,
    run_name,
)
from store.format.ids import Run, hash_ids, hashes_by_row
from store.format.manifest import Manifest
from store.format.schema import TRACE_ID
from store.format.zarr_json import ArrayInfo, array_json, group_json
from store.read.arrays.chunk_sums import ChunkSums
from store.read.row_location import Offsets
from store.read.source import open_array
from store.read.store import TraceStore
from store.write.array_writer import write_array, write_metadata, write_run
from store.write.files import Files

__all__ = ["NewIds", "Rewriting"]

BLOCK_BYTES = 8 * 1024 * 1024
NewIds = Mapping[tuple[int, int], str]
"""(part, row of its store) -> its id in the new store."""


@dataclass
class Rewriting:
    """Writes everything but the shards of linked columns, durably, and nothing that commits it.

    At `root` are the shards of the columns in `linked`; the manifest is what will be committed, but
    for checksums.
    """

    root: Path
    stores: Sequence[TraceStore]
    manifest: Manifest
    linked: Collection[str]
    files: Files

    def write(self, renamed: NewIds) -> Manifest:
        """Write the arrays; return the manifest, with checksums.

        Rows in `renamed` get another id. Raises CorruptError if what is copied is damaged in a
        part.
        """
        self._infos = infos_of(self.manifest)
        for group in GROUPS:
            write_metadata(self.root, self.files, group, group_json())
        schema = self.manifest.schema
        tails: dict[str, list[int]] = {}
        for name in schema.columns:
            array = column_array(self.manifest, name)
            is_linked = name in self.linked
            tails |= self._adopt(array) if is_linked else self._write(array, self._items_of(name))
        for axis in schema.axes:
            if axis != TRACE_ID:
                offsets = offsets_array(axis, self.manifest.n_rows)
                tails |= self._write(offsets, self._offsets_of(axis))
        hashes, n_bytes, id_tails = self._write_ids(renamed)
        n_rows = self.manifest.n_rows
        run = (0, n_rows)
        checksum = write_run(self.root, self.files, run, hashes, np.arange(n_rows))
        return replace(
            self.manifest,
            n_items=self.manifest.n_items | {TRACE_ID: n_bytes},
            tails={path: sums for path, sums in (tails | id_tails).items() if sums},
            run_sums={run_name(run): checksum},
        )

    def _write(self, array: StoredArray, blocks: Iterable[np.ndarray]) -> dict[str, list[int]]:
        """Write an array; return its path, and the checksums of its last chunk."""
        path = array.layout.path
        new = Manifest(self.manifest.schema)
        return {path: write_array(self.root, self.files, array, self._infos[path], blocks, new)}

    def _items_of(self, name: str) -> Iterator[np.ndarray]:
        """The items of a column, of one part after the other, as `CopySource` converts them."""
        column = self.manifest.schema.stored[name]
        for store in self.stores:
            if name not in store.schema.stored:
                if not column.is_text:
                    yield np.full(len(store), np.nan, column.storage_dtype)
                continue
            array = column_array(store.manifest, name)
            step = max(1, BLOCK_BYTES // array.layout.item_bytes)
            reader = open_array(store.directory, array, check=store.manifest)
            for start in range(0, array.n_items, step):
                with store.reader.explained(array.axis):
                    items = reader.read(start, min(array.n_items, start + step))
                yield items.astype(column.storage_dtype, copy=False)

    def _offsets_of(self, axis: str) -> Iterator[np.ndarray]:
        """The offsets of an axis, of one part after the other."""
        yield np.zeros(1, np.int64)
        base = 0
        for store in self.stores:
            if axis not in store.schema.axes:
                yield np.full(len(store), base)
            elif len(store):
                yield _read_offsets(store, axis)[1:] + base
                base += store.manifest.n_items[axis]

    def _adopt(self, array: StoredArray) -> dict[str, list[int]]:
        """Write the checksums of the linked chunks, and the metadata of their array."""
        path = array.layout.path
        last = np.empty((0, array.layout.n_planes), np.uint32)  # of the last segment, may grow

        def sums() -> Iterator[np.ndarray]:
            nonlocal last
            for store in self.stores:
                own = column_array(store.manifest, array.column or "")
                if own.n_items:
                    # a segment's padded last chunk never changes again: its sum is as the others
                    yield last
                    reader = open_array(store.directory, own.checksums)
                    whole, last = ChunkSums(reader.read, own, store.manifest).read_all()
                    yield whole

        write_array(self.root, self.files, array.checksums, ArrayInfo(), sums())
        text = array_json(array.layout, array.n_places, self._infos[path])
        write_metadata(self.root, self.files, path, text)
        return {path: last.ravel().tolist()}

    def _write_ids(self, renamed: NewIds) -> tuple[np.ndarray, int, dict[str, list[int]]]:
        """Write trace ids and their offsets; return hashes, bytes, and checksums of last chunks."""
        values = column_array(self.manifest, TRACE_ID)
        offsets = offsets_array(TRACE_ID, self.manifest.n_rows)
        if not renamed:  # the hashes are there already
            runs = [_read_run(store, run) for store in self.stores for run in store.manifest.runs]
            tails = self._write(values, self._items_of(TRACE_ID))
            tails |= self._write(offsets, self._offsets_of(TRACE_ID))
            return np.concatenate(runs), values.n_items, tails
        ids = [
            renamed.get((part, row), trace_id)
            for part, store in enumerate(self.stores)
            for row, trace_id in enumerate(store.ids[:])
        ]
        texts = [trace_id.encode() for trace_id in ids]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        tails = self._write(values, [np.frombuffer(b"".join(texts), np.uint8)])
        tails |= self._write(offsets, [ends])
        return hash_ids(ids), int(ends[-1]), tails


def _read_run(store: TraceStore, run: Run) -> np.ndarray:
    """The hashes of the ids of a run, uint64, in the order of the rows; raises CorruptError."""
    with store.reader.explained():
        return hashes_by_row(run, *store.reader.id_table.run(run), store.path)


def _read_offsets(store: TraceStore, axis: str) -> np.ndarray:
    """The offsets of an axis, int64 `(n_rows + 1,)`; raises CorruptError."""
    array = open_array(store.directory, offsets_array(axis, len(store)), check=store.manifest)
    return Offsets(axis, array, store.manifest.n_items[axis]).read_checked()
