"""Stores put behind each other by reference: large files are linked, small arrays are rewritten.

The shards of a part get a second name in the new store (a hard link), as segments of its arrays. No
writer ever changes a shard in place, so both stores stay whole whatever happens to the other. Where
the file system cannot link, shards are copied as they are. Offsets, ids, checksums and columns that
take few bytes are rewritten: they are small, and one array of them is faster to read than many.

What is linked is not read: its checksums come along, so `verify` still finds what was damaged.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from store.errors import CorruptError, LockedError
from store.format.contents import WORKING_DIR, column_array
from store.format.manifest import Manifest, read_manifest
from store.format.schema import TRACE_ID, Schema
from store.read.arrays.shard import RESTORE
from store.read.joined.union import has_one_layout, have_dtype, plan_joined
from store.read.store import TraceStore
from store.write.files import Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, is_uninitialised, paths_in
from store.write.rewrite import NewIds, Rewriting
from store.write.source import Progress
from store.write.writer import group_text, publish

__all__ = ["Linked", "link_stores", "linked_columns"]

SMALL_ITEM_BYTES = 64  # of a fixed column that is rewritten
SMALL_SHARE = 1 / 2048  # of the bytes of all columns: the smallest columns are rewritten up to it
RECORD = "merge.json"  # in the working directory: which parts the linked files are of
# what the kernel answers where two names for a file are not possible, or not allowed
CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


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

    Stopped at any point, the same call goes on: nothing is committed before all is there. At `root`
    is nothing, or what such a call left. The stores have the columns of the schema, as of
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
        _clear(root, _record(stores, linked), linked, files)
        done = _Linking(root, manifest, files).link_all(stores, linked, progress)
        whole = Rewriting(root, stores, manifest, linked, files).write(renamed)
        for store in stores:
            store.directory.check()
        publish(root, whole, files)
        files.remove_tree(root / WORKING_DIR)
    return done


def _record(stores: Sequence[TraceStore], linked: Sequence[str]) -> bytes:
    """Which files are linked: those of another merge must not stay.

    Copies of a store have its uuid, and each may have grown on its own to the same generation.
    """
    parts = [
        [store.directory.device, store.directory.inode, store.uuid, store.manifest.checksum]
        for store in stores
    ]
    return json.dumps([parts, linked]).encode()


def _clear(root: Path, record: bytes, linked: Sequence[str], files: Files) -> None:
    """Remove what an earlier call left, but for files that this one needs and has named."""
    if not is_uninitialised(root):
        raise LockedError(f"{root}: it was changed meanwhile; merge again")
    file = root / WORKING_DIR / RECORD
    try:
        is_ours = file.read_bytes() == record
    except OSError:
        is_ours = False
    if not is_ours:
        _clear_durably(root, files)
    files.make_dirs(file.parent)
    for path in sorted([*root.iterdir(), *file.parent.iterdir()]):
        if path.is_file() and path != file:
            files.remove(path)
        elif path.name not in (WORKING_DIR, *linked):
            files.remove_tree(path)
    if not is_ours:
        files.replace_text(file, record)


def _clear_durably(root: Path, files: Files) -> None:
    """Remove everything, so that no power cut brings a file of another merge back."""
    for path in paths_in(root):
        files.remove(root / path)
    files.sync_dirs(Path(folder) for folder, _, _ in os.walk(root))
    clear_directory(root, files)


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
        """Link or copy a shard, unless an earlier call has."""
        source = store.path / path
        target = self.root / new_path
        done = self.done
        try:
            n_bytes = source.stat().st_size
            self._make_dirs(target.parent)
            reason = None if target.exists() else link_or_say(source, target, self.files)
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
