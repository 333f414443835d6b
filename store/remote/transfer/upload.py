"""Files as objects that are written once: none that a reader may be reading is ever replaced.

An object that is there with the same bytes is as good as written, which is how a stopped push goes
on; one with other bytes belongs to somebody else.
"""

import hashlib
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from store.errors import CorruptError, LockedError, NotFoundError
from store.read.arrays.shard import RESTORE
from store.remote.objects.faults import ConflictError, TransientFault
from store.remote.objects.objects import Head, Objects
from store.remote.objects.parallel import run_all

__all__ = ["Content", "Upload", "Uploader", "file_of"]

BLOCK_BYTES = 8 * 1024 * 1024
ONE_REQUEST_BYTES = 4 * 1024**3  # S3 takes 5 GiB, and more in parts
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
Content = Path | bytes
Advance = Callable[[int], None]


class Upload(NamedTuple):
    """An object to be written: a file, or bytes.

    Nothing, or the same, must be there if it `is_new`; else it grows, and replaces what is there.
    """

    key: str
    content: Content
    is_new: bool = True

    @property
    def n_bytes(self) -> int:
        if isinstance(self.content, Path):
            return self.content.stat().st_size
        return len(self.content)


def file_of(root: Path, key: str) -> Path:
    """A file of a store; raises CorruptError if it is not there."""
    path = root / key
    if not path.is_file():
        raise CorruptError(f"{path}: expected a file of the store, found none; {RESTORE}")
    return path


class Uploader:
    """Writes objects in parallel; the first error stops the others.

    `advance` is called with the bytes of each object that is there now, from any thread. What
    `replaces` removes objects with other bytes, which were there before; else they are refused.
    """

    def __init__(
        self, objects: Objects, n_threads: int, advance: Advance, *, replaces: bool = False
    ) -> None:
        self.replaces = replaces
        self.objects = objects
        self.n_threads = n_threads
        self.advance = advance
        self._has_md5 = True  # the server's etags are MD5s, until one is seen that is not

    def upload(self, uploads: Iterable[Upload], present: Mapping[str, Head]) -> int:
        """Write objects; return how many of them were there: `present` were so a moment ago.

        Raises
        ------
        LockedError
            An object is there with other bytes.
        UnreachableError
            One could not be written in time; what is written stays.
        """
        items = [(item, present.get(item.key)) for item in uploads]
        return sum(run_all(self.objects, self._one, items, self.n_threads))

    def _one(self, objects: Objects, item: tuple[Upload, Head | None]) -> bool:
        """Write one; return whether it was there."""
        upload, present = item
        was_there = present is not None and self._is_same(upload, present)
        if not was_there:
            if upload.is_new and present is not None:
                if not self.replaces:
                    raise self._foreign(upload)
                objects.delete(upload.key)
            objects.policy(objects.where(upload.key), lambda: self._write(upload))
        self.advance(upload.n_bytes)
        return was_there

    def _write(self, upload: Upload) -> None:
        """One attempt to write an object, and to see that its bytes are right."""
        key = upload.key
        try:
            head = self._put(upload)
        except ConflictError:  # perhaps with an attempt of ours whose answer was lost
            if not self._is_same(upload, self.objects.once.head(key)):
                raise self._foreign(upload) from None
            return
        if self._has_md5 and _md5_in(head) and not self._is_same(upload, head):
            if upload.is_new:  # it is ours, and nothing calls for it yet
                self.objects.once.delete(key)
            raise TransientFault("other bytes than were sent")

    def _put(self, upload: Upload) -> Head:
        objects = self.objects.once
        if upload.n_bytes <= ONE_REQUEST_BYTES or isinstance(upload.content, bytes):
            with _bytes_of(upload.content) as data:
                return (objects.put if upload.is_new else objects.replace)(upload.key, data)
        if upload.is_new:  # parts are not written under a condition: the claim has to do
            with suppress(NotFoundError):
                objects.head(upload.key)
                raise ConflictError(upload.key)
        return objects.replace(upload.key, upload.content)

    def _is_same(self, upload: Upload, head: Head) -> bool:
        """Whether an object has these bytes; it is read where its etag does not say so."""
        if head.size != upload.n_bytes:
            return False
        with _bytes_of(upload.content) as data:
            stated = _md5_in(head)
            if stated and self._has_md5 and stated == _md5_of(data):
                return True
            is_same = self._has_bytes(upload.key, data, head.etag)
        if is_same and stated is not None:
            self._has_md5 = False  # as with keys of KMS
        return is_same

    def _has_bytes(self, key: str, data: memoryview, etag: str | None) -> bool:
        for start in range(0, len(data), BLOCK_BYTES):
            end = min(len(data), start + BLOCK_BYTES)
            if self.objects.get_range(key, start, end, etag) != data[start:end]:
                return False
        return True

    def _foreign(self, upload: Upload) -> LockedError:
        return LockedError(
            f"{self.objects.where(upload.key)}: expected no object, found one with other bytes: "
            "another push is at work, or one stopped; wait for it, or, if there is none, "
            "push with --restart"
        )


@contextmanager
def _bytes_of(content: Content) -> Iterator[memoryview]:
    """The bytes of an object to be written; a file is mapped, not read into memory."""
    if isinstance(content, bytes) or not content.stat().st_size:  # nothing cannot be mapped
        yield memoryview(content if isinstance(content, bytes) else b"")
        return
    with (
        content.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


def _md5_of(data: memoryview) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _md5_in(head: Head) -> str | None:
    """The MD5 that an etag seems to be; those of objects in parts are others."""
    found = _MD5.fullmatch(head.etag or "")
    return found[1] if found else None
