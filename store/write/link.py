"""Stores put behind each other by reference: large files are linked, small arrays are rewritten.

The shards of a part get a second name in the new store (a hard link), as segments of its arrays. No
writer ever changes a shard in place, so both stores stay whole whatever happens to the other. Where
the file system cannot link, shards are copied as they are. Offsets, ids, checksums and columns that
take few bytes are rewritten: they are small, and one array of them is faster to read than many.

What is linked is not read: its checksums come along, so `verify` still finds what was damaged. What
is rewritten is checked: a copy would hide that it was damaged.
"""

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from store.errors import CorruptError, LockedError
from store.format.contents import (
    GROUPS,
    WORKING_DIR,
    StoredArray,
    column_array,
    infos_of,
    offsets_array,
    run_name,
)
from store.format.ids import Run, hash_ids, hashes_by_row
from store.format.manifest import Manifest, read_manifest
from store.format.schema import TRACE_ID, Schema
from store.format.zarr_json import ArrayInfo, array_json, group_json
from store.read.arrays.chunk_sums import ChunkSums
from store.read.arrays.shard import RESTORE
from store.read.joined.union import has_one_layout, have_dtype, plan_joined
from store.read.row_location import Offsets
from store.read.source import open_array
from store.read.store import TraceStore
from store.write.array_writer import write_array, write_metadata, write_run
from store.write.files import Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, is_uninitialised
from store.write.source import Progress
from store.write.writer import group_text, publish

__all__ = ["Linked", "NewIds", "link_stores", "linked_columns"]

SMALL_ITEM_BYTES = 64  # of a fixed column that is rewritten
SMALL_SHARE = 1 / 2048  # of the bytes of all columns: the smallest columns are rewritten up to it
# what the kernel answers where two names for a file are not possible, or not allowed
CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
BLOCK_BYTES = 8 * 1024 * 1024
NewIds = Mapping[tuple[int, int], str]
"""(part, row of its store) -> its id in the new store."""


