"""The records of a text file: JSON lines, a JSON array or object, CSV; the content decides which.

Nothing here knows what a record means.
"""

import io
import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from store.text_records import LineError, find_delimiter, read_csv, read_json_lines, unique_keys

__all__ = ["TextRecords", "read_records"]

# each with its line, or in an array with its index; a LineError where one cannot be read
Records = Iterable[tuple[int, Any]]

# of TriviaQA and SQuAD: the files are one object with all records in it
WRAPPERS = ("Data", "data")


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


def read_records(text: str, question_names: Collection[str]) -> TextRecords:
    """Find the form of a text, and read its records.

    Parameters
    ----------
    question_names
        Names of the column that a CSV must have.

    Raises
    ------
    LineError
        It has no form that is known; for quotes of a CSV, when the record is asked for.
    """
    start = text.lstrip()
    if not start.startswith(("[", "{")):
        return TextRecords(_csv_records(text, question_names), are_cells=True)
    problem: LineError | None = None
    try:
        array = json.loads(text, object_pairs_hook=_marked_keys)
        if isinstance(array, dict) and set(question_names).isdisjoint(array):
            array = next((array[name] for name in WRAPPERS if name in array), None)
        if isinstance(array, list):
            return TextRecords([(i, _checked(one)) for i, one in enumerate(array)], unit="record")
        if isinstance(array, ValueError):
            raise array
    except (ValueError, RecursionError) as error:
        form = "a JSON array" if start.startswith("[") else "JSON"
        problem = LineError(f"expected {form}, found: {error}", getattr(error, "lineno", 1))
        if start.startswith("["):
            raise problem from error
    return TextRecords(_json_lines(text, problem))


def _json_lines(text: str, problem: LineError | None) -> Records:
    """The lines of a text; raises what is wrong with the whole if no line is JSON."""
    is_lines = False
    for line, value in read_json_lines(io.StringIO(text)):
        is_lines = is_lines or not isinstance(value, LineError)
        yield line, value
    if problem is not None and not is_lines:
        raise problem


def _marked_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any] | ValueError:
    """An object of JSON; the error in its place if a key is there twice."""
    try:
        return unique_keys(pairs)
    except ValueError as error:
        return error


def _checked(record: Any) -> Any:
    fault = _fault(record)
    return LineError(f"expected one JSON object, found: {fault}") if fault else record


def _fault(value: Any) -> ValueError | None:
    """The error that stands in the place of an object, if there is one in a record."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value if isinstance(value, ValueError) else next(filter(None, map(_fault, inner)), None)


def _csv_records(text: str, question_names: Collection[str]) -> Records:
    delimiter = find_delimiter(text.lstrip("\r\n").partition("\n")[0], question_names)
    header, records = read_csv(io.StringIO(text, newline=""), delimiter)
    if len(set(header)) != len(header):
        raise LineError(f"expected different columns, found {header!r:.200}", 1)
    if set(question_names).isdisjoint(header):
        message = "expected JSON, or a CSV header with question_id, question and answers"
        raise LineError(f"{message}, found {header!r:.200}", 1)
    return records
