"""Writes what somebody notes about a trace into the file that `store.traces.notes` reads."""

import csv
import fcntl
from pathlib import Path

from store.errors import FormatError
from store.traces.notes import LABELS, read_lines, tidy
from store.write.files import opened, replacing

__all__ = ["write_note"]


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
        header, lines, delimiter = read_lines(path)
        at = header.index("trace_id")
        of_trace = [line for line in lines if line[at : at + 1] == [trace_id]]
        line = of_trace[-1] if of_trace else [""] * len(header)
        line += [""] * (len(header) - len(line))
        for name, text in {"trace_id": trace_id, **changed}.items():
            line[header.index(name)] = tidy(text) if name == "tags" else text
        if not of_trace:
            lines.append(line)
        if len(of_trace) < 2 and not any(line[:at] + line[at + 1 :]):
            lines.remove(line)  # nothing is left of it
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
            # quoted: a lone carriage return in an id is else the end of a line
            writer = csv.writer(f, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writerows([header, *lines])
