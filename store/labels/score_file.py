"""Reads a file of scores or labels: CSV or JSON lines, by the names of its columns.

A column is read as scores or as labels because of its name, or because the caller chose it; never
because of its place. Nothing here opens a store.
"""

import csv
import json
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TextIO

from store.errors import SchemaError, closest
from store.labels.answer_scores import SCORE_THRESHOLD
from store.labels.rule import Kind, ScoreTable
from store.text_records import (
    LineError,
    Row,
    find_delimiter,
    name_file,
    parse_number,
    read_csv,
    read_json_lines,
    refuse,
)

__all__ = ["read_scores"]

TRACE_COLUMN = "trace_id"
QUESTION_COLUMN = "question_id"
ID_COLUMNS = (TRACE_COLUMN, QUESTION_COLUMN)  # a trace's own id first
KNOWN_COLUMNS: dict[str, Kind] = {
    "score": "score",
    "bleurt_score": "score",
    "bleurt": "score",
    "rouge_l": "score",
    "rougel": "score",
    "label": "label",
    "is_hallucination": "label",
    "hallucination": "label",
}
FLAGS = "--score-column NAME or --label-column NAME"
TRUTH = {"true": "1", "false": "0"}
LABELS = (1.0, 0.0, -1.0)
LARGEST = 3.4e38  # that float32 holds
LARGEST_CELL = 100_000_000  # characters; prompts with a long context pass the csv module's limit


def read_scores(
    path: str | Path,
    *,
    score_column: str | None = None,
    label_column: str | None = None,
    lower_is_better: bool | None = None,
    threshold: float = SCORE_THRESHOLD,
) -> ScoreTable:
    """Read the scores or labels of traces or questions, as `python -m store label --help` has them.

    `score_column` or `label_column`, one at most, is read instead of a column of a known name.
    `lower_is_better`: whether a low score means a right answer; None: a high one does. `threshold`:
    of the scores, as the file has them.

    Raises NotFoundError: there is no such file; SchemaError: not exactly one column of a known name
    is there, or not the one that was named; FormatError: a line has no id or too many cells, its
    value is no finite number or no label, or an id has two values.
    """
    usual_limit = csv.field_size_limit(LARGEST_CELL)
    try:
        with (
            name_file(path, "scores as CSV or JSON lines"),
            Path(path).open(newline="", encoding="utf-8-sig") as file,
        ):
            header, records = _open_records(file)
            column, kind = _choose_column(header, score_column, label_column)
            _check_direction(column, kind, lower_is_better)
            for name in (*ID_COLUMNS, column):
                n = header.count(name)
                if n > 1:
                    raise SchemaError(f"{n} columns are called {name!r}; rename all but one")
            table = ScoreTable(str(path), column, kind, bool(lower_is_better), threshold)
            return _read_values(table, records)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from error
    finally:
        csv.field_size_limit(usual_limit)


def _open_records(file: TextIO) -> tuple[list[str], Iterable[Row]]:
    """The names of the columns of a file, and its rows."""
    first = file.readline()
    lines = chain([first], file)
    if first.lstrip().startswith("{"):
        return _json_records(lines)
    header, records = read_csv(lines, find_delimiter(first, ID_COLUMNS))
    return header, refuse(records)


def _json_records(lines: Iterable[str]) -> tuple[list[str], Iterable[Row]]:
    """JSON lines as a table: the columns are the keys of all lines; null is an empty cell."""
    records = []
    for line, value in refuse(read_json_lines(lines)):
        if not isinstance(value, dict):
            raise LineError(f"expected one JSON object on the line, found {value!r:.100}", line)
        record = {}
        for key, cell in value.items():
            text = cell if isinstance(cell, str) else json.dumps(cell)
            record[key.strip()] = "" if cell is None else text
        records.append((line, record))
    header = dict.fromkeys(key for _, record in records for key in record)
    return list(header), records


