"""A store in a bucket into a directory, checked before it has its name.

It grows beside the place it is for, and the same call goes on where one was stopped: a file has its
name once it is whole. In the end every chunk is compared with the checksums that its writer took,
and files that differ are fetched again; what cannot be had right is an error, never a store.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from store.check.report import Problem, array_of
from store.check.verify import BytesProgress, verify_store
from store.errors import CorruptError, LockedError, NotFoundError, SchemaError
from store.format.contents import WORKING_DIR, checked_arrays, data_files, metadata_files
from store.format.manifest import GROUP_FILE, read_manifest
from store.read.directory import check_outside
from store.read.store import TraceStore
from store.remote.objects.faults import ConflictError
from store.remote.objects.objects import Head, Objects
from store.remote.objects.parallel import Moved, Tally, run_all
from store.remote.objects.retry import FETCHES
from store.remote.pushed import IN_BUCKET, sums_in
from store.remote.transfer.commit import Remote, read_remote
from store.remote.transfer.lineage import sums_of
from store.system import TRANSFER_THREADS
from store.write.files import DISK, Files
from store.write.lock import WriterLock
from store.write.orphans import clear_directory, paths_in
from store.write.space import bytes_under, check_space
from store.write.writer import group_text

__all__ = ["pull_store"]

SUFFIX = ".pull"
RECORD = "pull.json"  # in the working directory: which store it is


def pull_store(
    objects: Objects,
    path: Path,
    *,
    dry_run: bool = False,
    ignore_space: bool = False,
    n_threads: int = TRANSFER_THREADS,
    progress: BytesProgress = lambda done, total: None,
    checking: BytesProgress = lambda done, total: None,
    files: Files = DISK,
) -> Moved:
    """Make a local store at a new path of one in a bucket.

    With `dry_run` it only looks; with `ignore_space` it goes on although the disk seems too small.
    `n_threads` files come at a time; `progress` and `checking` are called with the bytes that are
    here, or are checked, and those of all files.

    Raises
    ------
    NotFoundError
        No store is there.
    SchemaError
        Something is at `path`, or the disk is too small.
    CorruptError
        The bucket lost an object, or has wrong bytes.
    LockedError
        Another store, or another state of this one, took its place meanwhile.
    UnreachableError
        The server did not answer in time; the same call goes on.
    """
    check_outside(path)
    remote = read_remote(objects)
    if remote is None:
        raise NotFoundError(
            f"{objects.location}: expected a store, found no {GROUP_FILE}; check the address"
        )
    manifest = remote.manifest
    if path.exists():
        if read_manifest(path) != manifest:
            raise SchemaError(f"{path}: expected a new path, found another store; choose another")
        if not _has_values_of(path, remote):
            raise SchemaError(
                f"{path}: expected a new path, found another copy of this store, which grew on its "
                "own; choose another"
            )
        return Moved(manifest.n_rows, is_done=False)
    pull = _Pull(objects, path, remote, n_threads, files)
    pulled = pull.outlook()
    if not dry_run:
        check_space(path, pulled.n_bytes - bytes_under(pull.root), ignore=ignore_space)
        pull.run(progress, checking)
    return pulled


def _has_values_of(path: Path, remote: Remote) -> bool:
    """Whether a local store, of the manifest of one in a bucket, has the values that were pushed.

    A copy that another program put there does not tell.
    """
    sums = sums_in(remote.record, IN_BUCKET)
    return not sums or sums_of(TraceStore.open(path)) == sums


class _Pull:
    """A store that grows at `root`; `heads` are its data files, as objects."""

    def __init__(
        self, objects: Objects, path: Path, remote: Remote, n_threads: int, files: Files
    ) -> None:
        self.objects = objects
        self.path = path
        self.root = path.with_name(path.name + SUFFIX).absolute()
        self.remote = remote
        self.manifest = remote.manifest
        self.n_threads = n_threads
        self.files = files
        self.heads = self._find(data_files(self.manifest))

    def _find(self, keys: Collection[str]) -> dict[str, Head]:
        """The objects of the store's files; raises CorruptError if one is missing."""
        listed = self.objects.heads(keys)
        missing = sorted(keys - listed.keys())
        if missing:
            raise CorruptError(
                f"{self.objects.where(missing[0])}: expected an object of the store, found none "
                f"({len(missing)} are missing); push the store again, or restore the bucket"
            )
        return {key: listed[key] for key in sorted(keys)}

    def _present(self) -> set[str]:
        """The data files that are here, as long as the objects are."""
        files = {key: self.root / key for key in self.heads}
        sizes = {key: file.stat().st_size for key, file in files.items() if file.is_file()}
        return {key for key, size in sizes.items() if size == self.heads[key].size}

    def _kept(self) -> set[str]:
        """The data files of an earlier pull that are not fetched anew.

        Those that are fetched now tell which other files are right. A pull of another copy of the
        store, which grew on its own, may have left all of them.
        """
        kept = {key for key in self._present() if not key.startswith("_checksums/")}
        return kept if self._record() == self._identity else set()

    def outlook(self) -> Moved:
        """What is to be done, and what is here."""
        n_bytes = sum(head.size for head in self.heads.values())
        return Moved(self.manifest.n_rows, 0, len(self.heads), n_bytes, len(self._kept()))

    def run(self, progress: BytesProgress, checking: BytesProgress) -> None:
        """Fetch what is missing, check all, and give the store its name."""
        self.files.make_dirs(self.root)
        with WriterLock(self.root):
            self._clear()
            self._write_metadata()
            for _ in range(FETCHES):
                self._fetch_missing(progress)
                text = group_text(self.root, self.manifest)
                self.files.replace_text(self.root / GROUP_FILE, text)
                problems = verify_store(self.root, progress=checking).problems
                if not problems:
                    break
                self._remove_damaged(problems)
            else:
                now = read_remote(self.objects)
                if now is None or now.manifest != self.manifest:
                    raise self._replaced()
                raise CorruptError(
                    f"{self.objects.location}: expected what was pushed, found {problems[0]}"
                )
            if not _has_values_of(self.root, self.remote):
                raise self._replaced()
            # first its name: what says whose files these are has to be there until then
            self.files.rename_durably(self.root, self.path.absolute())
            self.files.remove_tree(self.path.absolute() / WORKING_DIR)

    def _replaced(self) -> LockedError:
        return LockedError(
            f"{self.objects.location}: expected the copy of the store that was there first, found "
            "that another one took its place; pull it again"
        )

    @property
    def _working(self) -> Path:
        return self.root / WORKING_DIR

    @property
    def _identity(self) -> bytes:
        return json.dumps([self.manifest.uuid]).encode()

    def _record(self) -> bytes | None:
        """The identity that an earlier pull left here."""
        record = self._working / RECORD
        return record.read_bytes() if record.is_file() else None

    def _clear(self) -> None:
        """Remove what no pull of this store left; of another state of it, files may be good."""
        kept = self._kept()
        found = self._record()
        is_ours = found == self._identity
        if not is_ours:
            others = (path for path in paths_in(self.root) if not path.startswith(WORKING_DIR))
            if found is None and any(others):
                raise SchemaError(f"{self.root}: expected nothing, found files; remove it")
            clear_directory(self.root, self.files)
        self.files.make_dirs(self._working)
        if not is_ours:
            self.files.replace_text(self._working / RECORD, self._identity)
        kept.add(f"{WORKING_DIR}/{RECORD}")
        for path in set(paths_in(self.root)) - kept:
            self.files.remove(self.root / path)

    def _write_metadata(self) -> None:
        """Write the `zarr.json` of groups and arrays below, which follow from the manifest."""
        for path, text in metadata_files(self.manifest).items():
            self.files.make_dirs((self.root / path).parent)
            self.files.replace_text(self.root / path, text)

    def _fetch_missing(self, progress: BytesProgress) -> None:
        present = self._present()
        missing = [key for key in self.heads if key not in present]
        targets = {key: self.root / key for key in missing}
        folders = {path.parent for path in targets.values()}
        for folder in folders:
            self.files.make_dirs(folder)
        total = sum(head.size for head in self.heads.values())
        n_here = sum(self.heads[key].size for key in present)
        tally = Tally(progress, total, n_here)
        numbers = {key: number for number, key in enumerate(missing)}

        def fetch(objects: Objects, key: str) -> None:
            part = self._working / f"{numbers[key]}.part"
            n_bytes = _fetch(objects, key, self.heads[key], part, self.files)
            self.files.rename(part, targets[key])
            tally.add(n_bytes)

        run_all(self.objects, fetch, missing, self.n_threads)
        self.files.sync_dirs(folders)

    def _remove_damaged(self, problems: Sequence[Problem]) -> None:
        """Remove the files that may be wrong: those named, and their checksums.

        And the one that makes it a store, which it is not any more.
        """
        self.files.remove(self.root / GROUP_FILE)
        sums = {
            array.layout.path: array.checksums.layout.path
            for array in checked_arrays(self.manifest)
        }
        for problem in problems:
            suspects = (f"{problem.file}/", f"{sums.get(array_of(problem.file), problem.file)}/")
            for key in self.heads:
                if key == problem.file or key.startswith(suspects):
                    self.files.remove(self.root / key)


RANGE_BYTES = 8 * 1024 * 1024
RANGES_AT_ONCE = 4  # of a file: what a thread holds in memory
ATTEMPTS = 5  # with an object that is replaced while it is fetched


def _fetch(objects: Objects, key: str, head: Head, part: Path, files: Files) -> int:
    """Write an object's bytes to a file; return how many."""
    for _ in range(ATTEMPTS):
        try:
            with files.created(part) as fd:
                for position in range(0, head.size, RANGES_AT_ONCE * RANGE_BYTES):
                    end = min(head.size, position + RANGES_AT_ONCE * RANGE_BYTES)
                    starts = range(position, end, RANGE_BYTES)
                    ends = [min(end, start + RANGE_BYTES) for start in starts]
                    found = objects.get_ranges(key, starts, ends, head.etag)
                    for start, data in zip(starts, found, strict=True):
                        files.write(fd, data, start)
            return head.size
        except ConflictError:  # a file that grows with an append: what it held, it still holds
            head = objects.head(key)
    raise LockedError(
        f"{objects.where(key)}: expected an object that stays, found that it was replaced "
        f"{ATTEMPTS} times while it was fetched; try again when no push is at work"
    )
