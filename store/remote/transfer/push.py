"""A local store into a bucket: every file an object of the same name, `zarr.json` the last.

What a reader may be reading is never replaced. Every object is written under a condition: where
none is, or, of the small files that grow, just the one that was seen. So a push that was stopped
goes on, and one that meets another's objects stops. The local store is locked meanwhile: its files
stay what they are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from store.check.verify import BytesProgress
from store.errors import SchemaError, StoreError
from store.format.contents import WORKING_DIR, could_be_ours, metadata_files
from store.format.manifest import GROUP_FILE, read_manifest
from store.read.directory import files_below
from store.read.store import TraceStore
from store.remote.objects.address import Location
from store.remote.objects.objects import Head, Objects
from store.remote.pushed import PushRecord
from store.remote.transfer.append import Append, Change, whole_store
from store.remote.transfer.card import CARD, card_text, is_card
from store.remote.transfer.commit import (
    Remote,
    check_conditions,
    check_present,
    commit,
    read_remote,
)
from store.remote.transfer.lineage import check_lineage, replaced_columns
from store.remote.transfer.parallel import Moved
from store.remote.transfer.upload import Upload, Uploader
from store.system import TRANSFER_THREADS
from store.write.files import DISK
from store.write.lock import WriterLock

__all__ = ["check_writable", "push_store", "upload_s"]

SLOW_RATE = 2e6  # bytes a second of the whole line
SCRATCH = ".push"


def upload_s(path: Path) -> float:
    """Seconds that the upload of the largest file may take on a slow line, with others beside."""
    sizes = (file.st_size for file in files_below(path))
    return TRANSFER_THREADS * max(sizes, default=0) / SLOW_RATE


def check_writable(location: Location) -> None:
    """Raise SchemaError if an address is one of a web server."""
    if location.is_read_only:
        raise SchemaError(
            f"{location}: expected a bucket to push into, found an address that is only read; push "
            "to s3://, gs:// or az://"
        )


def push_store(
    path: Path,
    objects: Objects,
    *,
    dry_run: bool = False,
    restart: bool = False,
    with_card: bool = True,
    progress: BytesProgress = lambda done, total: None,
) -> Moved:
    """Make the store in a bucket what a local one is.

    There may be nothing, an earlier state of this store, or what a stopped push left.

    Parameters
    ----------
    dry_run
        Look only.
    restart
        Replace what another push left that was stopped. No other push may be at work.
    with_card
        Whether to write a README.md beside the store, unless somebody else's is there.
    progress
        Called with the bytes that are there, and those of all files.

    Raises
    ------
    SchemaError
        Something else is there, or the server does not keep conditions.
    LockedError
        Another writer is at work, here or there, or one was stopped.
    UnreachableError
        The server did not answer in time; the same call goes on.
    """
    check_writable(objects.location)
    read_manifest(path)  # raises if there is no store, before a directory is locked
    with WriterLock(path.absolute()):
        store = TraceStore.open(path)
        remote = read_remote(objects)
        pushed = _difference(store, remote, objects)
        if not pushed.is_done or (dry_run and remote is not None):
            return pushed
        if not dry_run:
            check_conditions(objects)
        with _planned(store, remote, objects) as change:
            present = objects.list()
            if remote is None:
                change.others = _find_others(objects, present, change.new, restart)
            if with_card:
                change.grown += _card(store, objects, present)
            uploads = [*change.new, *change.grown]
            pushed.n_files = len(uploads)
            pushed.n_bytes = sum(upload.n_bytes for upload in uploads)
            if dry_run:
                return pushed
            state = _state(store, remote, change)
            if restart:
                objects.delete(state.key)
            Uploader(objects, {}).upload([state])
            present = objects.list()
            uploader = Uploader(objects, present, restart, progress=progress, total=pushed.n_bytes)
            record = PushRecord(store.manifest.checksum, change.pushed, change.in_bucket)
            pushed.n_present = _write(uploader, change, remote, record)
            with suppress(StoreError):  # it is in nobody's way: the next push has another
                objects.delete(state.key)
    return pushed


def _write(uploader: Uploader, change: Change, remote: Remote | None, record: PushRecord) -> int:
    """Write what is planned, and commit it; return how many of the objects were there."""
    objects = uploader.objects
    # after they were listed: what is replaced is not of a later state
    check_present(objects, remote)
    n_present = uploader.upload(change.new)
    uploader.upload(change.grown)  # whose chunks are there now, and nobody else's
    for key in change.others:
        objects.delete(key)
    commit(objects, change.manifest, remote, record)
    _describe(objects, uploader.present, change)
    return n_present


def _state(store: TraceStore, remote: Remote | None, change: Change) -> Upload:
    """An object that says what is pushed, on top of which state: there is one of each.

    So what grows is replaced by one writer alone, also where another has the same rows but for
    where one ends and the next begins: their new objects are the same.
    """
    generation = remote.manifest.generation if remote else "first"
    text = json.dumps([store.manifest.checksum, change.pushed])
    return Upload(f"{WORKING_DIR}/push-{generation}.json", text.encode())


def _difference(store: TraceStore, remote: Remote | None, objects: Objects) -> Moved:
    """What a push has to do, but for the files; raises SchemaError if another store is there."""
    pushed = Moved(len(store), len(store))
    if remote is not None:
        check_lineage(store, remote, str(objects.location))
        sources = (remote.record.source, remote.manifest.checksum)
        pushed.is_done = store.manifest.checksum not in sources
        pushed.n_new_rows -= remote.manifest.n_rows
        pushed.replaced = replaced_columns(store.schema, remote.manifest.schema)
    return pushed


@contextmanager
def _planned(store: TraceStore, remote: Remote | None, objects: Objects) -> Iterator[Change]:
    """What has to be written; new shards are in a folder beside the store, in the block only."""
    if remote is None:
        yield whole_store(store)
        return
    folder = store.path.with_name(store.path.name + SCRATCH)
    DISK.remove_tree(folder)
    folder.mkdir()
    try:
        yield Append(store, remote, objects, folder).plan()
    finally:
        DISK.remove_tree(folder)


def _find_others(
    objects: Objects, present: Mapping[str, Head], uploads: Sequence[Upload], restart: bool
) -> list[str]:
    """The keys of objects that no file of the store is at.

    Raises SchemaError if a push may not remove them.
    """
    own = {CARD, GROUP_FILE, *(upload.key for upload in uploads)}
    found = [key for key in present if key not in own and not key.startswith(f"{WORKING_DIR}/")]
    for key in found:
        if not (restart and could_be_ours(key)):
            found_text = f"{objects.location}: expected a store or nothing, found {key!r:.80}"
            if could_be_ours(key):
                raise SchemaError(
                    f"{found_text}: another push is at work, or one stopped; wait for it, or, if "
                    "there is none, push with --restart, or choose another address"
                )
            raise SchemaError(f"{found_text}; choose another address")
    return found


def _describe(objects: Objects, present: Mapping[str, Head], change: Change) -> None:
    """Have the metadata of arrays say what is committed, where another push left its own.

    It was stopped, and only other programs read them. What a later push replaced is left.
    """
    is_written = {upload.key for upload in (*change.new, *change.grown)}
    texts = metadata_files(change.manifest).items()
    others = [Upload(key, text, is_new=False) for key, text in texts if key not in is_written]
    with suppress(StoreError):
        Uploader(objects, present).upload(others)


def _card(store: TraceStore, objects: Objects, present: Mapping[str, Head]) -> list[Upload]:
    """The README.md, unless there is one that a person wrote."""
    if CARD in present and not is_card(objects.get(CARD)):
        return []
    text = card_text(store, str(objects.location))
    return [Upload(CARD, text.encode(), is_new=False)]
