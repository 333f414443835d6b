"""Records of text files with the numbers of their lines: JSON lines, and CSV with a header."""

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from store.errors import FormatError, NotFoundError

__all__ = [
    "LineError",
    "Row",
    "find_delimiter",
    "name_file",
    "parse_json",
    "parse_list",
    "parse_number",
    "read_csv",
    "read_json_lines",
    "read_table",
    "refuse",
    "unique_keys",
]


T = TypeVar("T")
DELIMITERS = ",;\t"
Row = tuple[int, dict[str, str]]  # the number of its line, and column -> cell


class LineError(Exception):
    """What is wrong with a record, and on which line; 0 where only the caller knows."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


@contextmanager
def name_file(path: str | Path, expected: str) -> Iterator[None]:
    """Raise a StoreError that names the file for one that cannot be read, and for a LineError."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(
            f"{path}: expected {expected} in a gzip file, found: {error}; copy it again"
        ) from error
    except OSError as error:
        raise NotFoundError(
            f"{path}: expected {expected}, found {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: expected {expected}, in UTF-8, found: {error}; save the file as UTF-8"
        ) from error
    except LineError as error:
        raise FormatError(f"{path}, line {error.line}: {error}") from error


def refuse(records: Iterable[tuple[int, T | LineError]]) -> Iterator[tuple[int, T]]:
    """Yield records until one cannot be read, which is raised."""
    for line, record in records:
        if isinstance(record, LineError):
            raise record
        yield line, record


def parse_json(text: str) -> Any:
    """The value of a JSON text from outside; raises ValueError, also for a key twice."""
    return json.loads(text, object_pairs_hook=unique_keys)


def parse_list(text: Any) -> list[Any] | None:
    """The list that a text spells in JSON; None for anything else."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def parse_number(text: str) -> float:
    """The number that a text from outside spells; raises ValueError, also for digits but 0 to 9."""
    if not text.isascii() or "_" in text:  # float() takes full-width digits, and 1_0 for 10
        raise ValueError(f"expected a number, found {text!r:.100}")
    return float(text)


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON; raises ValueError if a key is there twice: no value is the right one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r:.80} twice")
    return found


def read_json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield `(line number, value)` of the lines that are not blank; a LineError for no JSON."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except (ValueError, RecursionError) as error:
            value = LineError(f"expected one JSON object on the line, found: {error}", number)
        yield number, value


def find_delimiter(header: str, names: Collection[str]) -> str:
    """The delimiter at which a header has one of these names; a comma if it has none of them."""
    for delimiter in DELIMITERS:
        found = {name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])}
        if not found.isdisjoint(names):
            return delimiter
    return DELIMITERS[0]


def read_csv(
    lines: Iterable[str], delimiter: str = ","
) -> tuple[list[str], Iterator[Row | tuple[int, LineError]]]:
    """Read the header of a CSV file, and `(line number, column -> cell)` of the rows on demand.

    Rows without cells are skipped; those with other cells than the header are a LineError. It is
    raised for quotes behind which no next row can be found.
    """
    rows = _csv_rows(lines, delimiter)
    _, names = next(rows, (1, []))
    header = [name.strip() for name in names]
    return header, _csv_records(header, rows)


def read_table(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the cells of the header of a CSV file, then those of each row, which are as many.

    A LineError is raised for a row of other cells, and as by `read_csv`.
    """
    rows = _csv_rows(lines, ",")
    _, header = next(rows, (1, []))
    yield header
    for line, cells in rows:
        if len(cells) != len(header):
            raise _other_cells(header, cells, line)
        yield cells


def _csv_rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for cells in reader:
            yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise LineError(f"expected CSV, found: {error}", number) from error


def _csv_records(
    header: list[str], rows: Iterable[tuple[int, list[str]]]
) -> Iterator[Row | tuple[int, LineError]]:
    for line, cells in rows:
        if len(cells) == len(header):
            yield line, dict(zip(header, cells, strict=True))
        elif cells:
            yield line, _other_cells(header, cells, line)


def _other_cells(header: list[str], cells: list[str], line: int) -> LineError:
    return LineError(
        f"expected {len(header)} cells as in the header, found {len(cells)}; texts that hold the "
        "delimiter or a quote belong in quotes",
        line,
    )
