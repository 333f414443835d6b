"""The records of a text file: JSON lines, a JSON array or object, CSV; the content decides which.

Nothing here knows what a record means.
"""

import csv
import io
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from store.sources.text_records import LineError, read_csv, read_json_lines

__all__ = ["TextRecords", "read_records"]

Records = Iterator[tuple[int, Any]]  # each with the line on which it begins

# files that are one object with all records in it
_TRIVIAQA_FILE = re.compile(r'"Data"\s*:\s*\[')
_SQUAD_FILE = re.compile(r'"data"\s*:\s*\[')
_SQUAD_RECORD = re.compile(r'"paragraphs"\s*:')
_DELIMITERS = ",;\t"


class TextRecords(NamedTuple):
    """The records of a text, and whether they are rows of a CSV, whose cells are all texts."""

    records: Records
    are_cells: bool = False


def read_records(text: str, question_names: Collection[str]) -> TextRecords:
    """Find the form of a text, and read its records as they are asked for.

    Parameters
    ----------
    text
        The content of a file.
    question_names
        Names of the column that a CSV must have.

    Raises
    ------
    LineError
        It has no form that is known; a record that cannot be read raises it when it is asked for.
    """
    start = text.lstrip()
    if start.startswith("["):
        return TextRecords(_json_array(text, text.index("[") + 1, ends_file=True))
    if not start.startswith("{"):
        return TextRecords(_csv_records(text, question_names), are_cells=True)
    wrapped = _TRIVIAQA_FILE.search(text)
    squad = _SQUAD_FILE.search(text)
    if squad and _SQUAD_RECORD.search(text, squad.end()):
        wrapped = squad
    if wrapped:
        return TextRecords(_json_array(text, wrapped.end(), ends_file=False))
    return TextRecords(read_json_lines(io.StringIO(text)))


def _json_array(text: str, at: int, *, ends_file: bool) -> Records:
    """The elements of the array whose first one begins at or after `at`."""
    decoder = json.JSONDecoder()
    at = _skip_space(text, at)
    line = 1 + text.count("\n", 0, at)
    while not text.startswith("]", at):
        start = at
        try:
            record, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise LineError(f"expected a JSON object, found: {error}", line) from error
        yield line, record
        at = _skip_space(text, at)
        if text.startswith(",", at):
            at = _skip_space(text, at + 1)
        elif not text.startswith("]", at):
            raise _unexpected("',' or ']'", text, at)
        line += text.count("\n", start, at)
    end = _skip_space(text, at + 1)
    if ends_file and end < len(text):
        raise _unexpected("nothing after the array", text, end)


def _unexpected(expected: str, text: str, at: int) -> LineError:
    line = 1 + text.count("\n", 0, at)
    return LineError(f"expected {expected}, found {text[at : at + 20]!r}", line)


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _csv_records(text: str, question_names: Collection[str]) -> Records:
    header, records = read_csv(io.StringIO(text, newline=""), _delimiter(text, question_names))
    if len(set(header)) != len(header):
        raise LineError(f"expected different columns, found {header!r:.200}", 1)
    if set(question_names).isdisjoint(header):
        message = "expected JSON, or a CSV header with question_id, question and answers"
        raise LineError(f"{message}, found {header!r:.200}", 1)
    return records


def _delimiter(text: str, question_names: Collection[str]) -> str:
    """The delimiter at which the header has a column of questions; a comma if none does."""
    header = text.lstrip("\r\n").partition("\n")[0]
    for delimiter in _DELIMITERS:
        names = {name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])}
        if not names.isdisjoint(question_names):
            return delimiter
    return ","
