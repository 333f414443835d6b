"""Which files of the older formats the sources name, and what messages call them.

Files are opened only to see how they begin.
"""

import glob
import os
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from store.errors import NotFoundError, SchemaError
from store.importers.file_imports import match_pattern
from store.reports import count

__all__ = [
    "describe_files",
    "describe_kind",
    "find_files",
    "import_command",
    "short_names",
]

NAMED = 3  # files of a kind that are shown

SUFFIXES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz", ".pt", ".pth")
MAGIC = (b"\x1f\x8b", b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def find_files(sources: Sequence[str]) -> list[Path]:
    """Return the files that sources name, sorted; of folders all in them that may be traces.

    Raises
    ------
    NotFoundError
        A source names nothing.
    """
    files: dict[Path, Path] = {}  # by resolved path: a file named twice is read once
    for source in sources:
        named = _files_of(source)
        if not named:
            raise NotFoundError(
                f"{source}: expected a file, folder or pattern of files with traces, found none"
            )
        for file in named:
            files.setdefault(file.resolve(), file)
    return sorted(files.values(), key=Path.absolute)


def _files_of(source: str) -> list[Path]:
    whole = Path(source)
    paths = [whole] if source and whole.exists() else match_pattern(source)
    files = []
    for path in paths:
        if path.is_dir():
            files += _files_under(path)
        elif path.is_file():
            files.append(path)
    return files


def _files_under(folder: Path) -> list[Path]:
    """Return the files of a folder that may hold traces, without those of stores."""
    if (folder / "zarr.json").exists():
        raise SchemaError(
            f"{folder}: expected older files, found a store; see python -m store merge and subset"
        )
    stores = {path.parent for path in folder.rglob("zarr.json")}
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and stores.isdisjoint(file.parents) and _may_hold_traces(file)
    ]


def _may_hold_traces(file: Path) -> bool:
    """Return whether a file has the name of one with traces, or else begins as one."""
    if _suffix(file):
        return True
    with file.open("rb") as opened:
        return opened.read(4).startswith(MAGIC)


def _suffix(file: Path) -> str:
    name = file.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def short_names(files: Sequence[Path]) -> list[str]:
    """Return the files' names below the folder that holds them all."""
    folders = [file.absolute().parent for file in files]
    root = os.path.commonpath(folders) if folders else "/"
    encoded = [os.fsencode(file.absolute().relative_to(root)) for file in files]
    return [name.decode(errors="backslashreplace") for name in encoded]


def describe_kind(kind: str, files: Sequence[Path], others: Sequence[Path]) -> str:
    """Return which files are of a kind, and the command that imports them without the others."""
    return f"{describe_files(kind, files)}: {import_command(kind, files, others)}"


def describe_files(kind: str, files: Sequence[Path]) -> str:
    """Return how many files are of a kind, and the first of them."""
    more = ["..."] if len(files) > NAMED else []
    shown = ", ".join([*map(str, files[:NAMED]), *more])
    return f"{count(len(files), f'{kind} file')} ({shown})"


def import_command(kind: str, files: Sequence[Path], others: Sequence[Path]) -> str:
    """Return a command to copy, which imports files of a kind without the others.

    It names every file where no pattern tells them from the others.
    """
    slug = kind.replace(" ", "-")
    patterns = _patterns_of(files, others) if len(files) > NAMED else []
    sources = shlex.join(patterns or list(map(str, files)))
    return f"python -m store import OUT-{slug}.zarr {sources}"


def _patterns_of(files: Sequence[Path], others: Sequence[Path]) -> list[str]:
    """Return a few patterns that match these files and no others, [] if there are none."""
    patterns = list(dict.fromkeys(map(_pattern_of, files)))
    matched = chain.from_iterable(map(match_pattern, patterns))
    if len(patterns) > NAMED or not set(others).isdisjoint(matched):
        return []
    return patterns


def _pattern_of(file: Path) -> str:
    """Return the pattern of the files in its folder with its suffix; itself if it has none."""
    suffix = _suffix(file)
    if not suffix:
        return str(file)
    folder = glob.escape(str(file.parent))
    return f"{folder}/*{file.name[-len(suffix) :]}"
