"""A local store into a bucket: every file an object of the same name, `zarr.json` the last.

What a reader may be reading is never replaced. An object is written only where none is, so that a
push that was stopped goes on, and one that meets a stranger's objects stops. The local store is
locked meanwhile: its files stay what they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.errors import CorruptError, SchemaError
from store.format.contents import could_be_ours, files_of, metadata_of
from store.format.manifest import GROUP_FILE, Manifest, read_manifest
from store.read.shard import RESTORE
from store.remote.commit import Remote, check_conditions, commit, read_remote
from store.remote.objects import Head, Objects
from store.remote.upload import Upload, Uploader
from store.write.lock import WriterLock

__all__ = ["N_THREADS", "Pushed", "push_store"]

N_THREADS = 8  # files at a time
BytesProgress = Callable[[int, int], None]  # bytes that are there, and those of all


@dataclass
class Pushed:
    """What a push did, or would do.

    Attributes
    ----------
    n_rows, n_new_rows
        Traces in the store in the bucket, and how many of them are new there.
    n_files, n_bytes
        Objects that had to be there, and their bytes.
    n_present
        Those that were there, of an earlier push that was stopped.
    is_done
        False: there was nothing to do.
    """

    n_rows: int
    n_new_rows: int
    n_files: int = 0
    n_bytes: int = 0
    n_present: int = 0
    is_done: bool = True


def push_store(
    path: Path,
    objects: Objects,
    *,
    dry_run: bool = False,
    restart: bool = False,
    n_threads: int = N_THREADS,
    progress: BytesProgress = lambda done, total: None,
) -> Pushed:
    """Make the store in a bucket what a local one is.

    Parameters
    ----------
    path
        The local store.
    objects
        Where to: nothing, an earlier state of this store, or what a stopped push left.
    dry_run
        Look only.
    restart
        First remove what a stopped push left. No other push may be at work.
    n_threads
        Files at a time.
    progress
        Called with the bytes that are there and those of all files.

    Raises
    ------
    SchemaError
        Something else is there, or the server does not keep conditions.
    LockedError
        Another writer is at work, here or there.
    UnreachableError
        The server did not answer in time; the same call goes on.
    """
    manifest = read_manifest(path)
    with WriterLock(path.absolute()):
        manifest = read_manifest(path)
        return _Push(path, manifest, objects, n_threads, progress).run(dry_run, restart)


class _Push:
    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        objects: Objects,
        n_threads: int,
        progress: BytesProgress,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.objects = objects
        self.n_threads = n_threads
        self.progress = progress
        self.n_done = 0

    def run(self, dry_run: bool, restart: bool) -> Pushed:
        remote = read_remote(self.objects)
        if remote is not None:
            self._check_same_store(remote)
            if remote.manifest == self.manifest:
                return Pushed(self.manifest.n_rows, 0, is_done=False)
            raise SchemaError("grown")
        present = self.objects.list()
        self._check_ours(present)
        uploads = list(self._whole_store())
        total = sum(upload.n_bytes for upload in uploads)
        pushed = Pushed(self.manifest.n_rows, self.manifest.n_rows, len(uploads), total)
        if dry_run:
            pushed.n_present = sum(_seems_there(upload, present) for upload in uploads)
            return pushed
        check_conditions(self.objects)
        if restart:
            self._remove(present)
            present = {}
        uploader = Uploader(self.objects, self.n_threads, lambda n: self._advance(n, total))
        pushed.n_present = uploader.upload(uploads, present)
        commit(self.objects, self.manifest, remote)
        return pushed

    def _check_same_store(self, remote: Remote) -> None:
        if remote.manifest.uuid != self.manifest.uuid:
            raise SchemaError(
                f"{self.objects.location}: expected an earlier state of {self.path}, found "
                "another store; choose another address"
            )

    def _check_ours(self, present: dict[str, Head]) -> None:
        foreign = next((key for key in present if not could_be_ours(key)), None)
        if foreign is not None:
            raise SchemaError(
                f"{self.objects.location}: expected a store or nothing, found {foreign!r:.80}; "
                "choose another address"
            )

    def _whole_store(self) -> Iterator[Upload]:
        """Every file of the store but the one that commits it."""
        metadata = {f"{path}/{GROUP_FILE}": text for path, text in _metadata(self.manifest)}
        for key in sorted(files_of(self.manifest) - {GROUP_FILE} - metadata.keys()):
            yield Upload(key, self._file(key))
        for key, text in metadata.items():
            yield Upload(key, text)

    def _file(self, key: str) -> Path:
        path = self.path / key
        if not path.is_file():
            raise CorruptError(f"{path}: expected a file of the store, found none; {RESTORE}")
        return path

    def _remove(self, keys: dict[str, Head]) -> None:
        for key in keys:
            self.objects.delete(key)

    def _advance(self, n_bytes: int, total: int) -> None:
        self.n_done += n_bytes
        self.progress(self.n_done, total)


def _metadata(manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    yield from metadata_of(manifest).items()


def _seems_there(upload: Upload, present: dict[str, Head]) -> bool:
    return upload.key in present and present[upload.key].size == upload.n_bytes
