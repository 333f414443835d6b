"""Reads a file of scores or labels: CSV or JSON lines, by the names of its columns.

A column is read as scores or as labels because of its name, or because the caller says so; never
because of its place. Nothing here opens a store.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from store.errors import FormatError, NotFoundError, SchemaError, closest
from store.sources.score_table import Kind, ScoreTable

__all__ = ["read_scores"]

TRACE_COLUMN = "trace_id"
QUESTION_COLUMN = "question_id"
ID_COLUMNS = (TRACE_COLUMN, QUESTION_COLUMN)  # a trace's own id first
SCORE_COLUMNS = ("score", "bleurt_score", "bleurt", "rouge_l", "rougel")
LABEL_COLUMNS = ("label", "is_hallucination", "hallucination")
FLAGS = "--score-column NAME or --label-column NAME"
DELIMITERS = (",", ";", "\t")
TRUTH = {"true": 1.0, "false": 0.0}
LABELS = (1.0, 0.0, -1.0)
LARGEST = 3.4e38  # that float32 holds
LARGEST_CELL = 100_000_000  # characters; prompts with a long context pass the csv module's limit

Record = dict[str, str]  # column -> cell, of one line


def read_scores(
    path: str | Path,
    *,
    score_column: str | None = None,
    label_column: str | None = None,
    lower_is_better: bool | None = None,
) -> ScoreTable:
    """Read the scores or labels of traces or questions.

    Parameters
    ----------
    path
        CSV with a header (comma, semicolon or tab), or JSON lines. `trace_id` names a trace,
        `question_id` all traces of a question; with both, a line is of the trace, and of the
        question where its `trace_id` is empty. The value is in the one column of a known name:
        `score`, `bleurt_score`, `bleurt`, `rouge_l`, `rougel` hold scores; `label`,
        `is_hallucination`, `hallucination` hold labels: 1 or true = hallucination, 0 or false =
        right, -1 = unlabelled. A line with an empty value (null) is ignored, like other columns.
    score_column, label_column
        The column to read instead, as scores or as labels; one of the two at most.
    lower_is_better
        Whether a low score means a right answer. None means that a high one does.

    Raises
    ------
    NotFoundError
        There is no such file.
    SchemaError
        Not exactly one column of a known name is there, or the one that was named is not; the
        message lists the columns.
    FormatError
        A line has no id or too many cells, its value is no finite number or no label, or an id has
        two values.
    """
    usual_limit = csv.field_size_limit(LARGEST_CELL)
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            header, records = _open_records(str(path), file)
            _check_ids(str(path), header)
            column, kind = _value_column(str(path), header, score_column, label_column)
            _check_direction(str(path), column, kind, lower_is_better)
            _check_once(str(path), header, [*ID_COLUMNS, column])
            return _read_table(str(path), records, column, kind, bool(lower_is_better))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFoundError(
            f"{path}: expected a CSV file of scores, found {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: expected CSV or JSON lines in UTF-8, found: {error}; save the file so"
        ) from error
    except csv.Error as error:
        raise FormatError(f"{path}: expected a CSV file of scores, found: {error}") from error
    finally:
        csv.field_size_limit(usual_limit)


def _open_records(source: str, file: TextIO) -> tuple[list[str], Iterable[tuple[int, Record]]]:
    """The names of the columns of a file, and its lines as `(number, record)`."""
    first = file.readline()
    lines = chain([first], file)
    if first.lstrip().startswith("{"):
        return _json_records(source, lines)
    reader = csv.reader(lines, delimiter=_delimiter(first), strict=True)
    header = [name.strip() for name in next(reader, [])]
    rows = ((reader.line_num, cells) for cells in reader)
    return header, _csv_records(source, header, rows)


def _delimiter(line: str) -> str:
    """The delimiter that makes an id column of a header's first line; a comma if none does."""
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"') for name in line.split(delimiter)]
        if len(names) > 1 and not set(ID_COLUMNS).isdisjoint(names):
            return delimiter
    return DELIMITERS[0]


def _csv_records(
    source: str, header: list[str], rows: Iterable[tuple[int, list[str]]]
) -> Iterator[tuple[int, Record]]:
    """The lines that are not blank."""
    for number, cells in rows:
        if not cells:
            continue
        if len(cells) != len(header):
            raise FormatError(
                f"{source}, line {number}: expected {len(header)} cells as in the header, "
                f"found {len(cells)}; texts that hold the delimiter or a quote belong in quotes"
            )
        yield number, dict(zip(header, cells, strict=True))


