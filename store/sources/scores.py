"""Scores of answers: from a CSV file, `question_id,score`, into a store that is there."""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from store.errors import FormatError, NotFoundError
from store.reader import TraceStore
from store.schema import TRACE_ID, Column
from store.sources.labels import SCORE_THRESHOLD, label_from_score
from store.writer import StoreWriter

__all__ = ["LabelReport", "read_scores", "set_labels"]

ID_COLUMN = "question_id"
SCORE_COLUMNS = ("score", "bleurt_score")
LARGEST = 3.4e38  # that float32 holds


def read_scores(path: str | Path) -> dict[str, float]:
    """Read the score of every question.

    Parameters
    ----------
    path
        A CSV file with a header: a column `question_id`, and one called `score` or `bleurt_score`, or else the column
        behind the id. An empty score is left out. Columns beyond these are ignored.

    Raises
    ------
    NotFoundError
        There is no such file.
    FormatError
        A column is missing, a score is no finite number, or a question has two different ones; names the line.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            return _collect(path, csv.reader(file, strict=True))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFoundError(f"{path}: expected a CSV file of scores, found {error.strerror}; check the path") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: expected a CSV file of scores, found: {error}") from error


def _collect(path: str | Path, reader: Iterator[list[str]]) -> dict[str, float]:
    id_at, score_at = _columns(path, next(reader, []))
    scores: dict[str, float] = {}
    for cells in reader:
        if not cells:
            continue
        where = f"{path}, line {reader.line_num}"
        if len(cells) <= max(id_at, score_at):
            raise FormatError(f"{where}: expected {max(id_at, score_at) + 1} cells at least, found {len(cells)}")
        question_id, text = cells[id_at], cells[score_at].strip()
        if not text:
            continue
        score = _number(where, text)
        if scores.setdefault(question_id, score) != score:
            raise FormatError(
                f"{where}: expected one score for {question_id!r}, found {scores[question_id]} and {score}"
            )
    return scores


def _columns(path: str | Path, header: list[str]) -> tuple[int, int]:
    names = [name.strip() for name in header]
    if ID_COLUMN not in names or len(names) < 2:
        raise FormatError(f"{path}, line 1: expected a header with {ID_COLUMN} and a score, found {header}")
    known = [name for name in SCORE_COLUMNS if name in names]
    id_at = names.index(ID_COLUMN)
    if known or len(names) == 2:
        return id_at, names.index(known[0]) if known else 1 - id_at
    if id_at + 1 == len(names):
        raise FormatError(f"{path}, line 1: expected a column called score, or one behind {ID_COLUMN}, found {header}")
    return id_at, id_at + 1


def _number(where: str, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST:
        raise FormatError(f"{where}: expected a finite number as score, found {text!r}")
    return score


class LabelReport(NamedTuple):
    """What `set_labels` did: traces, hallucinations and unlabelled ones among them, scores that fitted none."""

    rows: int
    positive: int
    unlabelled: int
    unused: int


def set_labels(path: str | Path, scores: Mapping[str, float], threshold: float = SCORE_THRESHOLD) -> LabelReport:
    """Add or replace the columns `score` and `label` of a store, in one commit that touches nothing else.

    Parameters
    ----------
    path
        The store.
    scores
        Question id -> score (trace id -> score, if the store has no column `question_id`).
    threshold : float
        Scores from here on count as right.
    """
    with StoreWriter.open(path) as writer:
        store = TraceStore.open(path)
        key = "question_id" if "question_id" in store.schema.columns else TRACE_ID
        ids = store.read(range(len(store)), [key])[key]
        found = [scores.get(i, math.nan) for i in ids]
        labels = [label_from_score(score, threshold) for score in found]
        rows = ({"score": score, "label": label} for score, label in zip(found, labels, strict=True))
        told = {"label_rule": "label = 1 iff score < threshold, scores given", "score_threshold": threshold}
        writer.set_columns({"score": Column("float32"), "label": Column("int8")}, rows, store.provenance | told)
    return LabelReport(len(ids), labels.count(1), labels.count(-1), len(scores.keys() - set(ids)))
