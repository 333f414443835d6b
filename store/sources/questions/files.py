"""Reads a file of questions, or of answers that exist already.

The content decides the form (JSON lines, a JSON array or object, CSV), and every form becomes the
same list of `Question`; those of `data_sets`, TriviaQA and NQ-open are understood as they are.
Nothing here imports a model library.
"""

import gzip
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from store.errors import FormatError
from store.reports import LeftOut
from store.sources.questions.data_sets import (
    DATA_SET_QUESTION_NAMES,
    Form,
    Record,
    find_form,
)
from store.sources.questions.question import (
    ID_NAMES,
    QUESTION_NAMES,
    Question,
    add_response,
    build_question,
    find_first,
    parse_cells,
)
from store.text_records import (
    LineError,
    find_delimiter,
    name_file,
    parse_json,
    read_csv,
    read_json_lines,
)
from store.traces.trace_ids import TraceNumbers

__all__ = ["RAGTRUTH_SOURCES", "QuestionFile", "read_question_file", "read_questions"]

# each with its line, or in an array with its index; a LineError where one cannot be read
Records = Iterable[tuple[int, Any]]

# of TriviaQA and SQuAD: the files are one object with all records in it
WRAPPERS = ("Data", "data")
RAGTRUTH_SOURCES = "source_info.jsonl"
GZIP = b"\x1f\x8b"
# of the column of questions, which a CSV must have
NAMES = (*QUESTION_NAMES, *DATA_SET_QUESTION_NAMES)


# a CSV's booleans, whole numbers (but for 007, which is a name) and others
_CELLS: Mapping[re.Pattern, Callable[[str], Any]] = {
    re.compile("(?i:true|false)"): lambda cell: cell.lower() == "true",
    re.compile(r"-?(0|[1-9][0-9]{0,17})"): int,
    re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?|nan"): float,
}


class TextRecords(NamedTuple):
    """The records of a text; those of a CSV are cells, which are all texts."""

    records: Records
    are_cells: bool = False
    unit: str = "line"  # what the numbers count: "line", from 1, or "record" of an array, from 0


def _read_records(text: str) -> TextRecords:
    """Find the form of a text, and read its records.

    Raises LineError where it has no form that is known; for quotes of a CSV, when the record is
    asked for.
    """
    start = text.lstrip()
    if not start.startswith(("[", "{")):
        return TextRecords(_csv_records(text), are_cells=True)
    problem: LineError | None = None
    try:
        array = parse_json(text)
        if isinstance(array, dict) and set(NAMES).isdisjoint(array):
            array = next((array[name] for name in WRAPPERS if name in array), None)
        if isinstance(array, list):
            return TextRecords(enumerate(array), unit="record")
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


def _csv_records(text: str) -> Records:
    delimiter = find_delimiter(text.lstrip("\r\n").partition("\n")[0], NAMES)
    header, records = read_csv(io.StringIO(text, newline=""), delimiter)
    if len(set(header)) != len(header):
        raise LineError(f"expected different columns, found {header!r:.200}", 1)
    if set(NAMES).isdisjoint(header):
        message = "expected JSON, or a CSV header with question_id, question and answers"
        raise LineError(f"{message}, found {header!r:.200}", 1)
    return records


class QuestionFile(NamedTuple):
    """What a file holds."""

    questions: list[Question]  # in the order of the file; all of them with a response, or none
    left_out: LeftOut  # records with something wrong about them
    remarks: list[str]  # what was done that one would not expect; one line each
    form: Form | None  # the benchmark, if it is one that is known


def read_questions(path: str | Path, fields: Collection[str] = ()) -> list[Question]:
    """Read the questions of a file that must have nothing wrong with it; see `read_question_file`.

    Raises FormatError: also for a record that `read_question_file` leaves out.
    """
    file = read_question_file(path, fields)
    if file.left_out.n:
        raise FormatError(file.left_out.messages[0])
    return file.questions


def read_question_file(path: str | Path, fields: Collection[str] = ()) -> QuestionFile:
    """Read a file of questions, with the answers to them that exist already.

    It is JSON lines, a JSON array of objects, or CSV with a header (commas, semicolons or tabs),
    and may be a gzip file.
    Keys: `question_id`, `question` and `answers` (a list or one text; in CSV a JSON list or texts
    between `|`), and perhaps `context`. TriviaQA: `question_id` or `QuestionId`, `question` or
    `Question`, `answer` with `value`, `aliases` and `normalized_aliases`. NQ-open: `question` and
    `answer`; such questions have no id and get `nq_<number>`, from 1, and those of a CSV without
    ids `q_<number>`. An answer that exists already is `response`, with `label`, `score` and `spans`
    (`question.add_response`). `data_sets` has further forms. `fields` are names of fields that the
    prompt needs. What else a record has is kept in `fields`; numbers and booleans of CSV where all
    cells of a column are some.

    Raises NotFoundError: there is no such file, or none of the sources beside one of RAGTruth;
    FormatError: no record is good, or from some line on none can be found. A record that is no
    question, or whose id is not new, is in `left_out`.
    """
    reader = _Reader(Path(path), fields)
    with name_file(path, "a file of questions"):
        reader.read(_read_text(Path(path)))
    return reader.finish()


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        is_gzip = file.read(len(GZIP)) == GZIP
    if not is_gzip:
        return path.read_text(encoding="utf-8-sig")
    with gzip.open(path, "rt", encoding="utf-8-sig") as text:
        return text.read()


