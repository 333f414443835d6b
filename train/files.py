"""Files that are written whole or not at all, and JSON files from anywhere."""

import contextlib
import csv
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from store.write.files import replacing
from train.errors import ConfigError, OutputError

__all__ = [
    "Json",
    "check_output",
    "make_directory",
    "read_json",
    "replace_file",
    "write_csv",
    "write_text",
    "writing",
]

MAX_JSON_BYTES = 64 << 20
Json = dict[str, Any]  # an object in a JSON file, or what will be one


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise OutputError where a path cannot be written: no space, no permission."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}; make room, or write elsewhere"
        ) from error


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which replaces `path` if the block succeeds."""
    if path.is_dir():
        raise OutputError(f"{path}: expected a file to write, found a directory; name a file in it")
    with writing(path), replacing(path) as temporary:
        yield temporary


def write_text(path: Path, text: str) -> None:
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Iterable[object]]) -> None:
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(lines)


def check_output(path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Raise an error for a file of --output that has another ending, or cannot be written."""
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise ConfigError(
            f"--output: expected a file that ends in {' or '.join(suffixes)}, found {str(path)!r}"
        )
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise OutputError(f"--output: {str(path)!r} cannot be written; choose another file")


def make_directory(path: Path) -> None:
    """Create a directory and its parents; raises OutputError where no file can be written in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"{path}: expected a directory for results, found: {error.strerror}; "
            "choose another --output-dir"
        ) from error


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, object]:
    """Read the object in a JSON file.

    Raises ValueError if the file cannot be read, is larger than `max_bytes`, or holds anything but
    an object.
    """
    try:
        n_bytes = path.stat().st_size
        if n_bytes > max_bytes:
            raise ValueError(f"{n_bytes:,} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(type(content).__name__)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{path}: expected a JSON object of at most {max_bytes:,} bytes, found: {reason!s:.200}"
        ) from error
    return content
