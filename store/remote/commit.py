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

from store.errors import LockedError, NotFoundError, SchemaError, StoreError, UnreachableError
from store.format.contents import WORKING_DIR
from store.format.manifest import GROUP_FILE, MAX_FILE_BYTES, Manifest, group_attributes
from store.format.zarr_json import group_json
from store.remote.faults import ConflictError, TransientFault
from store.remote.objects import Head, Objects

__all__ = ["Remote", "check_conditions", "commit", "read_remote"]

PUSHED_KEY = "trace_store_push"  # of the group's attributes; no reader needs it
COMMITS = "commits"
MAX_COMMITS = 64  # so many others may commit before a writer looks for its own


class Remote(NamedTuple):
    """A store in a bucket, as it is committed.

    Attributes
    ----------
    manifest
        What every reader takes.
    record
        What pushes leave for the next one.
    head
        Names just this state, for conditions.
    """

    manifest: Manifest
    record: dict[str, Any]
    head: Head


def read_remote(objects: Objects) -> Remote | None:
    """The committed state; None where no store is.

    Raises
    ------
    FormatError
        What is there is no store, or of a newer format.
    """
    try:
        text, head = objects.get_with_head(GROUP_FILE, MAX_FILE_BYTES)
    except NotFoundError:
        return None
    where = objects.where(GROUP_FILE)
    attributes = group_attributes(text, where)
    return Remote(Manifest.from_attributes(attributes, where), _record(attributes), head)


def commit(
    objects: Objects, manifest: Manifest, base: Remote | None, record: Mapping[str, Any] = {}
) -> str:
    """Make `manifest` what readers of the store see, if nobody else committed since `base`.

    Parameters
    ----------
    objects
        Those of the store, which hold everything that the manifest calls for.
    manifest
        The new one.
    base
        The state that it follows; None: there was no store.
    record
        For the next push, beside the ids of commits.

    Returns
    -------
    str
        The id of this commit.

    Raises
    ------
    LockedError
        Another writer was first, and nothing was changed.
    UnreachableError
        No certain answer came in time: it is done, or not.
    """
    commit_id = uuid4().hex
    earlier = _commits(base.record) if base else []
    pushed = {**record, COMMITS: [commit_id, *earlier][:MAX_COMMITS]}
    text = group_json(manifest.to_attributes() | {PUSHED_KEY: pushed})
    if len(text) > MAX_FILE_BYTES:
        raise SchemaError(
            f"{objects.where(GROUP_FILE)}: expected at most {MAX_FILE_BYTES} bytes, as readers "
            f"accept, found {len(text)}; push fewer segments, or less provenance"
        )

    def attempt() -> None:
        try:
            if base is None:
                objects.put_new(GROUP_FILE, text)
            else:
                objects.put_if(GROUP_FILE, text, base.head)
        except (ConflictError, TransientFault) as fault:
            _look_back(objects, commit_id, base, fault)

    where = objects.where(GROUP_FILE)
    patience = replace(objects.patience, attempt_s=2 * objects.patience.attempt_s)
    try:
        patience(where, attempt)
    except UnreachableError as error:
        error.add_note("it may have been committed, or not: the same command finds out")
        raise
    return commit_id


def _look_back(objects: Objects, commit_id: str, base: Remote | None, fault: Exception) -> None:
    """Return if the commit was done; raise TransientFault if it was not, and can be."""
    try:
        text, head = objects.client.get(GROUP_FILE, MAX_FILE_BYTES)
    except NotFoundError:
        found, is_base = [], base is None
    else:
        found = _commits(_record(group_attributes(text, objects.where(GROUP_FILE))))
        is_base = base is not None and head.etag == base.head.etag
    if commit_id in found:
        return
    if is_base:
        raise TransientFault("no certain answer" if isinstance(fault, ConflictError) else fault)
    raise LockedError(
        f"{objects.location}: another writer committed meanwhile; nothing of this one is in the "
        "store: look at it, and run the command again"
    )


def _record(attributes: dict[str, Any]) -> dict[str, Any]:
    record = attributes.get(PUSHED_KEY)
    return record if isinstance(record, dict) else {}


def _commits(record: Mapping[str, Any]) -> list[str]:
    found = record.get(COMMITS)
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def check_conditions(objects: Objects) -> None:
    """Raise SchemaError unless the server keeps the conditions of writes.

    Some answer as if they did, and replace what is there. It takes six small requests.
    """
    where = f"{objects.location}/{WORKING_DIR}"
    patience = replace(objects.patience, attempt_s=6 * objects.patience.attempt_s)
    patience(where, lambda: _try_conditions(objects))


def _try_conditions(objects: Objects) -> None:
    key = f"{WORKING_DIR}/probe-{uuid4().hex}"
    try:
        head = objects.put_new(key, b"1")
        is_kept = _is_refused(lambda: objects.put_new(key, b"2"))
        objects.put_if(key, b"3", head)
        is_kept = is_kept and _is_refused(lambda: objects.put_if(key, b"4", head))
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


def _is_refused(write: Any) -> bool:
    try:
        write()
    except ConflictError:
        return True
    return False
