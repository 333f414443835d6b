"""The commit of a store in a bucket: its `zarr.json`, written last and under a condition.

Of many writers that saw the same state one wins, and the others are told. An answer may be lost
after the server did what it was asked: so each commit has an id of its own, the group's attributes
hold the latest ones, and whoever is refused or gets no answer looks whether its own is among them.
(A conditional write that is merely repeated would take its own first attempt for another writer.)
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import uuid4

from store.errors import (
    FormatError,
    LockedError,
    NotFoundError,
    SchemaError,
    StoreError,
    UnreachableError,
)
from store.format.contents import WORKING_DIR
from store.format.manifest import GROUP_FILE, MAX_FILE_BYTES, Manifest, group_attributes
from store.format.zarr_json import group_json
from store.remote.objects.faults import ConflictError, TransientFault
from store.remote.objects.objects import Head, Objects
from store.remote.objects.retry import again
from store.remote.pushed import PUSHED_KEY, as_attribute, record_in

__all__ = ["Remote", "check_conditions", "commit", "look", "read_remote"]

COMMITS = "commits"
MAX_COMMITS = 64  # so many others may commit before a writer looks for its own


class Remote(NamedTuple):
    """A store in a bucket, as it is committed.

    Pushes leave the `record` for the next one; `head` names just this state, for conditions.
    """

    manifest: Manifest
    record: dict[str, Any]
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


def commit(
    objects: Objects, manifest: Manifest, base: Remote | None, record: Mapping[str, Any] = {}
) -> str:
    """Make `manifest` what readers of the store see, if nobody else committed since `base`.

    The objects hold everything that it calls for. `base` is None where there was no store;
    `record` is for the next push. Returns the id of this commit. Raises LockedError if another
    writer was first, and nothing was changed; UnreachableError if no certain answer came in time:
    it is done, or not.
    """
    commit_id = uuid4().hex
    text = _text(objects, manifest, {**record, COMMITS: [commit_id, *_commits(base)]})
    attempt = _Attempt(objects, commit_id, text, base.head if base else None)
    # each is a write and a look
    policy = replace(objects.policy, attempt_s=2 * objects.policy.attempt_s)
    try:
        policy(objects.where(GROUP_FILE), attempt)
    except UnreachableError as error:
        error.add_note("it may have been committed, or not: the same command finds out")
        raise
    return commit_id


class _Attempt:
    """A write of the group's `zarr.json`, and a look whether it is there; may be called again.

    `expected` has to be there before; None: nothing.
    """

    def __init__(
        self, objects: Objects, commit_id: str, text: bytes, expected: Head | None
    ) -> None:
        self.objects = objects
        self.commit_id = commit_id
        self.text = text
        self.expected = expected
        self._written: set[str | None] = set()  # etags of what the server took from us

    def __call__(self) -> None:
        """Return if it is committed; raise LockedError if another is, or TransientFault."""
        with suppress(ConflictError, TransientFault):
            self._written.add(self.objects.put(GROUP_FILE, self.text, self.expected).etag)
        found, head = look(self.objects)
        if found == self.text:
            return
        is_ours = head is not None and head.etag in self._written
        commits = [] if is_ours else _commits_in(found, self.objects)
        if self.commit_id in commits[1:]:  # others have followed
            return
        if is_ours or commits[:1] == [self.commit_id]:
            self.expected = head
            raise TransientFault("other bytes than were sent")
        if (head and head.etag) == (self.expected and self.expected.etag):
            raise TransientFault("no certain answer")
        raise LockedError(
            f"{self.objects.location}: another writer committed meanwhile; nothing of this one is "
            "in the store: look at it, and run the command again"
        )


def _text(objects: Objects, manifest: Manifest, record: dict[str, Any]) -> bytes:
    """The group's `zarr.json`."""
    record[COMMITS] = record[COMMITS][:MAX_COMMITS]
    text = group_json(manifest.to_attributes() | {PUSHED_KEY: as_attribute(record)})
    if len(text) > MAX_FILE_BYTES:
        raise SchemaError(
            f"{objects.where(GROUP_FILE)}: expected at most {MAX_FILE_BYTES} bytes, as readers "
            f"accept, found {len(text)}; push fewer segments, or less provenance"
        )
    return text


def look(objects: Objects) -> tuple[bytes, Head | None]:
    """What is there now, in one attempt."""
    try:
        return objects.once.get_with_head(GROUP_FILE, MAX_FILE_BYTES)
    except NotFoundError:
        return b"", None


def _commits_in(text: bytes, objects: Objects) -> list[str]:
    """The ids of the latest commits; raises TransientFault if the answer is damaged."""
    if not text:
        return []
    try:
        return _commits(_read(text, Head(len(text), None), objects))
    except FormatError:
        raise TransientFault("a damaged answer") from None


def _commits(remote: Remote | None) -> list[str]:
    found = remote.record.get(COMMITS) if remote else None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def check_conditions(objects: Objects) -> None:
    """Raise SchemaError unless the server keeps the conditions of writes.

    Some answer as if they did, and replace what is there. It takes six small requests.
    """
    where = f"{objects.location}/{WORKING_DIR}"
    policy = replace(objects.policy, attempt_s=6 * objects.policy.attempt_s)
    policy(where, lambda: _try_conditions(objects))


def _try_conditions(objects: Objects) -> None:
    key = f"{WORKING_DIR}/probe-{uuid4().hex}"
    try:
        head = objects.put(key, b"1")
        is_kept = _is_refused(objects, key, None)
        objects.put(key, b"2", head)
        is_kept = is_kept and _is_refused(objects, key, head)
    except ConflictError:  # of the first, or of the third: they had to be done
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