def link_or_say(source: Path, target: Path, files: Files) -> str | None:
    """Give a file a second name; return why that is not possible, or None."""
    if source.is_symlink():  # no writer of a store made it, and none keeps what it points to
        return "symbolic links"
    try:
        files.link(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
        return str(error.strerror)
    return None


@dataclass
class Linked:
    """What a merge by reference did: files that two stores share now, files that could not be
    shared, and why the first of these could not; and columns whose files differ in their layout
    among the parts, so that they were rewritten.
    """

    n_linked: int = 0
    linked_bytes: int = 0
    n_copied: int = 0
    copied_bytes: int = 0
    reason: str = ""
    rewritten: tuple[str, ...] = ()

    @property
    def n_files(self) -> int:
        return self.n_linked + self.n_copied

    @property
    def file_bytes(self) -> float:
        """Mean size of the files."""
        return (self.linked_bytes + self.copied_bytes) / max(1, self.n_files)


def linked_columns(stores: Sequence[TraceStore]) -> list[str]:
    """The columns of all stores whose files a merge can share, and that are large enough."""
    first = stores[0].schema
    common = [name for name in first.stored if all(name in s.schema.stored for s in stores)]
    sizes = {
        name: sum(store.n_items(name) for store in stores) * first.stored[name].item_bytes
        for name in common
    }
    allowance = sum(sizes.values()) * SMALL_SHARE
    linked = []
    for name in sorted(sizes, key=sizes.__getitem__):
        column = first.stored[name]
        is_small = (
            column.axis is None and not column.is_text and column.item_bytes <= SMALL_ITEM_BYTES
        )
        if name == TRACE_ID or is_small or not has_one_layout(stores, name):
            continue
        allowance -= sizes[name]
        if allowance < 0:
            linked.append(name)
    return [name for name in common if name in linked]


def link_stores(
    root: Path,
    stores: Sequence[TraceStore],
    schema: Schema,
    provenance: Mapping[str, object],
    renamed: NewIds,
    files: Files,
    progress: Progress,
) -> Linked:
    """Make a store of the rows of several, whose large files are those of the parts.

    Stopped at any point, the same call begins anew: nothing is committed before all is there. At
    `root` is nothing, or what such a call left. The stores have the columns of the schema, as of
    `CopySource`, and at least one row; they are only read, and links to their files are made.
    `renamed` are the rows that get another id; `progress` is called with the number of rows of the
    parts whose files are linked.

    Raises SchemaError if they are too many for one store; CorruptError if a file of a part is
    missing, or what is rewritten is damaged; LockedError if another process makes this store, or a
    part was changed so that its files are gone.
    """
    linked = linked_columns(stores)
    manifest = plan_joined(stores, schema, linked, provenance)
    group_text(root, manifest)  # refuses what no reader would accept, before anything is there
    files.make_dirs(root)
    with WriterLock(root):
        if not is_uninitialised(root):
            raise LockedError(f"{root}: it was changed meanwhile; merge again")
        clear_directory(root, files)
        files.make_dirs(root / WORKING_DIR)
        done = _Linking(root, manifest, files).link_all(stores, linked, progress)
        whole = Rewriting(root, stores, manifest, linked, files).write(renamed)
        for store in stores:
            store.directory.check()
        publish(root, whole, files)
        files.remove_tree(root / WORKING_DIR)
    return done


class _Linking:
    """Gives large files of the parts a name in the new store."""

    def __init__(self, root: Path, manifest: Manifest, files: Files) -> None:
        self.root = root
        self.schema = manifest.schema
        self.files = files
        self.done = Linked()
        self._folders = {root}  # that are there

    def link_all(
        self, stores: Sequence[TraceStore], linked: Sequence[str], progress: Progress
    ) -> Linked:
        columns = self.schema.columns
        self.done.rewritten = tuple(
            name
            for name in columns
            if have_dtype(stores, name, columns[name].dtype) and not has_one_layout(stores, name)
        )
        n_shards = dict.fromkeys(linked, 0)  # of the parts so far
        n_rows = 0
        for store in stores:
            for name in linked:
                array = column_array(store.manifest, name)
                layout = self.schema.layout(name)
                for i in range(array.n_shards):
                    source = array.layout.shard_path(i)
                    self._link(store, source, layout.shard_path(n_shards[name] + i))
                n_shards[name] += array.n_shards
            n_rows += len(store)
            progress(n_rows)
        self.files.sync_dirs(Path(folder) for folder, _, _ in os.walk(self.root))
        return self.done

    def _link(self, store: TraceStore, path: str, new_path: str) -> None:
        """Link or copy a shard."""
        source = store.path / path
        target = self.root / new_path
        done = self.done
        try:
            n_bytes = source.stat().st_size
            self._make_dirs(target.parent)
            reason = link_or_say(source, target, self.files)
            if reason is None:
                done.n_linked += 1
                done.linked_bytes += n_bytes
                return
            self._copy(source, target)
            done.reason = done.reason or reason
            done.n_copied += 1
            done.copied_bytes += n_bytes
        except FileNotFoundError as error:
            if read_manifest(store.path).generation != store.generation:
                raise LockedError(
                    f"{store.path}: a commit changed it while it was merged; merge it again"
                ) from error
            raise CorruptError(
                f"{source}: expected a file of the store, found none; {RESTORE}"
            ) from error

    def _make_dirs(self, folder: Path) -> None:
        """Make the folder of a shard; all are synced in the end."""
        if folder not in self._folders:
            self._make_dirs(folder.parent)
            self.files.make_dir(folder)
            self._folders.add(folder)

    def _copy(self, source: Path, target: Path) -> None:
        working = self.root / WORKING_DIR / "copied"
        self.files.remove(working)
        self.files.copy_file(source, working)
        self.files.rename(working, target)


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
