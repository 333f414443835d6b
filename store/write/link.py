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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from store.errors import CorruptError, LockedError
from store.format.contents import WORKING_DIR, column_array
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.format.schema import TRACE_ID, Schema
from store.format.segments import count_shards, joined_firsts
from store.read.shard import RESTORE
from store.read.store import TraceStore
from store.write.copy import Progress
from store.write.files import Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, is_uninitialised, paths_in
from store.write.rewrite import NewIds, rewrite_small
from store.write.writer import group_text

__all__ = ["Linked", "link_or_say", "link_stores", "linked_columns"]

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
    """What a merge by reference did.

    Attributes
    ----------
    n_linked, linked_bytes
        Files that two stores share now.
    n_copied, copied_bytes
        Files that could not be shared.
    reason
        Why the first of these could not.
    rewritten
        Columns whose files differ in their layout among the parts, so that they were rewritten.
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


class _Shard(NamedTuple):
    """A shard of a part, and its path in the new store."""

    source: Path
    target: str


def linked_columns(stores: Sequence[TraceStore]) -> list[str]:
    """The columns of all stores whose files a merge can share, and that are large enough."""
    first = stores[0].schema
    common = [name for name in first.stored if all(name in s.schema.stored for s in stores)]
    sizes = {name: _column_bytes(stores, name) for name in common}
    allowance = sum(sizes.values()) * SMALL_SHARE
    linked = []
    for name in sorted(sizes, key=sizes.__getitem__):
        column = first.stored[name]
        is_small = column.axis is None and not column.is_text
        is_small = is_small and column.item_bytes <= SMALL_ITEM_BYTES
        is_ours = name != TRACE_ID and not is_small and _has_one_layout(stores, name)
        if not is_ours:
            continue
        allowance -= sizes[name]
        if allowance < 0:
            linked.append(name)
    return [name for name in common if name in linked]


def _column_bytes(stores: Sequence[TraceStore], name: str) -> int:
    item_bytes = stores[0].schema.stored[name].item_bytes
    return sum(store.n_items(name) for store in stores) * item_bytes


def _has_one_layout(stores: Sequence[TraceStore], name: str) -> bool:
    layouts = {replace(store.schema.layout(name), path=name) for store in stores}
    return len(layouts) == 1


def link_stores(
    root: Path,
    stores: Sequence[TraceStore],
    provenance: Mapping[str, Any],
    renamed: NewIds,
    files: Files,
    progress: Progress,
) -> Linked:
    """Make a store of the rows of several, whose large files are those of the parts.

    Stopped at any point, the same call goes on: nothing is committed before all is there.

    Parameters
    ----------
    root
        Where to make it: nothing is there, or what such a call left.
    stores
        With the same columns and at least one row. They are only read, and links to their files are
        made.
    renamed
        Rows that get another id.
    progress
        Called with the number of rows of the parts whose files are linked.

    Raises
    ------
    SchemaError
        They are too many for one store.
    CorruptError
        A file of a part is missing, or what is rewritten is damaged.
    LockedError
        Another process makes this store, or a part was changed so that its files are gone.
    """
    building = _Building(root, stores, provenance, files)
    files.make_dirs(root)
    with WriterLock(root):
        building.clear()
        linked = building.link_all(progress)
        manifest = rewrite_small(root, stores, building.manifest, building.linked, renamed, files)
        building.publish(manifest)
    return linked


class _Building:
    """A store that is being made of parts.

    Attributes
    ----------
    linked
        The columns whose files are linked; the others are rewritten.
    manifest
        What will be committed, but for checksums.
    """

    def __init__(
        self,
        root: Path,
        stores: Sequence[TraceStore],
        provenance: Mapping[str, Any],
        files: Files,
    ) -> None:
        self.root = root
        self.stores = stores
        self.files = files
        self.linked = linked_columns(stores)
        self._folders = {root}  # that are there
        self.manifest = self._plan(provenance)
        group_text(root, self.manifest)  # refuses what no reader would accept, before anything is

    def _plan(self, provenance: Mapping[str, Any]) -> Manifest:
        """The manifest but for checksums, which are not known yet."""
        schema = Schema(self.stores[0].schema.columns)
        n_rows = sum(map(len, self.stores))
        n_items = {
            axis: sum(store.manifest.n_items.get(axis, 0) for store in self.stores)
            for axis in schema.axes
        }
        segments = {}
        for name in self.linked:
            layout = schema.layout(name)
            parts = [
                (store.n_items(name), store.manifest.segments.get(_path(store, name), []))
                for store in self.stores
            ]
            firsts, n = joined_firsts(parts, layout.shard_items)
            n_shards = count_shards(firsts, n, layout.shard_items)
            layout.check_size(n_shards * layout.shard_items)
            if len(firsts) > 1:
                segments[layout.path] = firsts
        return Manifest(
            schema,
            generation=1,
            n_rows=n_rows,
            n_items=n_items,
            runs=((0, n_rows),),
            provenance=dict(provenance),
            segments=segments,
        )

    @property
    def _record(self) -> Path:
        return self.root / WORKING_DIR / RECORD

    @property
    def _identity(self) -> bytes:
        """Which files are linked: those of another merge must not stay.

        Copies of a store have its uuid, and each may have grown on its own to the same generation.
        """
        parts = [
            [store.directory.device, store.directory.inode, store.uuid, store.manifest.checksum]
            for store in self.stores
        ]
        return json.dumps([parts, self.linked]).encode()

    def _shards(self, store: TraceStore, name: str, first: int) -> list[_Shard]:
        """The shards of a column of a part; in the new store they are numbered from `first`."""
        source = column_array(store.manifest, name)
        target = self.manifest.schema.layout(name)
        return [
            _Shard(store.path / source.layout.shard_path(i), target.shard_path(first + i))
            for i in range(source.n_shards)
        ]

    def _shards_of_parts(self) -> list[list[_Shard]]:
        """For each part the shards to link."""
        numbers = dict.fromkeys(self.linked, 0)
        parts = []
        for store in self.stores:
            shards: list[_Shard] = []
            for name in self.linked:
                own = self._shards(store, name, numbers[name])
                numbers[name] += len(own)
                shards += own
            parts.append(shards)
        return parts

    def clear(self) -> None:
        """Remove what an earlier call left, but for files that this one needs and has named."""
        if not is_uninitialised(self.root):
            raise LockedError(f"{self.root}: it was changed meanwhile; merge again")
        try:
            is_ours = self._record.read_bytes() == self._identity
        except OSError:
            is_ours = False
        if not is_ours:
            self._clear_durably()
        self.files.make_dirs(self.root / WORKING_DIR)
        for path in sorted([*self.root.iterdir(), *self._record.parent.iterdir()]):
            if path.is_file() and path != self._record:
                self.files.remove(path)
            elif path.name not in (WORKING_DIR, *self.linked):
                self.files.remove_tree(path)
        if not is_ours:
            self.files.replace_text(self._record, self._identity)

    def _clear_durably(self) -> None:
        """Remove everything, so that no power cut brings a file of another merge back."""
        for path in paths_in(self.root):
            self.files.remove(self.root / path)
        self.files.sync_dirs(Path(folder) for folder, _, _ in os.walk(self.root))
        clear_directory(self.root, self.files)

    def link_all(self, progress: Progress) -> Linked:
        """Give every large file a name in the new store."""
        done = Linked(rewritten=self._rewritten_for_layout())
        n_rows = 0
        for store, shards in zip(self.stores, self._shards_of_parts(), strict=True):
            for shard in shards:
                self._link(store, shard, done)
            n_rows += len(store)
            progress(n_rows)
        self.files.sync_dirs(Path(folder) for folder, _, _ in os.walk(self.root))
        return done

    def _rewritten_for_layout(self) -> tuple[str, ...]:
        names = self.manifest.schema.columns
        return tuple(name for name in names if not _has_one_layout(self.stores, name))

    def _link(self, store: TraceStore, shard: _Shard, done: Linked) -> None:
        """Link or copy a shard, unless an earlier call has."""
        target = self.root / shard.target
        try:
            n_bytes = shard.source.stat().st_size
            if target.exists() or self._could_link(shard.source, target, done):
                done.n_linked += 1
                done.linked_bytes += n_bytes
                return
            self._copy(shard.source, target)
            done.n_copied += 1
            done.copied_bytes += n_bytes
        except FileNotFoundError as error:
            if read_manifest(store.path).generation != store.generation:
                raise LockedError(
                    f"{store.path}: a commit changed it while it was merged; merge it again"
                ) from error
            raise CorruptError(
                f"{shard.source}: expected a file of the store, found none; {RESTORE}"
            ) from error

    def _could_link(self, source: Path, target: Path, done: Linked) -> bool:
        self._make_dirs(target.parent)
        reason = link_or_say(source, target, self.files)
        done.reason = done.reason or reason or ""
        return reason is None

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

    def publish(self, manifest: Manifest) -> None:
        """The moment of the commit."""
        for store in self.stores:
            store.directory.check()
        self.files.replace_text(self.root / GROUP_FILE, group_text(self.root, manifest))
        self.files.remove_tree(self.root / WORKING_DIR)


def _path(store: TraceStore, name: str) -> str:
    return store.schema.layout(name).path
