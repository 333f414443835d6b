"""A local store into a bucket: every file an object of the same name, `zarr.json` the last.

What a reader may be reading is never replaced. An object is written only where none is, so that a
push that was stopped goes on, and one that meets a stranger's objects stops. The local store is
locked meanwhile: its files stay what they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.check.verify import BytesProgress
from store.errors import SchemaError
from store.format.contents import WORKING_DIR, could_be_ours, data_files, metadata_files
from store.format.manifest import read_manifest
from store.read.directory import files_below
from store.read.store import TraceStore
from store.remote.objects.objects import Head, Objects
from store.remote.objects.parallel import Moved, Tally
from store.remote.pushed import IN_BUCKET, PUSHED, Sums, sums_in
from store.remote.transfer.append import Append
from store.remote.transfer.card import CARD, card_text, is_card
from store.remote.transfer.claim import claimed
from store.remote.transfer.commit import Remote, check_conditions, commit, read_remote
from store.remote.transfer.lineage import check_lineage, replaced_columns, sums_of
from store.remote.transfer.upload import Upload, Uploader, file_of
from store.system import TRANSFER_THREADS
from store.write.files import DISK
from store.write.lock import WriterLock

__all__ = ["push_store", "upload_s"]

SLOW_RATE = 2e6  # bytes a second of the whole line
SCRATCH = ".push"
SOURCE = "source"  # of the record: checksum of the manifest that was pushed


def upload_s(path: Path, n_threads: int) -> float:
    """Seconds that the upload of the largest file may take on a slow line, with others beside."""
    sizes = (file.st_size for file in files_below(path))
    return n_threads * max(sizes, default=0) / SLOW_RATE


def push_store(
    path: Path,
    objects: Objects,
    *,
    dry_run: bool = False,
    restart: bool = False,
    with_card: bool = True,
    n_threads: int = TRANSFER_THREADS,
    progress: BytesProgress = lambda done, total: None,
) -> Moved:
    """Make the store in a bucket what a local one is.

    There may be nothing, an earlier state of this store, or what a stopped push left.

    Parameters
    ----------
    dry_run
        Look only.
    restart
        Take over from a push that was stopped elsewhere. No other push may be at work.
    with_card
        Whether to write a README.md beside the store, unless somebody else's is there.
    n_threads, progress
        Files at a time, and what is called with the bytes that are there and those of all files.

    Raises
    ------
    SchemaError
        Something else is there, or the server does not keep conditions.
    LockedError
        Another writer is at work, here or there.
    UnreachableError
        The server did not answer in time; the same call goes on.
    """
    if objects.location.is_read_only:
        raise SchemaError(
            f"{objects.location}: expected a bucket to push into, found an address that is only "
            "read; push to s3://, gs:// or az://"
        )
    read_manifest(path)  # raises if there is no store, before a directory is locked
    with WriterLock(path.absolute()):
        store = TraceStore.open(path)
        return _Push(store, objects, with_card, n_threads, progress).run(dry_run, restart)


@dataclass
class _Push:
    store: TraceStore
    objects: Objects
    with_card: bool
    n_threads: int
    progress: BytesProgress

    def __post_init__(self) -> None:
        self.path = self.store.path
        self.manifest = self.store.manifest

    def run(self, dry_run: bool, restart: bool) -> Moved:
        remote = read_remote(self.objects)
        if remote is None:
            return self._push_whole(dry_run, restart)
        self._check_same_store(remote)
        is_same = self.manifest.checksum in (remote.record.get(SOURCE), remote.manifest.checksum)
        old = sums_in(remote.record, IN_BUCKET)
        if old:  # copies that grew on their own may have one manifest
            pushed = sums_in(remote.record, PUSHED)
            check_lineage(self.store, remote.manifest, pushed, old, str(self.objects.location))
        elif not is_same:
            raise SchemaError(
                f"{self.objects.location}: expected a store that was pushed, found a copy that "
                "another program made: nothing says that this one begins with its rows; push it "
                "to another address"
            )
        if is_same:
            return Moved(self.manifest.n_rows, self.manifest.n_rows, is_done=False)
        return self._append(remote, old, dry_run, restart)

    def _push_whole(self, dry_run: bool, restart: bool) -> Moved:
        """To where no store is."""
        present = self.objects.list()
        self._check_ours(present)
        uploads = [*self._whole_store(), *self._card(present)]
        pushed = Moved(self.manifest.n_rows, self.manifest.n_rows)
        _count(pushed, uploads)
        if dry_run:
            pushed.n_present = sum(_seems_there(upload, present) for upload in uploads)
            return pushed
        sums = sums_of(self.store)
        check_conditions(self.objects)
        with claimed(self.objects, self.store.directory, None, restart) as was_here:
            present = self.objects.list()
            if was_here:
                self._remove(present.keys() - {CARD} - {upload.key for upload in uploads})
            tally = Tally(self.progress, pushed.n_bytes)
            pushed.n_present = self._upload(uploads, present, tally, was_here)
            commit(self.objects, self.manifest, None, self._record(sums, sums))
        return pushed

    def _append(self, remote: Remote, old: dict[str, Sums], dry_run: bool, restart: bool) -> Moved:
        """To an earlier state of the store, whose arrays have the sums `old`."""
        pushed = Moved(self.manifest.n_rows, self.manifest.n_rows - remote.manifest.n_rows)
        pushed.replaced = replaced_columns(self.store.schema, remote.manifest.schema)
        if dry_run:
            return pushed
        check_conditions(self.objects)
        with (
            claimed(self.objects, self.store.directory, remote, restart) as was_here,
            _scratch(self.path) as scratch,
        ):
            append = Append(self.store, remote.manifest, old, self.objects, scratch)
            present = self.objects.list()
            grown = [*append.grown, *self._card(present)]
            _count(pushed, [*append.new, *grown])
            tally = Tally(self.progress, pushed.n_bytes)
            pushed.n_present = self._upload(append.new, present, tally, was_here)
            self._upload(grown, present, tally, was_here)
            record = self._record(sums_of(self.store), append.sums)
            commit(self.objects, append.manifest, remote, record)
        return pushed

    def _record(self, pushed: dict[str, Sums], in_bucket: dict[str, Sums]) -> dict[str, Any]:
        """What the next push compares its store with."""
        return {SOURCE: self.manifest.checksum, PUSHED: pushed, IN_BUCKET: in_bucket}

    def _upload(
        self, uploads: Sequence[Upload], present: dict[str, Head], tally: Tally, replaces: bool
    ) -> int:
        uploader = Uploader(self.objects, self.n_threads, tally.add, replaces=replaces)
        return uploader.upload(uploads, present)

    def _check_same_store(self, remote: Remote) -> None:
        if remote.manifest.uuid != self.manifest.uuid:
            raise SchemaError(
                f"{self.objects.location}: expected an earlier state of {self.path}, found "
                "another store; choose another address"
            )

    def _check_ours(self, present: dict[str, Head]) -> None:
        foreign = next((key for key in present if key != CARD and not could_be_ours(key)), None)
        if foreign is not None:
            raise SchemaError(
                f"{self.objects.location}: expected a store or nothing, found {foreign!r:.80}; "
                "choose another address"
            )

    def _whole_store(self) -> Iterator[Upload]:
        """Every file of the store but the one that commits it."""
        for key in sorted(data_files(self.manifest)):
            yield Upload(key, file_of(self.path, key))
        for key, text in metadata_files(self.manifest).items():
            yield Upload(key, text)

    def _card(self, present: Mapping[str, Head]) -> Iterator[Upload]:
        """The README.md, unless there is one that a person wrote."""
        if self.with_card and (CARD not in present or is_card(self.objects.get(CARD))):
            text = card_text(self.store, str(self.objects.location))
            yield Upload(CARD, text.encode(), is_new=False)

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            if not key.startswith(f"{WORKING_DIR}/"):
                self.objects.delete(key)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """An empty folder beside the store, which is removed at the end."""
    folder = path.with_name(path.name + SCRATCH)
    DISK.remove_tree(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        DISK.remove_tree(folder)


def _count(pushed: Moved, uploads: Sequence[Upload]) -> None:
    """Note what has to be there."""
    pushed.n_files = len(uploads)
    pushed.n_bytes = sum(upload.n_bytes for upload in uploads)


def _seems_there(upload: Upload, present: dict[str, Head]) -> bool:
    return upload.key in present and present[upload.key].size == upload.n_bytes
