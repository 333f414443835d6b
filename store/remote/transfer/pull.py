"""A store in a bucket into a directory, checked before it has its name.

It grows beside the place it is for, and the same call goes on where one was stopped: a file has its
name once it is whole. In the end every chunk is compared with the checksums that its writer took,
and files that differ are fetched again; what cannot be had right is an error, never a store.
"""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
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
from store.remote.objects.retry import FETCHES
from store.remote.transfer.commit import Remote, read_remote
from store.remote.transfer.lineage import sums_of
from store.remote.transfer.parallel import Moved, run_all
from store.system import TRANSFER_THREADS
from store.write.files import DISK, Files, opened
from store.write.lock import WriterLock
from store.write.orphans import paths_in
from store.write.space import bytes_under, check_space
from store.write.writer import group_text

__all__ = ["pull_store"]

SUFFIX = ".pull"
MARK = f"{WORKING_DIR}/pull.json"  # a pull was at work here
BLOCK_BYTES = 8 * 1024 * 1024
BLOCKS_AT_ONCE = 4 * TRANSFER_THREADS
ATTEMPTS = 5  # with objects that are replaced while they are fetched


def pull_store(
    objects: Objects,
    path: Path,
    *,
    dry_run: bool = False,
    ignore_space: bool = False,
    progress: BytesProgress = lambda done, total: None,
    checking: BytesProgress = lambda done, total: None,
    files: Files = DISK,
) -> Moved:
    """Make a local store at a new path of one in a bucket.

    With `dry_run` it only looks; with `ignore_space` it goes on although the disk seems too small.
    `progress` and `checking` are called with the bytes that are here, or are checked, and those of
    all files.

    Raises
    ------
    NotFoundError
        No store is there.
    SchemaError
        Something is at `path`, or the disk is too small.
    CorruptError
        The bucket lost an object, or has wrong bytes.
    LockedError
        Another store took its place meanwhile, or appends that never ended.
    UnreachableError
        The server did not answer in time; the same call goes on.
    """
    check_outside(path)
    attempt = partial(_pull, objects, path, dry_run, ignore_space, progress, checking, files)
    for n in range(ATTEMPTS - 1):
        with suppress(ConflictError):  # an append replaced small files; the others are kept
            return attempt()
        objects.policy.sleep(2.0**n)
    return attempt()


def _pull(
    objects: Objects,
    path: Path,
    dry_run: bool,
    ignore_space: bool,
    progress: BytesProgress,
    checking: BytesProgress,
    files: Files,
) -> Moved:
    """As `pull_store`; raises ConflictError if an object was replaced that was being fetched."""
    remote = read_remote(objects)
    if remote is None:
        raise NotFoundError(
            f"{objects.location}: expected a store, found no {GROUP_FILE}; check the address"
        )
    if path.exists():
        if read_manifest(path) != remote.manifest or not _has_values_of(path, remote):
            raise SchemaError(
                f"{path}: expected a new path, found another store, or another copy of this store "
                "that grew on its own; choose another"
            )
        return Moved(remote.manifest.n_rows, is_done=False)
    pull = _Pull(objects, path, remote, files)
    pulled = pull.outlook()
    if not dry_run:
        check_space(path, pulled.n_bytes - bytes_under(pull.root), ignore=ignore_space)
        pull.run(progress, checking)
    return pulled


def _has_values_of(path: Path, remote: Remote) -> bool:
    """Whether a local store, of the manifest of one in a bucket, has the values that were pushed.

    A copy that another program put there does not tell.
    """
    sums = remote.record.in_bucket
    return not sums or sums_of(TraceStore.open(path)) == sums


def _is_checksum(key: str) -> bool:
    return key.startswith("_checksums/")


