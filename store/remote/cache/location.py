"""The cache directory of mirrors: where it is, what is in it, and that it is ours alone."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import SchemaError, VersionError
from store.read.directory import local_path
from store.remote.cache.messages import PROTOCOL

__all__ = [
    "DIR_VARIABLE",
    "LOCK_FILE",
    "SIZE_VARIABLE",
    "SLAB_FILE",
    "SOCKET_FILE",
    "STORES_DIR",
    "chosen_dir",
    "chosen_limit",
    "prepare_dir",
    "socket_address",
]

DIR_VARIABLE = "TRACE_STORE_CACHE_DIR"
SIZE_VARIABLE = "TRACE_STORE_CACHE_BYTES"
MARKER = "trace-store-cache.json"
LOCK_FILE = "fetcher.lock"
SOCKET_FILE = "fetcher.socket"
SLAB_FILE = "chunks"
STORES_DIR = "stores"
UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
UNITS |= {"TIB": 2**40, "B": 1, "": 1}


def chosen_dir(cache_dir: str | Path | None) -> Path:
    """The cache directory: as given, by the environment, or the user's own."""
    named = cache_dir or os.environ.get(DIR_VARIABLE)
    if named:
        return local_path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "trace-store"


def chosen_limit(cache_bytes: int | None) -> int | None:
    """Bytes that mirrors may take: as given, or by the environment ("200GB"); None: neither.

    Raises SchemaError if the environment has no size.
    """
    text = os.environ.get(SIZE_VARIABLE)
    if cache_bytes is not None or not text:
        return cache_bytes
    number = text.strip().rstrip("KMGTiIBbkmgt ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError) as error:
        raise SchemaError(
            f"{SIZE_VARIABLE}: expected a size as 200GB or 1.5TiB, found {text!r:.40}"
        ) from error


def prepare_dir(cache_dir: Path) -> None:
    """Make a cache directory, or check that this one is.

    Raises SchemaError if it holds something else, or cannot be written, and VersionError if another
    version of this package made it.
    """
    marker = cache_dir / MARKER
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_ours(cache_dir, is_new=not marker.exists())
        if not marker.exists():
            _mark(cache_dir, marker)
            _check_ours(cache_dir)
        version = json.loads(marker.read_bytes())["version"]
        if not os.access(cache_dir, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(0, "it is not writable")
    except OSError as error:
        raise SchemaError(
            f"{cache_dir}: expected a directory for the cache that can be written, found: "
            f"{error.strerror}; choose one with cache_dir or {DIR_VARIABLE}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(
            f"{marker}: expected what this package writes, found another file; choose another "
            f"cache directory with cache_dir or {DIR_VARIABLE}"
        ) from error
    if version != PROTOCOL:
        raise VersionError(
            f"{cache_dir}: expected a cache of version {PROTOCOL}, found {version!r:.20}; remove "
            "it once nobody uses it, or choose another directory"
        )


def _mark(cache_dir: Path, marker: Path) -> None:
    """Make an empty directory ours; several readers may do so at a time."""
    if not any(cache_dir.iterdir()):
        cache_dir.chmod(0o700)  # what is in it from now on is ours
    others = [path.name for path in cache_dir.iterdir() if not path.name.startswith(MARKER)]
    if others and not marker.exists():
        raise SchemaError(
            f"{cache_dir}: expected an empty directory, or a cache of this package, found "
            f"{min(others)!r:.80} in it; choose another with cache_dir or {DIR_VARIABLE}, or "
            "remove what is left of one"
        )
    own = cache_dir / f"{MARKER}.{threading.get_native_id()}"
    own.write_text(json.dumps({"version": PROTOCOL}))
    own.replace(marker)


@contextmanager
def socket_address(cache_dir: Path) -> Iterator[str]:
    """Where the fetching process listens: short, as a socket's path has at most 107 bytes."""
    fd = os.open(cache_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_ours(cache_dir, fd)  # so nobody else has a socket in it, or comes to ours
        yield f"/proc/self/fd/{fd}/{SOCKET_FILE}"
    finally:
        os.close(fd)


def _check_ours(cache_dir: Path, fd: int | None = None, *, is_new: bool = False) -> None:
    """Raise SchemaError unless a directory is this user's and, but for a new one, nobody else's.

    `fd` is the directory, opened: another one may have its name by now.
    """
    status = os.stat(cache_dir if fd is None else fd)
    user, mode = os.geteuid(), status.st_mode & 0o777
    if status.st_uid != user or (mode & 0o077 and not is_new):
        raise SchemaError(
            f"{cache_dir}: expected a cache of user {user} alone, mode 700, found one of user "
            f"{status.st_uid}, mode {mode:o}, which others may use; chmod 700 it if it is yours "
            f"and you trust them, or choose another with cache_dir or {DIR_VARIABLE}"
        )
