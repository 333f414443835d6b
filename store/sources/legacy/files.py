"""Which files of the older formats sources name, and what they are called; opens them only to see
how they begin."""

import glob
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from store.errors import NotFoundError, SchemaError
from store.reports import count

__all__ = ["describe_kind", "find_files", "short_names"]

NAMED = 3  # files of a kind that are shown

SUFFIXES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz", ".pt", ".pth")
MAGIC = (b"\x1f\x8b", b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def find_files(sources: Sequence[str]) -> list[Path]:
    """The files that sources name: files, folders (all files in them that may be traces) and
    patterns; sorted.

    Raises
    ------
    NotFoundError
        A source names nothing.
    """
    files: dict[Path, Path] = {}  # by what it really is: a file named twice is read once
    for source in sources:
        path = Path(source)
        named = [path] if source and path.exists() else _matches(source)
        found = [
            file for name in named for file in (_files_under(name) if name.is_dir() else [name])
        ]
        if not any(file.is_file() for file in found):
            raise NotFoundError(
                f"{source}: expected a file, folder or pattern of files with traces, found none"
            )
        for file in found:
            if file.is_file():
                files.setdefault(file.resolve(), file)
    return sorted(files.values(), key=Path.absolute)


def _files_under(folder: Path) -> list[Path]:
    """The files of a folder that may hold traces; those of stores are none."""
    if (folder / "zarr.json").exists():
        raise SchemaError(
            f"{folder}: expected older files, found a store; see python -m store merge and subset"
        )
    stores = {path.parent for path in folder.rglob("zarr.json")}
    files = (
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and stores.isdisjoint(file.parents)
    )
    return [file for file in files if _may_hold_traces(file)]


def _matches(pattern: str) -> list[Path]:
    """The paths that a pattern names, from here or from the root."""
    path = Path(pattern)
    root = Path(path.anchor or ".")
    try:
        return sorted(root.glob(str(path.relative_to(path.anchor)))) if path.name else []
    except ValueError as error:
        raise NotFoundError(f"{pattern}: expected a pattern of files, found: {error}") from error


def _may_hold_traces(file: Path) -> bool:
    """Whatever is called like a file of traces, damaged ones too; others if they begin as such
    files do."""
    if file.name.lower().endswith(SUFFIXES):
        return True
    with file.open("rb") as opened:
        return opened.read(4).startswith(MAGIC)


def short_names(files: Sequence[Path]) -> list[str]:
    """The files' names below the folder that holds them all."""
    root = files[0].absolute().parent if len(files) == 1 else _common_root(files)
    names = (file.absolute().relative_to(root) for file in files)
    return [os.fsencode(name).decode(errors="backslashreplace") for name in names]


def _common_root(files: Sequence[Path]) -> str:
    return os.path.commonpath([file.absolute().parent for file in files] or ["/"])


def describe_kind(kind: str, files: Sequence[Path], others: Sequence[Path]) -> str:
    """Say which files are of a kind, and the command that imports them without the others."""
    names = ", ".join(str(file) for file in files[:NAMED])
    more = ", ..." if len(files) > NAMED else ""
    out = f"OUT-{kind.replace(' ', '-')}.zarr"
    sources = " ".join(_sources_of(files, others))
    return f"{count(len(files), f'{kind} file')} ({names}{more}): python -m store import {out} {sources}"


def _sources_of(files: Sequence[Path], others: Sequence[Path]) -> list[str]:
    """What names these files in a shell, and none of the others: patterns if a few will do, else
    the first files."""
    patterns = list(dict.fromkeys(_pattern_of(file) for file in files))
    hit = set(others)
    fit = not any(hit.intersection(_matches(pattern)) for pattern in patterns)
    if len(files) > NAMED and len(patterns) <= NAMED and fit:
        return [shlex.quote(pattern) for pattern in patterns]
    paths = [shlex.quote(str(file)) for file in files[:NAMED]]
    return [*paths, "..."] if len(files) > NAMED else paths


def _pattern_of(file: Path) -> str:
    """The pattern of the files in its folder that are called like it; itself if its suffix says
    nothing."""
    suffix = max((s for s in SUFFIXES if file.name.lower().endswith(s)), key=len, default="")
    if not suffix:
        return str(file)
    folder = glob.escape(str(file.parent))
    return f"{folder}/*{file.name[-len(suffix) :]}"
