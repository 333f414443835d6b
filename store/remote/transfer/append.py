"""What an append to a store in a bucket adds: new objects beside those that readers have open.

The new items of a column become a segment of it, in shards of their own: the last shard of the
store in the bucket stays as it is, where a local writer would put a longer one in its place. Only
offsets, checksums and the metadata of arrays are replaced, by files that begin with the same chunks
and hold more; a reader takes each in one request, or names the object that it began with.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from crc32c import crc32c

from store.format.contents import (
    WORKING_DIR,
    StoredArray,
    checked_arrays,
    data_files,
    metadata_files,
    run_arrays,
    run_name,
)
from store.format.ids import hash_ids, plan_runs
from store.format.layout import SHARD_BYTES
from store.format.manifest import Manifest
from store.format.segments import joined_firsts
from store.format.zarr_json import ArrayInfo
from store.read.source import open_array
from store.read.store import TraceStore
from store.remote.objects.objects import Objects
from store.remote.objects.retry import again
from store.remote.pushed import Sums, check_sums
from store.remote.transfer.commit import Remote
from store.remote.transfer.lineage import sums_of
from store.remote.transfer.upload import Upload, file_of
from store.write.array_writer import ArrayWriter, write_array, write_run
from store.write.files import DISK

__all__ = ["Append", "Change", "whole_store"]

BLOCK_BYTES = 8 * 1024 * 1024


@dataclass
class Change:
    """What has to be in a bucket before `manifest` is committed.

    First objects that are `new`, then those that may have `grown`: they replace shorter ones; and
    nothing at the keys in `others`, which other programs would take for arrays of the store.
    `pushed` and `in_bucket` have the sums of each array, by its path: as it lies here, and there.
    """

    manifest: Manifest
    pushed: dict[str, Sums]
    in_bucket: dict[str, Sums]
    new: list[Upload]
    grown: list[Upload]
    others: list[str] = field(default_factory=list)


def whole_store(store: TraceStore) -> Change:
    """Every file of a store but the one that commits it."""
    manifest = store.manifest
    files = [Upload(key, file_of(store.path, key)) for key in sorted(data_files(manifest))]
    texts = [Upload(key, text) for key, text in metadata_files(manifest).items()]
    sums = sums_of(store)
    return Change(manifest, sums, sums, [*files, *texts], [])


class Append:
    """The difference between a store in a bucket and a later state of it here.

    `scratch` is an empty folder for new shards. From the bucket is only read.
    """

    def __init__(self, store: TraceStore, remote: Remote, objects: Objects, scratch: Path) -> None:
        self.store = store
        self.old = remote.manifest
        self.objects = objects
        self.scratch = scratch
        self.pushed = sums_of(store)
        self.sums = dict(self.pushed)
        self._old_sums = remote.record.in_bucket
        self.new: list[Upload] = []
        self.grown: list[Upload] = []
        self._segments: dict[str, list[int]] = {}

    def plan(self) -> Change:
        now = self.store.manifest
        old = {array.layout.path: array for array in checked_arrays(self.old)}
        for array in checked_arrays(now):
            before = old.get(array.layout.path)
            if before is None:
                self._add_whole(array)
            elif array.column is None:
                self._add_offsets(array, before)
            else:
                self._add_items(array, before)
        runs, run_sums = self._add_ids()
        manifest = replace(
            now,
            generation=max(now.generation, self.old.generation + 1),
            runs=runs,
            run_sums=run_sums,
            tails={path: sums.tails for path, sums in self.sums.items() if sums.tails},
            segments={path: firsts for path, firsts in self._segments.items() if len(firsts) > 1},
        )
        self._add_metadata(manifest)
        return Change(manifest, self.pushed, self.sums, self.new, self.grown)

    def _add_whole(self, now: StoredArray) -> None:
        """An array that the bucket does not have: the files as they are here."""
        for array in (now, now.checksums):
            for shard in range(array.n_shards):
                key = array.layout.shard_path(shard)
                self.new.append(Upload(key, file_of(self.store.path, key)))
        path = now.layout.path
        self._segments[path] = self.store.manifest.segments.get(path, [])

    def _add_offsets(self, now: StoredArray, old: StoredArray) -> None:
        if now.n_items > old.n_items:
            for before, after in ((old, now), (old.checksums, now.checksums)):
                self._add_grown(self.store.path, before, after.n_items)

    def _add_items(self, now: StoredArray, old: StoredArray) -> None:
        """What a column has more, as a segment of its own."""
        path = now.layout.path
        firsts = self.old.segments.get(path, [])
        n_new = now.n_items - old.n_items
        if n_new:
            self._add_segment(now, old)
            firsts, _ = joined_firsts([(old.n_items, firsts), (n_new, [])], now.layout.shard_items)
        else:
            self.sums[path] = self._old_sums[path]
        self._segments[path] = firsts

    def _add_segment(self, now: StoredArray, old: StoredArray) -> None:
        """The items that a column has more, in shards behind those in the bucket."""
        layout = now.layout
        root = self._folder("segments")  # as of a store that has them alone
        added = StoredArray(layout, now.n_items - old.n_items)
        reader = open_array(self.store.directory, now, check=self.store.manifest)
        starts = range(old.n_items, now.n_items, max(1, BLOCK_BYTES // layout.item_bytes))
        blocks = (reader.read(start, min(now.n_items, start + starts.step)) for start in starts)
        tails = write_array(root, DISK, added, ArrayInfo(), blocks, self.old)
        for shard in range(added.n_shards):
            key = layout.shard_path(old.n_shards + shard)
            self.new.append(Upload(key, root / layout.shard_path(shard)))
        sums = open_array(self.store.directory.at(root), added.checksums)
        self._add_sums(old, sums.read(0, added.checksums.n_items), tails)

    def _add_sums(self, old: StoredArray, new_sums: np.ndarray, tails: list[int]) -> None:
        """The checksums of a column that has a new segment: the old ones, and more."""
        path = old.layout.path
        last = np.array(self._old_sums[path].tails, np.uint32).reshape(-1, old.layout.n_planes)
        more = np.concatenate([last, new_sums])
        self.sums[path] = Sums(crc32c(more.tobytes(), self._old_sums[path].crc), tails)
        if not len(more):
            return
        checksums = old.checksums
        root = self._folder("checksums")
        if checksums.n_items % checksums.layout.shard_items:
            again(lambda: self._fetch_sums(old, root))
        writer = ArrayWriter(root, DISK, checksums, ArrayInfo())
        writer.append(more)
        writer.commit()
        writer.close()
        self._add_grown(root, checksums, checksums.n_items + len(more))

    def _fetch_sums(self, old: StoredArray, root: Path) -> None:
        """Take the checksums of a column from the bucket; raises CorruptError if others come.

        They would be committed again.
        """
        checksums = old.checksums
        for shard in range(checksums.n_shards):
            key = checksums.layout.shard_path(shard)
            target = root / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.objects.get(key, 2 * SHARD_BYTES))
        crc = self._old_sums[old.layout.path].crc
        check_sums(self.store.directory.at(root), checksums, crc)

    def _add_grown(self, root: Path, old: StoredArray, n_items: int) -> None:
        """The shards of a small array from its last one in the bucket on, from below `root`."""
        layout = old.layout
        first = old.n_items // layout.shard_items
        for shard in range(first, layout.n_shards(n_items)):
            key = layout.shard_path(shard)
            is_there = shard < old.n_shards
            uploads = self.grown if is_there else self.new
            uploads.append(Upload(key, file_of(root, key), is_new=not is_there))

    def _add_ids(self) -> tuple[tuple[tuple[int, int], ...], dict[str, int]]:
        """A run of the id table for the new rows; return the runs, and their checksums."""
        n_rows = self.store.manifest.n_rows
        if n_rows == self.old.n_rows:
            return self.old.runs, self.old.run_sums
        kept, first = plan_runs(self.old.runs, n_rows)
        run = (first, n_rows)
        root = self._folder("ids")
        hashes = hash_ids(self.store.ids[first:n_rows])
        checksum = write_run(root, DISK, run, hashes, np.arange(first, n_rows))
        for array in run_arrays(run):
            key = array.layout.shard_path(0)
            self.new.append(Upload(key, root / key))
        names = {run_name(old) for old in kept}
        sums = {name: crc for name, crc in self.old.run_sums.items() if name in names}
        return (*kept, run), sums | {run_name(run): checksum}

    def _add_metadata(self, manifest: Manifest) -> None:
        """The `zarr.json` of groups and arrays that are new, or say something else now."""
        before = metadata_files(self.old)
        for path, text in metadata_files(manifest).items():
            if before.get(path) != text:
                self.grown.append(Upload(path, text, is_new=False))

    def _folder(self, name: str) -> Path:
        root = self.scratch / name
        (root / WORKING_DIR).mkdir(parents=True, exist_ok=True)
        return root
