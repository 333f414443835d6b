"""The small arrays of a store that is merged by reference, made from those of its parts.

Offsets, ids, the id table and small columns; the checksums of what is linked; metadata. What is
read is checked: a copy would hide that it was damaged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from store.errors import CorruptError
from store.format.array_info import ArrayInfo
from store.format.contents import (
    GROUPS,
    StoredArray,
    column_array,
    infos_of,
    offsets_array,
    run_name,
)
from store.format.ids import Run, hash_ids
from store.format.layout import offsets_layout
from store.format.manifest import Manifest
from store.format.schema import TRACE_ID
from store.format.zarr_json import array_json, group_json
from store.read.location import Offsets
from store.read.open_array import open_array
from store.read.shard import RESTORE
from store.read.store import TraceStore
from store.write.array_writer import ArrayWriter, write_metadata
from store.write.files import Files
from store.write.id_table import write_run

__all__ = ["NewIds", "rewrite_small"]

BLOCK_BYTES = 8 * 1024 * 1024
ROWS_AT_ONCE = 65_536
NewIds = Mapping[tuple[int, int], str]
"""(part, row of its store) -> its id in the new store."""


def rewrite_small(
    root: Path,
    stores: Sequence[TraceStore],
    manifest: Manifest,
    linked: Collection[str],
    renamed: NewIds,
    files: Files,
) -> Manifest:
    """Write everything but the shards of linked columns, durably, and nothing that commits it.

    `stores` are the parts of the store at `root`, where the shards of the columns in `linked` are;
    rows in `renamed` get another id. `manifest` is what will be committed, but for checksums, and
    is returned with them. Raises CorruptError if what is copied is damaged in a part.
    """
    return _Rewriting(root, stores, manifest, linked, files).rewrite_all(renamed)


class _Rewriting:
    def __init__(
        self,
        root: Path,
        stores: Sequence[TraceStore],
        manifest: Manifest,
        linked: Collection[str],
        files: Files,
    ) -> None:
        self.root = root
        self.stores = stores
        self.manifest = manifest
        self.linked = linked
        self.files = files
        self.infos = infos_of(manifest)

    def rewrite_all(self, renamed: NewIds) -> Manifest:
        """Write the arrays that are no links, and the checksums and metadata of all."""
        for group in GROUPS:
            write_metadata(self.root, self.files, group, group_json())
        schema = self.manifest.schema
        tails: dict[str, list[int]] = {}
        for name in schema.stored:
            path = schema.layout(name).path
            if name in self.linked:
                tails[path] = self._adopt_sums(name)
            elif name != TRACE_ID:
                tails[path] = self._rewrite_column(name)
        for axis in schema.axes:
            if axis != TRACE_ID:
                tails[offsets_layout(axis).path] = self._rewrite_offsets(axis)
        tails |= self._rewrite_ids(renamed)
        tails = {path: sums for path, sums in tails.items() if sums}
        return replace(self.manifest, tails=tails)

    def _writer(self, array: StoredArray) -> ArrayWriter:
        """The writer of a new array."""
        empty = StoredArray(array.layout, 0)
        info = self.infos[array.layout.path]
        return ArrayWriter(self.root, self.files, empty, info, Manifest(self.manifest.schema))

    def _rewrite_column(self, name: str) -> list[int]:
        """Write the items of all parts; return the checksums of the last chunk."""
        array = column_array(self.manifest, name)
        writer = self._writer(array)
        step = max(1, BLOCK_BYTES // array.layout.item_bytes)
        for store in self.stores:
            own = column_array(store.manifest, name)
            reader = open_array(store.directory, own, check=store.manifest)
            for start in range(0, own.n_items, step):
                with store.reader.explained(array.axis):
                    items = reader.read(start, min(own.n_items, start + step))
                writer.append(items)
        return _finish(writer)

    def _rewrite_offsets(self, axis: str) -> list[int]:
        """Write the offsets of an axis; return the checksums of the last chunk."""
        writer = self._writer(offsets_array(axis, self.manifest.n_rows))
        writer.append(np.zeros(1, np.int64))
        base = 0
        for store in self.stores:
            if len(store):
                writer.append(_read_offsets(store, axis)[1:] + base)
                base += store.manifest.n_items[axis]
        return _finish(writer)

    def _adopt_sums(self, name: str) -> list[int]:
        """Write the checksums of the linked chunks, and the metadata of their array.

        The padded last chunk of a segment never changes again: its sum becomes one like the others.
        Returns that of the last segment, which may grow.
        """
        array = column_array(self.manifest, name)
        empty = array.checksums._replace(n_items=0)
        sums = ArrayWriter(self.root, self.files, empty, ArrayInfo())
        last: list[int] = []
        for store in self.stores:
            own = column_array(store.manifest, name)
            if not own.n_items:
                continue
            sums.append(np.array(last, np.uint32).reshape(-1, array.layout.n_planes))
            reader = open_array(store.directory, own.checksums)
            sums.append(reader.read(0, own.checksums.n_items))
            last = _tail_sums(store, own)
        _finish(sums)
        text = array_json(array.layout, array.n_places, self.infos[array.layout.path])
        write_metadata(self.root, self.files, array.layout.path, text)
        return last

    def _rewrite_ids(self, renamed: NewIds) -> dict[str, list[int]]:
        """Write trace ids, their offsets and the id table; return the checksums of last chunks."""
        n_rows = self.manifest.n_rows
        rows = np.arange(n_rows)
        if renamed:
            hashes, tails = self._write_ids(renamed)
        else:
            runs = [_read_run(store, run) for store in self.stores for run in store.manifest.runs]
            hashes = np.concatenate(runs)
            tails = {
                self.manifest.schema.layout(TRACE_ID).path: self._rewrite_column(TRACE_ID),
                offsets_layout(TRACE_ID).path: self._rewrite_offsets(TRACE_ID),
            }
        run = (0, n_rows)
        checksum = write_run(self.root, self.files, run, hashes, rows)
        self.manifest = replace(self.manifest, run_sums={run_name(run): checksum})
        return tails

    def _write_ids(self, renamed: NewIds) -> tuple[np.ndarray, dict[str, list[int]]]:
        """Write ids some of which are new; return their hashes, and checksums of last chunks."""
        values = column_array(self.manifest, TRACE_ID)
        offsets = offsets_array(TRACE_ID, self.manifest.n_rows)
        value_writer = self._writer(values)
        offset_writer = self._writer(offsets)
        offset_writer.append(np.zeros(1, np.int64))
        hashes = []
        end = 0
        for part, store in enumerate(self.stores):
            for start in range(0, len(store), ROWS_AT_ONCE):
                old = store.ids[start : start + ROWS_AT_ONCE]
                ids = [renamed.get((part, start + i), name) for i, name in enumerate(old)]
                texts = [trace_id.encode() for trace_id in ids]
                value_writer.append(np.frombuffer(b"".join(texts), np.uint8))
                ends = end + np.cumsum(list(map(len, texts)))
                offset_writer.append(ends)
                end = int(ends[-1])
                hashes.append(hash_ids(ids))
        n_items = self.manifest.n_items | {TRACE_ID: end}
        self.manifest = replace(self.manifest, n_items=n_items)
        tails = {
            values.layout.path: _finish(value_writer),
            offsets.layout.path: _finish(offset_writer),
        }
        return np.concatenate(hashes), tails


def _read_run(store: TraceStore, run: Run) -> np.ndarray:
    """The hashes of the ids of a run, uint64, in the order of the rows; raises CorruptError."""
    with store.reader.explained():
        hashes, rows = store.reader.id_table.run(run)
    order = np.argsort(rows)
    if not np.array_equal(rows[order], np.arange(*run)):
        raise CorruptError(
            f"{store.path}, id table, rows {run_name(run)}: expected each row once, found "
            f"otherwise; {RESTORE}"
        )
    return hashes[order]


def _read_offsets(store: TraceStore, axis: str) -> np.ndarray:
    """The offsets of an axis, int64 `(n_rows + 1,)`; raises CorruptError."""
    n_items = store.manifest.n_items[axis]
    array = open_array(store.directory, offsets_array(axis, len(store)), check=store.manifest)
    offsets = Offsets(axis, array, n_items).read_checked()
    ends = offsets[[0, -1]].tolist()
    if ends != [0, n_items]:
        raise CorruptError(
            f"{store.path}, axis {axis!r}: expected offsets from 0 to {n_items}, found "
            f"{ends[0]} to {ends[1]}; {RESTORE}"
        )
    return offsets


def _tail_sums(store: TraceStore, array: StoredArray) -> list[int]:
    """The checksums of the padded last chunk of a column, one a plane; raises CorruptError."""
    sums = store.manifest.tails.get(array.layout.path, [])
    has_tail = array.n_places % array.layout.chunk_items > 0
    n_expected = array.layout.n_planes if has_tail else 0
    if len(sums) != n_expected:
        raise CorruptError(
            f"{store.path}, column {array.column!r}: expected {n_expected} checksums of its last "
            f"chunk, found {len(sums)}; {RESTORE}"
        )
    return sums


def _finish(writer: ArrayWriter) -> list[int]:
    """Commit an array; return the checksums of its padded last chunk."""
    sums = writer.commit()
    writer.close()
    return sums
