"""One writer at a time: a lock on a store's directory, which the kernel frees when its holder ends,
however it ends."""

import fcntl
import os
import time
import weakref
from pathlib import Path

from store.errors import LockedError

__all__ = ["WriterLock", "has_writer"]

ATTEMPTS, PAUSE_S = 10, 0.005


class WriterLock:
    """The right to write to a store, for this process alone: a child that is forked does not keep
    it.

    Parameters
    ----------
    root
        The store's directory.

    Raises
    ------
    LockedError
        Another writer has it; names the process, if the kernel does.
    """

    def __init__(self, root: Path) -> None:
        self._fd: int | None = None
        for _ in range(ATTEMPTS):
            if self._try(root):
                _held.add(self)
                return
            time.sleep(PAUSE_S)  # somebody may only have asked whether there is a writer
        raise LockedError(
            f"{root}: expected no other writer, found {_holder(root)} at work; wait for it, or stop it"
        )

    def _try(self, root: Path) -> bool:
        self._fd = _open(root)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        ours, there = os.fstat(self._fd), root.stat()
        # a repair has put another store here meanwhile
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            self.release()
            return False
        return True

    def __del__(self) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        """Let another write; a second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: the locks are its parent's, and must end with that."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_all)


def has_writer(root: Path) -> bool:
    """Whether a writer has the lock now."""
    fd = _open(root)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _open(root: Path) -> int:
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _holder(root: Path) -> str:
    """The process that has the lock, as the kernel lists it: `1: FLOCK ADVISORY WRITE <pid>
    <device>:<inode> 0 EOF`."""
    inode = str(root.stat().st_ino)
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        ours = (
            lock
            for lock in locks
            if lock[1] == "FLOCK" and lock[3] == "WRITE" and lock[5].endswith(f":{inode}")
        )
        pid = int(next(ours)[4])
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    # no such file system, or the holder is somewhere else
    except (OSError, StopIteration, IndexError, ValueError):
        return "one"
    return f"process {pid} ({command:.80})"
