"""The records of a text file: JSON lines, a JSON array or object, CSV; the content decides which.

Nothing here knows what a record means.
"""

import csv
import io
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from store.sources.text_records import (
    Bad,
    LineError,
    parse_json,
    read_csv,
    read_json_lines,
    refuse,
)

__all__ = ["TextRecords", "read_records"]

Records = Iterator[tuple[int, Any]]  # each with its line, or in an array with its index

WRAPPERS = (
    "Data",
    "data",
)  # of TriviaQA and SQuAD: the files are one object with all records in it
_DELIMITERS = ",;\t"


class TextRecords(NamedTuple):
    """The records of a text; those of a CSV are cells, which are all texts.

    Attributes
    ----------
    unit
        What the numbers count: "line", from 1, or "record" of an array, from 0.
    """

    records: Records
    are_cells: bool = False
    unit: str = "line"


def read_records(text: str, question_names: Collection[str], bad: Bad = refuse) -> TextRecords:
    """Find the form of a text, and read its records.

    Parameters
    ----------
    question_names
        Names of the column that a CSV must have.
    bad
        Takes a line that is no record.

    Raises
    ------
    LineError
        It has no form that is known; for quotes of a CSV, when the record is asked for.
    """
    start = text.lstrip()
    if not start.startswith(("[", "{")):
        return TextRecords(_csv_records(text, question_names, bad), are_cells=True)
    array: Any = None
    try:
        array = parse_json(text)
    except (ValueError, RecursionError) as error:
        if start.startswith("["):
            line = getattr(error, "lineno", 1)
            raise LineError(f"expected a JSON array, found: {error}", line) from error
    if isinstance(array, dict) and set(question_names).isdisjoint(array):
        array = next((array[name] for name in WRAPPERS if name in array), None)
    if isinstance(array, list):
        return TextRecords(iter(enumerate(array)), unit="record")
    return TextRecords(read_json_lines(io.StringIO(text), bad))


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
