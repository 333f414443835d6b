"""Objects that are written under a condition: where none is, or just the one that was seen.

So writers never mix their objects, and a late one replaces nothing of a faster one. An object that
is there with the same bytes is as good as written: that is how a stopped push goes on, and how a
write is known whose answer was lost.
"""

import hashlib
import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from store.check.verify import BytesProgress
from store.errors import CorruptError, LockedError
from store.read.arrays.shard import RESTORE
from store.remote.objects.faults import ConflictError, TransientFault
from store.remote.objects.objects import Head, Objects
from store.remote.transfer.parallel import run_all
from store.system import TRANSFER_THREADS

__all__ = ["Upload", "Uploader", "file_of"]

BLOCK_BYTES = 8 * 1024 * 1024
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
Data = bytes | mmap.mmap


class Upload(NamedTuple):
    """An object to be written: a file, or bytes.

    Nothing, or the same, must be there if it `is_new`; else it may replace what is there.
    """

    key: str
    content: Path | bytes
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


@dataclass
class Uploader:
    """Writes objects in parallel; the first error stops the others.

    `present` are the objects as they were seen: only those are replaced. With `restart` also those
    that had to be new. What was written is read again if it `reads_back`. `progress` is called with
    the bytes that are there now, and the `total`.
    """

    objects: Objects
    present: Mapping[str, Head]
    restart: bool = False
    reads_back: bool = False
    progress: BytesProgress = lambda done, total: None
    total: int = 0
    n_done: int = 0  # bytes
    _has_md5: bool = True  # the server's etags are MD5s, until one is seen that is not

    def upload(self, uploads: Sequence[Upload]) -> int:
        """Write objects; return how many of them were there.

        Raises LockedError if an object is there with other bytes; UnreachableError if one could not
        be written in time: what is written stays.
        """
        n_present = 0
        for upload, was_there in run_all(self._one, uploads, TRANSFER_THREADS):
            n_present += was_there
            self.n_done += upload.n_bytes
            self.progress(self.n_done, self.total)
        return n_present

    def _one(self, upload: Upload) -> bool:
        """Write one; return whether it was there."""
        present = self.present.get(upload.key)
        if present is not None and self._is_same(upload, present):
            return True
        if present is not None and upload.is_new and not self.restart:
            raise self._foreign(upload)
        self._write(upload, present)
        return False

    def _write(self, upload: Upload, expected: Head | None) -> None:
        """Write an object where just that of a head is; None: where none is."""
        key = upload.key

        def attempt() -> None:
            nonlocal expected
            try:
                head = self.objects.put(key, _bytes_of(upload.content), expected)
            except ConflictError:  # perhaps with an attempt of ours whose answer was lost
                if not self._is_same(upload, self.objects.head(key)):
                    raise self._foreign(upload) from None
                return
            if not self._has_arrived(upload, head):
                expected = head
                raise TransientFault("other bytes than were sent")

        self.objects.policy(self.objects.where(key), attempt)

    def _has_arrived(self, upload: Upload, head: Head) -> bool:
        """Whether what was written is there, as far as it is looked; raises ConflictError."""
        if self.reads_back:
            return self._has_bytes(upload.key, _bytes_of(upload.content), head.etag)
        says_nothing = not (self._has_md5 and _md5_in(head))
        return says_nothing or self._is_same(upload, head)

    def _foreign(self, upload: Upload) -> LockedError:
        return LockedError(
            f"{self.objects.where(upload.key)}: expected no other bytes, found some: another push "
            "is at work, or one stopped; push again, or, if there is no other, with --restart"
        )

    def _is_same(self, upload: Upload, head: Head) -> bool:
        """Whether an object has these bytes; it is read where its etag does not say so."""
        if head.size != upload.n_bytes:
            return False
        data = _bytes_of(upload.content)
        stated = _md5_in(head)
        if stated and self._has_md5 and stated == _md5_of(data):
            return True
        is_same = self._has_bytes(upload.key, data, head.etag)
        if is_same and stated is not None:
            self._has_md5 = False  # as with keys of KMS
        return is_same

    def _has_bytes(self, key: str, data: Data, etag: str | None) -> bool:
        for start in range(0, len(data), BLOCK_BYTES):
            end = min(len(data), start + BLOCK_BYTES)
            if self.objects.get_range(key, start, end, etag) != data[start:end]:
                return False
        return True


def _bytes_of(content: Path | bytes) -> Data:
    """The bytes of an object to be written; a file is mapped, not read into memory."""
    if isinstance(content, bytes):
        return content
    if not content.stat().st_size:  # nothing cannot be mapped
        return b""
    with content.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _md5_of(data: Data) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _md5_in(head: Head) -> str | None:
    """The MD5 that an etag seems to be; those of objects in parts are others."""
    found = _MD5.fullmatch(head.etag or "")
    return found[1] if found else None
