"""The commit of a store in a bucket: its `zarr.json`, written last and under a condition.

Of many writers that saw the same state one wins, and the others are told. An answer may be lost
after the server did what it was asked: so each commit has an id of its own, and whoever is refused
looks whether its own is there. (A conditional write that is merely repeated would take its own
first attempt for another writer.) And each is read back: a server that compares and writes in two
steps lets two writers through.
"""

from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from store.errors import LockedError, NotFoundError, SchemaError, StoreError, UnreachableError
from store.format.contents import WORKING_DIR
from store.format.manifest import GROUP_FILE, MAX_FILE_BYTES, Manifest, group_attributes
from store.format.zarr_json import group_json
from store.remote.objects.faults import ConflictError
from store.remote.objects.objects import Head, Objects
from store.remote.objects.retry import again
from store.remote.pushed import PUSHED_KEY, PushRecord, as_attribute, record_in
from store.remote.transfer.upload import Upload, Uploader

__all__ = ["Remote", "check_conditions", "check_present", "commit", "read_remote"]


class Remote(NamedTuple):
    """A store in a bucket, as it is committed.

    Pushes leave the `record` for the next one; `head` names just this state, for conditions.
    """

    manifest: Manifest
    record: PushRecord
    head: Head


def read_remote(objects: Objects) -> Remote | None:
    """The committed state; None where no store is.

    Raises FormatError if what is there is no store, or of a newer format, or damaged when read more
    than once.
    """
    with suppress(NotFoundError):
        return again(lambda: _read(*objects.get_with_head(GROUP_FILE, MAX_FILE_BYTES), objects))
    return None


def _read(text: bytes, head: Head, objects: Objects) -> Remote:
    where = objects.where(GROUP_FILE)
    attributes = group_attributes(text, where)
    return Remote(Manifest.from_attributes(attributes, where), record_in(attributes, where), head)


def commit(objects: Objects, manifest: Manifest, base: Remote | None, record: PushRecord) -> None:
    """Make `manifest` what readers of the store see, if nobody else committed since `base`.

    The objects hold everything that it calls for. `base` is None where there was no store;
    `record` is for the next push. Raises LockedError if another writer was first; UnreachableError
    if no certain answer came in time: it is done, or not.
    """
    text = group_json(manifest.to_attributes() | {PUSHED_KEY: as_attribute(record)})
    if len(text) > MAX_FILE_BYTES:
        raise SchemaError(
            f"{objects.where(GROUP_FILE)}: expected at most {MAX_FILE_BYTES} bytes, as readers "
            f"accept, found {len(text)}; push fewer segments, or less provenance"
        )
    uploader = Uploader(objects, {GROUP_FILE: base.head} if base else {}, reads_back=True)
    try:
        uploader.upload([Upload(GROUP_FILE, text, is_new=base is None)])
    except UnreachableError as error:
        error.add_note("it may have been committed, or not: the same command finds out")
        raise


def check_present(objects: Objects, base: Remote | None) -> None:
    """Raise LockedError if the committed state is another one than that which was read."""
    now = read_remote(objects)
    if (now and now.head) != (base and base.head):
        raise LockedError(f"{objects.location}: another push committed meanwhile; run it again")


def check_conditions(objects: Objects) -> None:
    """Raise SchemaError unless the server keeps the conditions of writes.

    Some answer as if they did, and replace what is there. It takes five small requests.
    """
    objects.policy(f"{objects.location}/{WORKING_DIR}", lambda: _try_conditions(objects))


def _try_conditions(objects: Objects) -> None:
    key = f"{WORKING_DIR}/probe-{uuid4().hex}"
    try:
        head = objects.put(key, b"1")
        objects.put(key, b"2", head)
        is_kept = _is_refused(objects, key, None) and _is_refused(objects, key, head)
    except ConflictError:  # of one that had to be done
        is_kept = False
    finally:
        with suppress(StoreError):
            objects.delete(key)
    if not is_kept:
        raise SchemaError(
            f"{objects.location}: expected a server that keeps conditions of writes "
            "(If-None-Match, If-Match), found one that ignores them: two writers would destroy "
            "each other's stores; choose another"
        )


def _is_refused(objects: Objects, key: str, expected: Head | None) -> bool:
    try:
        objects.put(key, b"3", expected)
    except ConflictError:
        return True
    return False
