"""The claim of a push: an object that says which push may write now.

It is for one state of the store in the bucket, and ends with it: what a killed push leaves stands
in nobody's way once another has committed, nor in its own when it goes on.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from store.errors import LockedError, NotFoundError, StoreError
from store.format.contents import WORKING_DIR
from store.format.manifest import Manifest
from store.remote.commit import Remote
from store.remote.faults import ConflictError, TransientFault
from store.remote.objects import Head, Objects

__all__ = ["claimed"]

KEY = f"{WORKING_DIR}/push.json"
MAX_BYTES = 4096


@contextmanager
def claimed(
    objects: Objects, manifest: Manifest, base: Remote | None, restart: bool
) -> Iterator[None]:
    """Hold the right to push a store in the block; it ends with a commit, so not with an error.

    Parameters
    ----------
    objects
        Those of the store.
    manifest
        Of the local store: another push of just this state may share the claim.
    base
        The state in the bucket that the push goes on from.
    restart
        Take the claim of a push that was stopped.

    Raises
    ------
    LockedError
        Another push has it.
    """
    of_base = {"base": base.head.etag if base else None}
    text = json.dumps(of_base | {"uuid": manifest.uuid, "state": manifest.checksum}).encode()

    def attempt() -> None:
        try:
            objects.put_new(KEY, text)
        except (ConflictError, TransientFault):
            found, head = _read(objects)
            if found == text:  # of this push, or of one that was stopped
                return
            if not restart and _base_of(found) == of_base["base"]:
                raise _refusal(objects) from None
            objects.put_if(KEY, text, head)

    def attempt_all() -> None:
        try:
            attempt()
        except ConflictError:
            raise TransientFault("another push that comes and goes") from None

    objects.patience(objects.where(KEY), attempt_all)
    yield
    with suppress(StoreError):  # after the commit it stands in nobody's way
        objects.delete(KEY)


def _read(objects: Objects) -> tuple[bytes, Head]:
    try:
        return objects.client.get(KEY, MAX_BYTES)
    except NotFoundError:
        raise TransientFault("no certain answer") from None


def _base_of(text: bytes) -> object:
    """The state that a claim is for."""
    try:
        return json.loads(text)["base"]
    except (ValueError, TypeError, KeyError):
        return None


def _refusal(objects: Objects) -> LockedError:
    return LockedError(
        f"{objects.location}: another push is at work, or one of another state was stopped; wait "
        "for it, or, if there is none, push with --restart"
    )
