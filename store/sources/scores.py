"""Scores and labels of answers from a file: CSV or JSON lines, read by the names of its columns.

A column is taken for a score or for a label because of its name, or because the caller says so;
never because of its place. Scores say how right an answer is (higher is better, unless the caller
says otherwise); labels are 1 = hallucination, 0 = right and -1 = unlabelled. Nothing here opens a
store.
"""

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from store.errors import FormatError, NotFoundError, SchemaError, closest
from store.sources.labels import label_from_score

__all__ = ["Judgement", "ScoreTable", "build_table", "read_scores", "text_of_label"]

TRACE_COLUMN, QUESTION_COLUMN = "trace_id", "question_id"
SCORE_COLUMNS = ("score", "bleurt_score", "bleurt", "rouge_l", "rougel")
LABEL_COLUMNS = ("label", "is_hallucination", "hallucination")
FLAGS = "--score-column NAME or --label-column NAME"
DELIMITERS = (",", ";", "\t")
TRUTH = {"true": 1.0, "false": 0.0}
LABELS = (1.0, 0.0, -1.0)
LABEL_TEXTS = {1: "hallucination", 0: "right", -1: "unlabelled"}
LARGEST = 3.4e38  # that float32 holds
LARGEST_CELL = 100_000_000  # characters

Kind = Literal["score", "label"]


class Judgement(NamedTuple):
    """What one value of a file makes of a trace: the score to store, and the label."""

    score: float
    label: int


@dataclass(frozen=True)
class ScoreTable:
    """What a file of scores or labels says.

    Attributes
    ----------
    source
        The file's name, for messages.
    column
        The column that the values are from.
    kind
        Whether they are scores or labels.
    lower_is_better
        Whether a low score means a right answer; never of labels.
    by_trace, by_question
        Trace id -> value, and question id -> value for all traces of a question; a trace's own
        value comes first.
    n_empty
        Lines without a value; they count as if they were not there.
    questions
        Trace id -> the question that its line names, where a line has both.
    """

    source: str
    column: str = "score"
    kind: Kind = "score"
    lower_is_better: bool = False
    by_trace: Mapping[str, float] = field(default_factory=dict)
    by_question: Mapping[str, float] = field(default_factory=dict)
    n_empty: int = 0
    questions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_questions(cls, scores: Mapping[str, float]) -> "ScoreTable":
        """Scores that are in memory: question id -> score, higher is better."""
        return cls("scores", by_question=dict(scores))

    def __len__(self) -> int:
        """How many traces and questions it names."""
        return len(self.by_trace) + len(self.by_question)

    def value_of(self, trace_id: str, question_id: str) -> float | None:
        """The value of a trace; None if the file says nothing of it."""
        own = self.by_trace.get(trace_id)
        return self.by_question.get(question_id) if own is None else own

    def judge(self, value: float, threshold: float) -> Judgement:
        """The score and the label that a value makes.

        A score that is better when lower is stored with its sign turned, so that everything that
        reads a store's scores may go by "higher is better". A label comes without a score: NaN.
        """
        if self.kind == "label":
            return Judgement(math.nan, int(value))
        score = 0.0 - value if self.lower_is_better else value
        return Judgement(score, label_from_score(score, self.stored_threshold(threshold)))

    def stored_threshold(self, threshold: float) -> float:
        """The threshold of the scores as they are stored: label = 1 iff score < this."""
        return 0.0 - threshold if self.lower_is_better else threshold

    @property
    def rule(self) -> str:
        """How the labels come about, for the provenance."""
        if self.kind == "label":
            return f"labels given in column {self.column!r}: 1 = hallucination, 0 = right"
        if self.lower_is_better:
            return "label = 1 iff score < threshold, scores given, lower is better: stored negated"
        return "label = 1 iff score < threshold, scores given"

    @property
    def sha256(self) -> str:
        """A checksum of what it says, whatever the order of the lines."""
        parts = [f"{key}\t{value!r}\n" for key, value in sorted(self.by_question.items())]
        if self.by_trace:
            parts.append("trace_id\n")
            parts += [f"{key}\t{value!r}\n" for key, value in sorted(self.by_trace.items())]
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def understood(self, threshold: float) -> str:
        """How the file was read, for people."""
        if self.kind == "label":
            return f"column {self.column!r} read as labels, 1 = hallucination"
        if self.lower_is_better:
            sense = f"lower is better: hallucination above {threshold:g}; stored negated"
        else:
            sense = f"higher is better: hallucination below {threshold:g}"
        return f"column {self.column!r} read as scores, {sense}"

    def example(self, key: str, value: float, threshold: float) -> str:
        """One line that shows what a value of the file makes; `key` is an id with the name of its
        column."""
        label = text_of_label(self.judge(value, threshold).label)
        given = f"{self.kind} {value:g}"
        return (
            f"{key}: {given} -> label {label}" if self.kind == "score" else f"{key}: label {label}"
        )


