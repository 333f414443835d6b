"""The records of a text file: JSON lines, a JSON array or object, CSV; the content decides which.

Nothing here knows what a record means.
"""

import csv
import io
import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from store.sources.text_records import Bad, LineError, read_csv, read_json_lines, refuse

__all__ = ["TextRecords", "read_records"]

Records = Iterator[tuple[int, Any]]  # each with its line, or in an array with its index

# files that are one object with all records in it
_TRIVIAQA_FILE = re.compile(r'"Data"\s*:\s*\[')
_SQUAD_FILE = re.compile(r'"data"\s*:\s*\[')
_SQUAD_RECORD = re.compile(r'"paragraphs"\s*:')
_DELIMITERS = ",;\t"


class TextRecords(NamedTuple):
    """The records of a text.

    Attributes
    ----------
    records
        The records, each with its number.
    are_cells
        Whether they are rows of a CSV, whose cells are all texts.
    unit
        What the numbers count: "line", from 1, or "record", from 0.
    """

    records: Records
    are_cells: bool = False
    unit: str = "line"


def read_records(text: str, question_names: Collection[str], bad: Bad = refuse) -> TextRecords:
    """Find the form of a text, and read its records as they are asked for.

    Parameters
    ----------
    text
        The content of a file.
    question_names
        Names of the column that a CSV must have.
    bad
        Takes a line that is no record.

    Raises
    ------
    LineError
        It has no form that is known; where no next record can be found, when that is asked for.
    """
    start = text.lstrip()
    if start.startswith("["):
        return TextRecords(_json_array(text, text.index("[") + 1, ends_file=True), unit="record")
    if not start.startswith("{"):
        return TextRecords(_csv_records(text, question_names, bad), are_cells=True)
    wrapped = _TRIVIAQA_FILE.search(text)
    squad = _SQUAD_FILE.search(text)
    if squad and _SQUAD_RECORD.search(text, squad.end()):
        wrapped = squad
    if wrapped:
        return TextRecords(_json_array(text, wrapped.end(), ends_file=False), unit="record")
    return TextRecords(read_json_lines(io.StringIO(text), bad))


def _json_array(text: str, at: int, *, ends_file: bool) -> Records:
    """The elements of the array whose first one begins at or after `at`."""
    decoder = json.JSONDecoder()
    at = _skip_space(text, at)
    index = 0
    while not text.startswith("]", at):
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            message = f"expected a JSON object as record {index}, found: {error}"
            raise LineError(message, _line_of(text, at)) from error
        yield index, record
        index += 1
        at = _skip_space(text, at)
        if text.startswith(",", at):
            at = _skip_space(text, at + 1)
        elif not text.startswith("]", at):
            raise _unexpected(f"',' or ']' after record {index - 1}", text, at)
    end = _skip_space(text, at + 1)
    if ends_file and end < len(text):
        raise _unexpected("nothing after the array", text, end)


def _unexpected(expected: str, text: str, at: int) -> LineError:
    return LineError(f"expected {expected}, found {text[at : at + 20]!r}", _line_of(text, at))


def _line_of(text: str, at: int) -> int:
    return 1 + text.count("\n", 0, at)


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _csv_records(text: str, question_names: Collection[str], bad: Bad) -> Records:
    delimiter = _delimiter(text, question_names)
    header, records = read_csv(io.StringIO(text, newline=""), delimiter, bad)
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
