"""Labels, tags and notes that somebody gave traces, in a CSV file beside the store.

The file is `STORE.notes.csv`, of the columns `trace_id`, `label`, `tags` (with spaces between them)
and `note`; the page writes it, and any other program may. The store is never changed by it: as
`python -m store label STORE --from-notes` reads it, an empty label says nothing.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from store.errors import FormatError, NotFoundError
from store.write.files import replacing

__all__ = ["LABELS", "Note", "notes_path", "read_notes", "tagged", "write_note"]

LABELS = ("", "0", "1", "-1")


class Note(NamedTuple):
    """What was noted about a trace; nothing, if all of it is empty."""

    label: str = ""  # one of LABELS
    tags: str = ""  # words with one space between them
    note: str = ""


HEADER = ["trace_id", *Note._fields]


def notes_path(store: Path) -> Path:
    """Where the notes of a store lie, also where its path is a link."""
    path = store.resolve()
    return path.with_name(f"{path.name}.notes.csv")


def read_notes(path: Path) -> dict[str, Note]:
    """The notes by trace id, none if the file is not there; raises FormatError."""
    if not path.exists():
        return {}
    state = path.stat()
    return dict(_read(path, state.st_mtime_ns, state.st_size))


@lru_cache(4)
def _read(path: Path, *_state: int) -> dict[str, Note]:
    """The notes of a file in a state."""
    lines = csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""))
    if not {*HEADER} <= {*(lines.fieldnames or ())}:
        raise FormatError(
            f"{path}: expected the columns {', '.join(HEADER)}, "
            f"found {', '.join(lines.fieldnames or ()) or 'none'}"
        )
    return {line["trace_id"]: Note(*(line[name] or "" for name in Note._fields)) for line in lines}


def write_note(path: Path, trace_id: str, note: Note) -> None:
    """Put a note in the place of the trace's last one; an empty one removes it.

    Raises FormatError for a label that is none, or a file of another form.
    """
    if note.label not in LABELS:
        raise FormatError(f"label: expected 0, 1, -1 or nothing, found {note.label!r:.40}")
    tidy = note._replace(tags=" ".join(note.tags.split()))
    notes = read_notes(path) | {trace_id: tidy}
    kept = [(name, *each) for name, each in notes.items() if any(each)]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        # quoted: a lone carriage return in an id is else the end of a line
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([HEADER, *kept])


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