def _read_cells(questions: Sequence[Question], as_texts: Collection[str]) -> None:
    """Turn the fields of a CSV into numbers or booleans where all their filled cells are some."""
    names = dict.fromkeys(name for question in questions for name in question.get("fields", {}))
    for name in names:
        cells = [question.get("fields", {}).get(name) or None for question in questions]
        filled = [cell for cell in cells if cell is not None]
        kind = next((kind for kind in _CELLS if all(map(kind.fullmatch, filled))), None)
        if kind is None or name in as_texts or not filled:
            continue
        for question, cell in zip(questions, cells, strict=True):
            question["fields"][name] = None if cell is None else _CELLS[kind](cell)


class _Reader:
    """Collects the questions of one file."""

    def __init__(self, path: Path, fields: Collection[str]) -> None:
        self.path = path
        self.fields = fields
        self.form: Form | None = None
        self.left_out = LeftOut()
        self._found: list[tuple[str, Question]] = []  # with the place of its record
        self._place_of: dict[str, str] = {}  # question id, or trace id of a response -> that place
        self._numbers = TraceNumbers()
        self._sources: dict[str, Record] | None = None
        self._are_numbered = False
        self._n_records = 0  # so far, with those that are left out
        self._are_cells = False

    def read(self, text: str) -> None:
        """Add all records; raises LineError where no next one can be found."""
        records = _read_records(text)
        self._are_cells = records.are_cells
        for number, record in records.records:
            self._n_records += 1
            place = f"{records.unit} {number}"
            with self._leaving_out(place):
                for one in self._expand(self._parse(record)):
                    with self._leaving_out(place):
                        self._add(one, place)

    @contextmanager
    def _leaving_out(self, place: str) -> Iterator[None]:
        """Name what has something wrong about it, and go on."""
        try:
            yield
        except LineError as error:
            self.left_out.add(f"{self.path}, {place}: {error}")

    def finish(self) -> QuestionFile:
        """What was found; raises FormatError if it is nothing."""
        if any("response" in question for _, question in self._found):
            self._leave_out_unanswered()
        if not self._found:
            first = "".join(f": {message}" for message in self.left_out.messages[:1])
            raise FormatError(f"{self.path}: expected questions, found none{first}")
        remarks = []
        if self._are_numbered:
            remarks.append(f"{self.path}: questions without ids are called q_1, q_2, ... in order")
        questions = [question for _, question in self._found]
        if self._are_cells:
            _read_cells(questions, self.fields)
        return QuestionFile(questions, self.left_out, remarks, self.form)

    def _parse(self, record: Any) -> Any:
        if isinstance(record, LineError):
            raise record
        if not self._are_cells:
            return record
        parsed = parse_cells(record)
        if find_form(parsed) is None and find_first(parsed, ID_NAMES) is None:
            self._are_numbered = True
            return {**parsed, "question_id": f"q_{self._n_records}"}
        return parsed

    def _expand(self, record: Any) -> Iterable[object]:
        form = find_form(record)
        if form is None:
            return [record]
        self.form = form
        if form.name == "RAGTruth":
            record = {**record, "source": self._source(record["source_id"])}
        return form.expand(record, self._n_records)

    def _source(self, source_id: object) -> Record:
        """What RAGTruth keeps about a source in the file beside that of the responses."""
        sources = self.path.with_name(RAGTRUTH_SOURCES)
        if self._sources is None:
            self._sources = self._read_sources(sources)
        if str(source_id) not in self._sources:
            raise LineError(f"source_id: expected one of {sources}, found {source_id!r:.200}")
        return self._sources[str(source_id)]

    def _read_sources(self, path: Path) -> dict[str, Record]:
        sources: dict[str, Record] = {}
        expected = "RAGTruth's file of sources beside its responses"
        with name_file(path, expected), path.open(encoding="utf-8-sig") as file:
            for line, source in read_json_lines(file):
                if isinstance(source, Mapping) and "source_id" in source:
                    sources[str(source["source_id"])] = source
                    continue
                bad = f"expected an object with a source_id, found {source!r:.200}"
                bad = str(source) if isinstance(source, LineError) else bad
                self.left_out.add(f"{path}, line {line}: {bad}")
        return sources

    def _add(self, record: Any, place: str) -> None:
        used = self.form.used if self.form else ()
        built = build_question(record, self._n_records, self.fields, used)
        question = add_response(built, record)
        kind = "trace_id" if "response" in question else "question_id"
        own = question.get(kind)
        if own in self._place_of:
            raise LineError(f"expected a new {kind}, found {own!r} of {self._place_of[own]}")
        if "response" in question:
            question_id = question["question_id"]
            if "trace_id" in question:
                self._numbers.add(question_id, question["trace_id"])
            else:
                question["trace_id"] = self._numbers.give(question_id)
        self._place_of[question[kind]] = place  # type: ignore[literal-required] # one of two keys
        self._found.append((place, question))

    def _leave_out_unanswered(self) -> None:
        """In a file of answers that exist already, a question without one is a mistake."""
        for place, question in self._found:
            with self._leaving_out(place):
                if "response" not in question:
                    raise LineError("response: expected a text, as other records have, found none")
        self._found = [found for found in self._found if "response" in found[1]]