def text_of_label(label: int) -> str:
    """A label and what it means: '1 (hallucination)'."""
    return f"{label} ({LABEL_TEXTS[label]})"


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
        right, -1 = unlabelled. An empty value (null) says nothing. Other columns are ignored.
    score_column, label_column
        The column to read in place of that, as scores or as labels; one of the two at most.
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
    # prompts with a long context are larger than the usual limit
    usual = csv.field_size_limit(LARGEST_CELL)
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            header, rows = _open_rows(str(path), file)
            return build_table(
                str(path),
                header,
                rows,
                score_column=score_column,
                label_column=label_column,
                lower_is_better=lower_is_better,
            )
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
        csv.field_size_limit(usual)


def build_table(
    source: str,
    header: list[str],
    rows: Iterable[tuple[int, list[str]]],
    *,
    score_column: str | None = None,
    label_column: str | None = None,
    lower_is_better: bool | None = None,
) -> ScoreTable:
    """Make a table of a header and `(line, cells)`; see `read_scores` for the rules and errors."""
    id_columns = _id_columns(source, header)
    column, kind = _value_column(source, header, score_column, label_column)
    if kind == "score" and column.lower() in LABEL_COLUMNS and lower_is_better is None:
        raise SchemaError(
            f"{source}: column {column!r} is called like labels, 1 = hallucination, and read as scores: say which way "
            "they run, --lower-is-better (a high one is a hallucination) or --higher-is-better (a high one is right)"
        )
    _check_once(source, header, [*id_columns, column])
    if kind == "label" and lower_is_better is not None:
        raise SchemaError(
            f"{source}: column {column!r} holds labels, 1 = hallucination, for which no direction can "
            f"be given; if it holds scores, add --score-column {column}"
        )
    value_at = header.index(column)
    found: dict[str, dict[str, float]] = {TRACE_COLUMN: {}, QUESTION_COLUMN: {}}
    questions: dict[str, str] = {}
    n_empty = 0
    for line, cells in rows:
        where = f"{source}, line {line}"
        if len(cells) != len(header):
            raise FormatError(
                f"{where}: expected {len(header)} cells as in the header, found {len(cells)}; "
                "texts that hold the delimiter or a quote belong in quotes"
            )
        id_column, name = _id_of(where, header, cells, id_columns)
        text = cells[value_at].strip()
        if not text:
            n_empty += 1
            continue
        value = _label(where, column, text) if kind == "label" else _score(where, text)
        if id_column == TRACE_COLUMN and QUESTION_COLUMN in header:
            questions[name] = cells[header.index(QUESTION_COLUMN)]
        if found[id_column].setdefault(name, value) != value:
            both = f"{found[id_column][name]} and {value}"
            raise FormatError(f"{where}: expected one {kind} for {name!r}, found {both}")
    lower = bool(lower_is_better)
    return ScoreTable(
        source, column, kind, lower, found[TRACE_COLUMN], found[QUESTION_COLUMN], n_empty, questions
    )


