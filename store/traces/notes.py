"""Labels, tags and notes that somebody gave traces, in a CSV file beside the store.

The file is `STORE.notes.csv`, of the columns `trace_id`, `label`, `tags` (with spaces between them)
and `note`; the page writes it, and any other program may. Of two lines of a trace the last one
counts. The store is never changed by it; an empty label says nothing.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from store.errors import FormatError, NotFoundError
from store.text_records import find_delimiter, name_file

__all__ = [
    "LABELS",
    "Note",
    "notes_path",
    "notes_state",
    "read_lines",
    "read_notes",
    "tagged",
    "tidy",
]

LABELS = ("", "0", "1", "-1")
TRUTH = {"true": "1", "false": "0"}


class Note(NamedTuple):
    """What was noted about a trace; nothing, if all of it is empty."""

    label: str = ""  # one of LABELS
    tags: str = ""  # words with one space between them
    note: str = ""


HEADER = ["trace_id", *Note._fields]


class Lines(NamedTuple):
    """The cells of a file of notes as they stand there."""

    header: list[str]
    lines: list[list[str]]
    delimiter: str


def notes_path(store: Path) -> Path:
    """Where the notes of a store lie, also where its path is a link."""
    path = store.resolve()
    return path.with_name(f"{path.name}.notes.csv")


def read_notes(path: Path) -> dict[str, Note]:
    """The notes by trace id, none if the file is not there.

    Raises FormatError or NotFoundError, with the file's name, if it is none or cannot be read.
    """
    state = notes_state(path)
    return dict(_read(path, state)) if state else {}


def notes_state(path: Path) -> tuple[int, ...]:
    """What changes whenever the file does; nothing if it is not there."""
    if not path.exists():
        return ()
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(4)
def _read(path: Path, _state: tuple[int, ...]) -> dict[str, Note]:
    """The notes of a file in a state."""
    header, lines, _ = read_lines(path)
    places = [header.index(name) for name in HEADER]
    notes = {}
    for line in lines:
        trace_id, label, tags, note = (line[at] if at < len(line) else "" for at in places)
        notes[trace_id] = Note(_label(path, trace_id, label), tidy(tags), note)
    return notes


def _label(path: Path, trace_id: str, text: str) -> str:
    """A label as the page writes it: other programs have it as 1.0 or true as well."""
    word = text.strip().lower().removesuffix(".0")
    label = TRUTH.get(word, word)
    if label not in LABELS:
        raise FormatError(
            f"{path}: label of {trace_id!r:.80}: expected 0, 1, -1 or nothing, found {text!r:.40}"
        )
    return label


def read_lines(path: Path) -> Lines:
    """The cells of a file, those of an empty one if it is not there."""
    if not path.exists():
        return Lines(HEADER, [], ",")
    with name_file(path, "notes as CSV"):
        text = path.read_bytes().decode("utf-8-sig")
    try:
        delimiter = find_delimiter(text.partition("\n")[0], HEADER)
        lines = [*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)]
    except csv.Error as error:
        raise FormatError(f"{path}: expected notes as CSV, found: {error}") from error
    header = lines[0] if lines else []
    if not {*HEADER} <= {*header}:
        raise FormatError(
            f"{path}: expected the columns {', '.join(HEADER)}, found {', '.join(header) or 'none'}"
        )
    return Lines(header, [line for line in lines[1:] if line], delimiter)


def tidy(tags: str) -> str:
    """Tags with one space between them; they may come with commas."""
    return " ".join(re.split(r"[\s,]+", tags)).strip()


def tagged(path: Path, tag: str) -> list[str]:
    """The ids of the traces that have a tag; raises NotFoundError if none has."""
    notes = read_notes(path)
    found = [trace_id for trace_id, note in notes.items() if tag in note.tags.split()]
    if not found:
        known = ", ".join(_tags(notes)) or "no tag"
        raise NotFoundError(f"{path}: expected traces with the tag {tag!r:.80}, found {known}")
    return found


def _tags(notes: Mapping[str, Note]) -> Iterable[str]:
    return sorted({tag for note in notes.values() for tag in note.tags.split()})
