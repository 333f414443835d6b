"""The claim of a push: an object that says which one may write now.

It is for one state of the store in the bucket, and ends with it. Its holder is a local directory,
which a push locks: whoever has that lock finds its own claim again, and knows that the push that
made it is dead. So what a killed push leaves stands neither in its own way nor, once another has
committed, in anybody's.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import gethostname
from uuid import uuid4

from store.errors import LockedError, NotFoundError, StoreError
from store.format.contents import WORKING_DIR
from store.format.manifest import GROUP_FILE
from store.read.directory import StoreDirectory
from store.remote.objects.faults import ConflictError, TransientFault
from store.remote.objects.objects import Head, Objects
from store.remote.transfer.commit import Remote, look

__all__ = ["claimed"]

KEY = f"{WORKING_DIR}/push.json"
MAX_BYTES = 4096


@contextmanager
def claimed(
    objects: Objects, directory: StoreDirectory, base: Remote | None, restart: bool
) -> Iterator[bool]:
    """Hold the right to push in the block; it ends with a commit, so not with an error.

    The local store at `directory` is locked; the push goes on from the state `base` in the bucket.
    With `restart` the claim is taken from whoever has it. Yields whether a push was here before
    that is dead: what it left may be replaced. Raises LockedError if another push has it, or
    committed since `base` was read.
    """
    of_base = base.head.etag if base else None
    claim = {"base": of_base, "holder": _holder(directory), "push": uuid4().hex}
    text = json.dumps(claim).encode()
    was_here = restart

    def attempt() -> None:
        nonlocal was_here
        with suppress(ConflictError, TransientFault):
            objects.put(KEY, text)
            return
        found, head = _read(objects)
        if found == text:  # its answer was lost
            return
        if not restart and _is_of_another(found, claim):
            raise _refusal(objects)
        _check_present(objects, of_base)  # else it is ours that is dead
        was_here = True
        _take(objects, text, head)

    objects.policy(objects.where(KEY), attempt)
    objects.policy(objects.where(GROUP_FILE), lambda: _check_present(objects, of_base))
    yield was_here
    with suppress(StoreError):  # after the commit it stands in nobody's way
        objects.delete(KEY)


def _holder(directory: StoreDirectory) -> str:
    """Names a directory of this machine, without showing its path."""
    name = f"{gethostname()}\n{directory.path}\n{directory.inode}"
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()


def _is_of_another(found: bytes, claim: dict[str, str | None]) -> bool:
    """Whether a claim is for the present state, and of another directory."""
    try:
        other = json.loads(found)
        return other["base"] == claim["base"] and other["holder"] != claim["holder"]
    except (ValueError, TypeError, KeyError):
        return True


def _check_present(objects: Objects, of_base: str | None) -> None:
    """Raise LockedError if the state in the bucket is no longer that of an etag; None: nothing.

    In one attempt.
    """
    _, present = look(objects)
    if (present and present.etag) != of_base:
        raise LockedError(f"{objects.location}: another push committed meanwhile; run it again")


def _take(objects: Objects, text: bytes, head: Head) -> None:
    try:
        objects.put(KEY, text, head)
    except ConflictError:
        raise TransientFault("another push that comes and goes") from None


def _read(objects: Objects) -> tuple[bytes, Head]:
    try:
        return objects.once.get_with_head(KEY, MAX_BYTES)
    except NotFoundError:
        raise TransientFault("no certain answer") from None


def _refusal(objects: Objects) -> LockedError:
    return LockedError(
        f"{objects.location}: another push is at work, or one from another place was stopped; "
        "wait for it, or, if there is none, push with --restart"
    )