def _json_records(source: str, lines: Iterable[str]) -> tuple[list[str], list[tuple[int, Record]]]:
    """JSON lines as a table: the columns are the keys of all lines."""
    records = [
        (number, _json_record(f"{source}, line {number}", line))
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    header = dict.fromkeys(key for _, record in records for key in record)
    return list(header), records


def _json_record(where: str, line: str) -> Record:
    """One line of JSON lines, its values as the cells of a CSV file would be."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{where}: expected one JSON object on the line, found: {error}"
        ) from error
    if not isinstance(record, dict):
        raise FormatError(
            f"{where}: expected one JSON object on the line, found {line.strip()!r:.100}"
        )
    return {key.strip(): _json_cell(value) for key, value in record.items()}


def _json_cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _check_ids(source: str, header: list[str]) -> None:
    """Raise FormatError unless a column says which traces a line is of."""
    if set(ID_COLUMNS).isdisjoint(header):
        raise FormatError(
            f"{source}, line 1: expected a header with {' or '.join(ID_COLUMNS)} and a score, "
            f"found {header!r:.300}; name the columns there"
        )


def _value_column(
    source: str, header: list[str], score_column: str | None, label_column: str | None
) -> tuple[str, Kind]:
    """The column of the values, and what they are."""
    if score_column is not None and label_column is not None:
        raise SchemaError(f"{source}: both a score column and a label column are named; give one")
    if score_column is not None:
        return _named_column(source, header, score_column), "score"
    if label_column is not None:
        return _named_column(source, header, label_column), "label"
    return _known_column(source, header)


def _named_column(source: str, header: list[str], name: str) -> str:
    """The column that the caller named; raises SchemaError if there is none, or if it holds ids."""
    others = _without_ids(header)
    if name not in others:
        raise SchemaError(
            f"{source}: expected one of its columns {', '.join(others)}, "
            f"found {name!r}{closest(name, others)}"
        )
    return name


def _known_column(source: str, header: list[str]) -> tuple[str, Kind]:
    """The one column with a known name; raises SchemaError if there is none, or several."""
    scores = [name for name in header if name.lower() in SCORE_COLUMNS]
    labels = [name for name in header if name.lower() in LABEL_COLUMNS]
    if len(scores) + len(labels) > 1:
        raise SchemaError(
            f"{source}: several columns could be meant, {', '.join([*scores, *labels])}; "
            f"choose one with {FLAGS}"
        )
    if scores:
        return scores[0], "score"
    if labels:
        return labels[0], "label"
    known = ", ".join((*SCORE_COLUMNS, *LABEL_COLUMNS))
    raise SchemaError(
        f"{source}: no column has a known name ({known}), "
        f"found {', '.join(_without_ids(header)) or 'none'}; say what to read with {FLAGS} "
        "(label: 1 = hallucination), and --lower-is-better where it is"
    )


def _without_ids(header: list[str]) -> list[str]:
    return [name for name in header if name not in ID_COLUMNS]


def _check_direction(source: str, column: str, kind: Kind, lower_is_better: bool | None) -> None:
    """Raise SchemaError for labels with a direction, and for scores whose direction is unclear."""
    if kind == "label" and lower_is_better is not None:
        raise SchemaError(
            f"{source}: column {column!r} holds labels, 1 = hallucination, for which no direction "
            f"can be given; if it holds scores, add --score-column {column}"
        )
    if kind == "score" and column.lower() in LABEL_COLUMNS and lower_is_better is None:
        raise SchemaError(
            f"{source}: column {column!r} is called like labels, 1 = hallucination, and read as "
            "scores: say which way they run, --lower-is-better (a high one is a hallucination) or "
            "--higher-is-better (a high one is right)"
        )


def _check_once(source: str, header: list[str], used: list[str]) -> None:
    """Raise SchemaError if two columns have the name of one that is read."""
    for name in used:
        if header.count(name) > 1:
            raise SchemaError(
                f"{source}: {header.count(name)} columns are called {name!r}; rename all but one"
            )


def _read_table(
    source: str,
    records: Iterable[tuple[int, Record]],
    column: str,
    kind: Kind,
    lower_is_better: bool,
) -> ScoreTable:
    """Read the values of all lines."""
    values: dict[str, dict[str, float]] = {name: {} for name in ID_COLUMNS}
    questions: dict[str, str] = {}
    n_empty = 0
    for number, record in records:
        where = f"{source}, line {number}"
        id_column, name = _id_of(where, record)
        text = record.get(column, "").strip()
        if not text:
            n_empty += 1
            continue
        value = _label(where, column, text) if kind == "label" else _score(where, text)
        if id_column == TRACE_COLUMN:
            questions[name] = record.get(QUESTION_COLUMN, "")
        earlier = values[id_column].setdefault(name, value)
        if earlier != value:
            raise FormatError(
                f"{where}: expected one {kind} for {name!r}, found {earlier} and {value}"
            )
    by_trace, by_question = values.values()
    return ScoreTable(
        source, column, kind, lower_is_better, by_trace, by_question, n_empty, questions
    )


def _id_of(where: str, record: Record) -> tuple[str, str]:
    """The column of the first id that a line gives, and the id."""
    for column in ID_COLUMNS:
        name = record.get(column)
        if name:
            return column, name
    raise FormatError(f"{where}: expected a {' or a '.join(ID_COLUMNS)}, found none")


def _score(where: str, text: str) -> float:
    """A finite number; true and false count as 1 and 0."""
    score = _number(text)
    if not abs(score) <= LARGEST:
        raise FormatError(f"{where}: expected a finite number as score, found {text!r:.100}")
    return score


def _label(where: str, column: str, text: str) -> float:
    """1.0, 0.0 or -1.0."""
    label = _number(text)
    if label not in LABELS:
        raise FormatError(
            f"{where}: expected 1 or true (hallucination), 0 or false (right) or -1 (unlabelled) "
            f"as label, found {text!r:.100}; if {column!r} holds scores, add "
            f"--score-column {column} and which way they run, --lower-is-better or "
            "--higher-is-better"
        )
    return label


def _number(text: str) -> float:
    """The number that a cell holds; NaN if it holds none."""
    lower = text.lower()
    if lower in TRUTH:
        return TRUTH[lower]
    try:
        return float(text)
    except ValueError:
        return math.nan
