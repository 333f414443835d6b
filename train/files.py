"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from store.write.files import replacing
from train.errors import OutputError

__all__ = ["check_output", "make_directory", "replace_file"]


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` if the block ends well, and
    goes if it does not.

    Raises
    ------
    OutputError
        If the file cannot be written: no space, no permission.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise OutputError(
            f"{path}: expected to write a file, found: {error.strerror}; make room, or choose --output-dir"
        ) from error


def check_output(path: Path) -> None:
    """Raise OutputError, before anything is computed, for a file of --output that cannot be
    written."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise OutputError(
            f"--output: expected a place to write to, found {str(path)!r}; choose another file"
        )


def make_directory(path: Path) -> None:
    """Create a directory and its parents; raises OutputError where that cannot be, or no file can
    be made in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"{path}: expected a directory to write results in, found: {error.strerror}; choose another --output-dir"
        ) from error