def _choose_column(
    header: list[str], score_column: str | None, label_column: str | None
) -> tuple[str, Kind]:
    """The column that is named, or the only one with a known name."""
    if set(ID_COLUMNS).isdisjoint(header):
        raise LineError(
            f"expected a header with {' or '.join(ID_COLUMNS)} and a score, "
            f"found {header!r:.300}; name the columns there",
            1,
        )
    if score_column is not None and label_column is not None:
        raise SchemaError("both a score column and a label column are named; give one")
    others = [name for name in header if name not in ID_COLUMNS]
    named = score_column if label_column is None else label_column
    if named in others:
        return named, "score" if label_column is None else "label"
    if named is not None:
        raise SchemaError(
            f"expected one of its columns {', '.join(others)}, found {named!r}"
            f"{closest(named, others)}"
        )
    known = [name for name in others if name.lower() in KNOWN_COLUMNS]
    if len(known) == 1:
        return known[0], KNOWN_COLUMNS[known[0].lower()]
    if known:
        raise SchemaError(
            f"several columns could be meant, {', '.join(known)}; choose one with {FLAGS}"
        )
    raise SchemaError(
        f"no column has a known name ({', '.join(KNOWN_COLUMNS)}), found "
        f"{', '.join(others) or 'none'}; say what to read with {FLAGS} "
        "(label: 1 = hallucination), and --lower-is-better where it is"
    )


def _check_direction(column: str, kind: Kind, lower_is_better: bool | None) -> None:
    """Labels have no direction; scores that are called like labels need one."""
    if kind == "label" and lower_is_better is not None:
        raise SchemaError(
            f"column {column!r} holds labels, 1 = hallucination, for which no direction can be "
            f"given; if it holds scores, add --score-column {column}"
        )
    is_called_label = KNOWN_COLUMNS.get(column.lower()) == "label"
    if kind == "score" and is_called_label and lower_is_better is None:
        raise SchemaError(
            f"column {column!r} is called like labels, 1 = hallucination, and read as scores: say "
            "which way they run, --lower-is-better (a high one is a hallucination) or "
            "--higher-is-better (a high one is right)"
        )


def _read_values(table: ScoreTable, records: Iterable[Row]) -> ScoreTable:
    values: dict[str, dict[str, float]] = {column: {} for column in ID_COLUMNS}
    questions: dict[str, str] = {}
    n_empty = 0
    for line, record in records:
        id_column = next(filter(record.get, ID_COLUMNS), None)
        if id_column is None:
            raise LineError(f"expected a {' or a '.join(ID_COLUMNS)}, found none", line)
        name = record[id_column]
        text = record.get(table.column, "").strip()
        if not text:
            n_empty += 1
            continue
        value = _value(table, text, line)
        if id_column == TRACE_COLUMN:
            questions[name] = record.get(QUESTION_COLUMN, "")
        earlier = values[id_column].setdefault(name, value)
        if earlier != value:
            message = f"expected one {table.kind} for {name!r}, found {earlier} and {value}"
            raise LineError(message, line)
    return replace(
        table,
        by_trace=values[TRACE_COLUMN],
        by_question=values[QUESTION_COLUMN],
        n_empty=n_empty,
        questions=questions,
    )


def _value(table: ScoreTable, text: str, line: int) -> float:
    """The score or the label that a cell holds, true and false as 1 and 0."""
    value = math.nan
    with suppress(ValueError):
        value = parse_number(TRUTH.get(text.lower(), text))
    if table.kind == "score" and not abs(value) <= LARGEST:
        raise LineError(f"expected a finite number as score, found {text!r:.100}", line)
    if table.kind == "label" and value not in LABELS:
        raise LineError(
            "expected 1 or true (hallucination), 0 or false (right) or -1 (unlabelled) as label, "
            f"found {text!r:.100}; if {table.column!r} holds scores, add --score-column "
            f"{table.column} and which way they run, --lower-is-better or --higher-is-better",
            line,
        )
    return value