class _Pull:
    """A store that grows at `root`; `heads` are its data files, as objects."""

    def __init__(self, objects: Objects, path: Path, remote: Remote, files: Files) -> None:
        self.objects = objects
        self.path = path.absolute()
        self.root = self.path.with_name(path.name + SUFFIX)
        self.remote = remote
        self.manifest = remote.manifest
        self.files = files
        self.heads = self._find()

    def _find(self) -> dict[str, Head]:
        """The objects of the store's files; raises CorruptError if one is missing."""
        keys = sorted(data_files(self.manifest), key=lambda key: (_is_checksum(key), key))
        found = self.objects.heads(keys)
        missing = [key for key in keys if key not in found]
        if missing:
            raise CorruptError(
                f"{self.objects.where(missing[0])}: expected an object of the store, found none "
                f"({len(missing)} are missing); push the store again, or restore the bucket"
            )
        return found

    def _present(self) -> set[str]:
        """The data files that are here, as far as their sizes tell."""
        files = {key: self.root / key for key in self.heads}
        sizes = {key: file.stat().st_size for key, file in files.items() if file.is_file()}
        return {key for key, size in sizes.items() if size == self.heads[key].size}

    def _kept(self) -> set[str]:
        """The data files of an earlier pull that are not fetched anew.

        Checksums are: they tell which of the others are right.
        """
        return {key for key in self._present() if not _is_checksum(key)}

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
                raise CorruptError(
                    f"{self.objects.location}: expected what was pushed, found {problems[0]}; if "
                    "another store took its place meanwhile, pull it again"
                )
            if not _has_values_of(self.root, self.remote):
                raise LockedError(
                    f"{self.objects.location}: expected the copy of the store that was there "
                    "first, found that another one took its place; pull it again"
                )
            # first its name: what says whose files these are has to be there until then
            self.files.rename_durably(self.root, self.path)
            self.files.remove_tree(self.path / WORKING_DIR)

    def _clear(self) -> None:
        """Remove what is not kept; raises SchemaError if no pull left it."""
        found = set(paths_in(self.root))
        values = [path for path in found if not path.startswith(WORKING_DIR)]
        if values and MARK not in found:
            raise SchemaError(f"{self.root}: expected nothing, found files; remove it")
        self.files.make_dirs(self.root / WORKING_DIR)
        self.files.replace_text(self.root / MARK, b"")
        for path in found - self._kept() - {MARK}:
            self.files.remove(self.root / path)

    def _write_metadata(self) -> None:
        """Write the `zarr.json` of groups and arrays below, which follow from the manifest."""
        for path, text in metadata_files(self.manifest).items():
            self.files.make_dirs((self.root / path).parent)
            self.files.replace_text(self.root / path, text)

    def _fetch_missing(self, progress: BytesProgress) -> None:
        present = self._present()
        missing = [key for key in self.heads if key not in present]
        folders = {(self.root / key).parent for key in missing}
        for folder in folders:
            self.files.make_dirs(folder)
        sizes = {key: max(1, self.heads[key].size) for key in missing}  # an empty one has a block
        blocks = [(key, at) for key in missing for at in range(0, sizes[key], BLOCK_BYTES)]
        n_left = Counter(key for key, _ in blocks)
        total = sum(head.size for head in self.heads.values())
        n_here = sum(self.heads[key].size for key in present)
        for (key, _), n_bytes in run_all(self._fetch, blocks, BLOCKS_AT_ONCE):
            n_left[key] -= 1
            if not n_left[key]:
                self._publish(key)
            n_here += n_bytes
            progress(n_here, total)
        self.files.sync_dirs(folders)

    def _part(self, key: str) -> Path:
        """Where a file grows."""
        return self.root / WORKING_DIR / f"{key.replace('/', '.')}.part"

    def _fetch(self, block: tuple[str, int]) -> int:
        """Write a block of an object to its file; return its bytes."""
        key, start = block
        head = self.heads[key]
        data = self.objects.get_range(key, start, min(head.size, start + BLOCK_BYTES), head.etag)
        fd = os.open(self._part(key), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self.files.write(fd, data, start)
        finally:
            os.close(fd)
        return len(data)

    def _publish(self, key: str) -> None:
        """Give a file that is whole its name."""
        with opened(self._part(key)) as fd:
            self.files.sync(fd)
        self.files.rename(self._part(key), self.root / key)

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
