"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from train.errors import OutputError

__all__ = ["check_output", "expand", "make_directory", "replace_file"]


def expand(text: str) -> str:
    """A path of the command line with `~` expanded, which shells leave in quotes and after `--flag=`."""
    # Path.expanduser raises for the name of an unknown user; shells leave that as it is, and so does this.
    return os.path.expanduser(text)  # noqa: PTH111


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` if the block ends well, and goes if it does not.

    Raises
    ------
    OutputError
        If the file cannot be written: no space, no permission.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise OutputError(
            f"{path}: expected to write a file, found: {error.strerror}; make room, or choose --output-dir"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)  # also after Ctrl-C; after the rename there is nothing to remove


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, in the order in which they were given."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_output(path: Path) -> None:
    """Raise OutputError, before anything is computed, for a file of --output that cannot be written."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise OutputError(f"--output: expected a place to write to, found {str(path)!r}; choose another file")


def make_directory(path: Path) -> None:
    """Create a directory and its parents; raises OutputError where that cannot be, or no file can be made in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"{path}: expected a directory to write results in, found: {error.strerror}; choose another --output-dir"
        ) from error
