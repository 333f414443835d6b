"""One writer at a time: a lock on a store's directory.

The kernel frees it when its holder ends, however it ends.
"""

import fcntl
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from store.errors import LockedError, SchemaError
from store.write.files import opened

__all__ = ["WriterLock", "has_writer"]

ATTEMPTS = 10
PAUSE_S = 0.005


class WriterLock:
    """The right to write to a store, for this process alone: a forked child does not keep it.

    As a context manager it is released at the end of the block. Raises LockedError if another
    writer holds it, with the process, if the kernel names it; SchemaError if the directory cannot
    be written.
    """

    def __init__(self, root: Path) -> None:
        self._fd: int | None = None
        self.threads = threading.RLock()  # of this process, of which one writes at a time
        if root.is_dir() and not os.access(root, os.W_OK):
            raise SchemaError(
                f"{root}: expected a directory that can be written, found one that is read-only; "
                "write to a copy of the store (python -m store merge --copy COPY STORE)"
            )
        for _ in range(ATTEMPTS):
            if self._try(root):
                _held.add(self)
                return
            time.sleep(PAUSE_S)  # a process may only have asked whether there is a writer
        raise LockedError(
            f"{root}: expected no other writer, found {_holder(root)} at work; "
            "wait for it, or stop it"
        )

    def _try(self, root: Path) -> bool:
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a repair may have put another store here meanwhile
            if self.is_of(root):
                return True
        self.release()
        return False

    def is_of(self, root: Path) -> bool:
        """Whether the directory at a path is the one that is locked."""
        with suppress(FileNotFoundError):
            return self._fd is not None and os.path.samestat(os.fstat(self._fd), root.stat())
        return False

    def __enter__(self) -> "WriterLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        """Let another process write; a second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _release_all() -> None:
    """In a forked child: the locks are its parent's, and must end with the parent."""
    for lock in list(_held):
        lock.release()
        lock.threads = threading.RLock()  # a thread that only the parent has may hold the other one


os.register_at_fork(after_in_child=_release_all)


def has_writer(root: Path) -> bool:
    """Whether a writer holds the lock now."""
    with opened(root) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _holder(root: Path) -> str:
    """The process that holds the lock, as the kernel lists it.

    A line of the list is `1: FLOCK ADVISORY WRITE <pid> <device>:<inode> 0 EOF`.
    """
    inode = str(root.stat().st_ino)
    # no such file system, or the process is gone
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, access, pid, file, *_ = line.split()
            if kind == "FLOCK" and access == "WRITE" and file.endswith(f":{inode}"):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
                command = arguments.replace(b"\0", b" ").decode(errors="replace")
                return f"process {pid} ({command.strip():.80})"
    return "one"
