"""What messages call the files of a kind, and the command that imports them alone."""

import glob
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from store.importers.files import match_pattern, old_suffix
from store.reports import count

__all__ = ["describe_files", "describe_kind", "import_command"]

NAMED = 3  # files of a kind that are shown


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
    suffix = old_suffix(file)
    if not suffix:
        return str(file)
    folder = glob.escape(str(file.parent))
    return f"{folder}/*{file.name[-len(suffix) :]}"
