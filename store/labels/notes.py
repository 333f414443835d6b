"""Labels, tags and notes that somebody gave traces, in a CSV file beside the store.

The file is `STORE.notes.csv`, of the columns `trace_id`, `label`, `tags` (with spaces between them)
and `note`; the page writes it, and any other program may: its further columns and lines stay. The
store is never changed by it: as `python -m store label STORE --from-notes` reads it, an empty label
says nothing.
"""

import csv
import fcntl
import io
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from store.errors import FormatError, NotFoundError
from store.text_records import find_delimiter, name_file
from store.write.files import opened, replacing

__all__ = ["LABELS", "Note", "notes_path", "read_notes", "tagged", "write_note"]

LABELS = ("", "0", "1", "-1")


class Note(NamedTuple):
    """What was noted about a trace; nothing, if all of it is empty."""

    label: str = ""  # one of LABELS
    tags: str = ""  # words with one space between them
    note: str = ""


HEADER = ["trace_id", *Note._fields]


class _Lines(NamedTuple):
    """The cells of a file of notes as they stand there."""

    header: list[str]
    lines: list[list[str]]
    delimiter: str

    def notes(self) -> dict[str, Note]:
        """The notes by trace id; of two lines of a trace the last one."""
        places = [self.header.index(name) for name in HEADER]
        cells = ([line[at] if at < len(line) else "" for at in places] for line in self.lines)
        # a table with an empty cell has its whole numbers as 1.0
        return {
            trace_id: Note(label.removesuffix(".0"), _tidy(tags), note)
            for trace_id, label, tags, note in cells
        }


def notes_path(store: Path) -> Path:
    """Where the notes of a store lie, also where its path is a link."""
    path = store.resolve()
    return path.with_name(f"{path.name}.notes.csv")


def read_notes(path: Path) -> dict[str, Note]:
    """The notes by trace id, none if the file is not there.

    Raises FormatError or NotFoundError, with the file's name, if it is none or cannot be read.
    """
    if not path.exists():
        return {}
    state = path.stat()
    return dict(_read(path, state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(4)
def _read(path: Path, *_state: int) -> dict[str, Note]:
    """The notes of a file in a state."""
    return _read_lines(path).notes()


def _read_lines(path: Path) -> _Lines:
    """The cells of a file, those of an empty one if it is not there."""
    if not path.exists():
        return _Lines(HEADER, [], ",")
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
    return _Lines(header, [line for line in lines[1:] if line], delimiter)


def write_note(path: Path, trace_id: str, **changed: str) -> None:
    """Change the label, the tags or the note of a trace; what is not given stays as it is.

    So does all that other programs wrote, but for the line of a trace that is left with nothing.
    One process at a time does it. Raises FormatError for a label that is none, or a file of
    another form.
    """
    if changed.get("label", "") not in LABELS:
        raise FormatError(f"label: expected 0, 1, -1 or nothing, found {changed['label']!r:.40}")
    with opened(path.parent) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)
        header, lines, delimiter = _read_lines(path)
        at = header.index("trace_id")
        of_trace = [line for line in lines if line[at : at + 1] == [trace_id]]
        line = of_trace[-1] if of_trace else [""] * len(header)
        line += [""] * (len(header) - len(line))
        for name, text in {"trace_id": trace_id, **changed}.items():
            line[header.index(name)] = _tidy(text) if name == "tags" else text
        if not of_trace:
            lines.append(line)
        if len(of_trace) < 2 and not any(line[:at] + line[at + 1 :]):
            lines.remove(line)  # nothing is left of it
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
            # quoted: a lone carriage return in an id is else the end of a line
            writer = csv.writer(f, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writerows([header, *lines])


def _tidy(tags: str) -> str:
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
