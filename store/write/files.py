"""The few file operations that a commit consists of; nothing here knows what the bytes mean.

They are one class, so that a test can pass a class that fails, stops or records at any of them.
"""

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from store.system import SYNC_THREADS

__all__ = ["DISK", "Files", "opened", "replacing"]

_COPY_BYTES = 8 * 1024 * 1024
# constants of the kernel
_SYNC_FILE_RANGE_WRITE = 2
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# None: another system, which has a plainer way
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
_renameat2 = getattr(_libc, "renameat2", None)
if _sync_file_range:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


class Files:
    """File operations of a writer, each durable in the way its name says."""

    def make_dirs(self, path: Path) -> None:
        """Create a directory and its parents; each new entry is made durable."""
        for directory in reversed(list(takewhile(_is_fresh, (path, *path.parents)))):
            self.make_dir(directory)
            self.sync_dir(directory.parent)

    def make_dir(self, path: Path) -> None:
        """Create a directory unless it exists."""
        path.mkdir(exist_ok=True)

    def create(self, path: Path) -> int:
        """Return the descriptor of a new, empty file, for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    @contextmanager
    def created(self, path: Path) -> Iterator[int]:
        """Give the descriptor of a new file, which is synced if the block succeeds."""
        fd = self.create(path)
        try:
            yield fd
            self.sync(fd)
        finally:
            os.close(fd)

    def write(self, fd: int, data: memoryview | bytes, position: int) -> None:
        """Write all of `data` at `position`; the OSError of a full disk names the file."""
        view = memoryview(data).cast("B")
        while view:
            try:
                n_written = os.pwrite(fd, view, position)
            except OSError as error:
                found = f"{error.strerror} for {len(view):,} bytes more"
                raise OSError(error.errno, found, _name_of(fd)) from error
            view = view[n_written:]
            position += n_written

    def start_sync(self, fd: int, position: int, n_bytes: int) -> None:
        """Begin to write a range to the disk without waiting, so that `sync` has little to do."""
        if _sync_file_range:
            _sync_file_range(fd, position, n_bytes, _SYNC_FILE_RANGE_WRITE)

    def copy(self, source_fd: int, source: int, fd: int, position: int, n_bytes: int) -> None:
        """Copy a byte range from one file to another."""
        end = source + n_bytes
        while source < end:
            data = os.pread(source_fd, min(end - source, _COPY_BYTES), source)
            if not data:
                raise OSError(
                    f"expected {end - source} more bytes at position {source}, "
                    "found the end of the file"
                )
            self.write(fd, data, position)
            source += len(data)
            position += len(data)

    def copy_file(self, source: Path, target: Path) -> None:
        """Copy a whole file durably."""
        with opened(source) as source_fd, self.created(target) as fd:
            self.copy(source_fd, 0, fd, 0, os.fstat(source_fd).st_size)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; raises OSError where the file system cannot.

        It is not durable before the directory of `target` is synced.
        """
        os.link(source, target)

    def sync(self, fd: int) -> None:
        """Wait until a file's bytes would survive a power cut."""
        os.fsync(fd)

    def sync_dir(self, path: Path) -> None:
        """Wait until a directory's entries would survive a power cut."""
        with opened(path) as fd:
            os.fsync(fd)

    def sync_dirs(self, paths: Iterable[Path]) -> None:
        """`sync_dir` of many directories; returns when all are durable.

        In threads: a disk takes the flushes of several at once. Of 4,000 directories 0.4 s instead
        of 20 on a virtual disk.
        """
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            list(pool.map(self.sync_dir, paths))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory; a file at `target` is replaced atomically."""
        source.replace(target)

    def rename_durably(self, source: Path, target: Path) -> None:
        """Rename, and wait until the new name would survive a power cut."""
        self.rename(source, target)
        self.sync_dir(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file that no commit needs; if a power cut restores it, a writer repeats it."""
        path.unlink(missing_ok=True)

    def remove_if_empty(self, path: Path) -> bool:
        """Remove a directory if it is empty; return whether it is gone."""
        try:
            path.rmdir()
        except OSError:
            return False
        return True

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content, file by file; see `remove`."""
        if not path.is_dir() or path.is_symlink():
            return
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                self.remove_tree(entry)
            else:
                self.remove(entry)
        path.rmdir()

    def exchange(self, first: Path, second: Path) -> None:
        """Swap two directories, atomically where the system and the file system can.

        Elsewhere there is nothing at `second` for a moment; a process that is killed then leaves
        what was there beside it, as `<second>.exchanged`.
        """
        paths = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
        if _renameat2 and not _renameat2(*paths, _RENAME_EXCHANGE):
            return
        if _renameat2 and ctypes.get_errno() not in _CANNOT_EXCHANGE:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(second))
        beside = second.with_name(f"{second.name}.exchanged")
        self.rename_durably(second, beside)
        self.rename_durably(first, second)
        self.rename_durably(beside, first)

    def replace_text(self, path: Path, text: bytes, temporary: Path | None = None) -> None:
        """Write `text` to `path` so that a crash leaves either the old file or the new one.

        It is written to `temporary` first, by default a file beside `path` that ends in `.new`.
        """
        temporary = temporary or path.with_name(f"{path.name}.new")
        with self.created(temporary) as fd:
            self.write(fd, text, 0)
        self.rename_durably(temporary, path)


DISK = Files()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which replaces `path` durably if the block succeeds.

    The error of a full disk, which names no file, names `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with opened(temporary) as fd:
            DISK.sync(fd)
        DISK.rename_durably(temporary, path)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        # also after Ctrl-C; after the rename there is nothing to remove
        temporary.unlink(missing_ok=True)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Give the descriptor of a file or directory, for reading."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _name_of(fd: int) -> str | None:
    """The path of an open file, on systems that tell it."""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    return None


def _is_fresh(path: Path) -> bool:
    """Whether a directory is missing or empty: its creator may have died before it was durable."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return not path.exists()