def _id_columns(source: str, header: list[str]) -> list[str]:
    """The columns that say which traces a line is of, the trace's own id first."""
    found = [name for name in (TRACE_COLUMN, QUESTION_COLUMN) if name in header]
    if not found:
        raise FormatError(
            f"{source}, line 1: expected a header with {TRACE_COLUMN} or {QUESTION_COLUMN} and a score, "
            f"found {header!r:.300}; name the columns there"
        )
    return found


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
    scores = [name for name in header if name.lower() in SCORE_COLUMNS]
    labels = [name for name in header if name.lower() in LABEL_COLUMNS]
    if len(scores) + len(labels) > 1:
        raise SchemaError(
            f"{source}: several columns could be meant, {', '.join([*scores, *labels])}; choose one with {FLAGS}"
        )
    if not scores and not labels:
        others = [name for name in header if name not in (TRACE_COLUMN, QUESTION_COLUMN)]
        known = ", ".join((*SCORE_COLUMNS, *LABEL_COLUMNS))
        raise SchemaError(
            f"{source}: no column has a known name ({known}), found {', '.join(others) or 'none'}; "
            f"say what to read with {FLAGS} (label: 1 = hallucination), and --lower-is-better where it is"
        )
    if scores:
        return scores[0], "score"
    return labels[0], "label"


def _named_column(source: str, header: list[str], name: str) -> str:
    """The column that the caller named; raises SchemaError if there is none, or if it holds ids."""
    if name in (TRACE_COLUMN, QUESTION_COLUMN) or name not in header:
        others = [known for known in header if known not in (TRACE_COLUMN, QUESTION_COLUMN)]
        raise SchemaError(
            f"{source}: expected one of its columns {', '.join(others)}, found {name!r}{closest(name, others)}"
        )
    return name


def _check_once(source: str, header: list[str], used: list[str]) -> None:
    """Raise SchemaError if two columns have the name of one that is read."""
    for name in used:
        if header.count(name) > 1:
            raise SchemaError(
                f"{source}: {header.count(name)} columns are called {name!r}; rename all but one"
            )


def _id_of(
    where: str, header: list[str], cells: list[str], id_columns: list[str]
) -> tuple[str, str]:
    """The column of the first id that a line gives, and the id."""
    for column in id_columns:
        name = cells[header.index(column)]
        if name:
            return column, name
    raise FormatError(f"{where}: expected a {' or a '.join(id_columns)}, found none")


def _score(where: str, text: str) -> float:
    """A finite number; true and false count as 1 and 0."""
    try:
        score = TRUTH[text.lower()] if text.lower() in TRUTH else float(text)
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST:
        raise FormatError(f"{where}: expected a finite number as score, found {text!r:.100}")
    return score


def _label(where: str, column: str, text: str) -> float:
    """1.0, 0.0 or -1.0."""
    try:
        label = TRUTH[text.lower()] if text.lower() in TRUTH else float(text)
    except ValueError:
        label = math.nan
    if label not in LABELS:
        raise FormatError(
            f"{where}: expected 1 or true (hallucination), 0 or false (right) or -1 (unlabelled) as label, "
            f"found {text!r:.100}; if {column!r} holds scores, add --score-column {column} and which way they run, "
            "--lower-is-better or --higher-is-better"
        )
    return label


def _open_rows(source: str, file: TextIO) -> tuple[list[str], Iterable[tuple[int, list[str]]]]:
    """The header of a file and its lines as `(line, cells)`."""
    first = file.readline()
    lines = chain([first], file)
    if first.lstrip().startswith("{"):
        return _json_rows(source, lines)
    reader = csv.reader(lines, delimiter=_delimiter(first), strict=True)
    header = [name.strip() for name in next(reader, [])]
    return header, _csv_rows(reader)


def _delimiter(line: str) -> str:
    """The delimiter that makes an id column of a header's first line; a comma if none does."""
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"') for name in line.split(delimiter)]
        if len(names) > 1 and (TRACE_COLUMN in names or QUESTION_COLUMN in names):
            return delimiter
    return DELIMITERS[0]


def _csv_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank."""
    for cells in reader:
        if cells:
            yield reader.line_num, cells


def _json_rows(source: str, lines: Iterable[str]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """JSON lines as a table: the header is every key, and a key that a line lacks is an empty
    cell."""
    records = [
        (number, _json_record(f"{source}, line {number}", line))
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    header = list(dict.fromkeys(key for _, record in records for key in record))
    rows = [(number, [record.get(key, "") for key in header]) for number, record in records]
    return header, rows


def _json_record(where: str, line: str) -> dict[str, str]:
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


def _json_cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
