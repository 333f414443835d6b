"""Reads a file of questions, or of answers that exist already.

The content decides the form, and every form becomes the same list of `Question`; the files of
TriviaQA, NQ-open, SQuAD, RAGTruth, HaluEval, TruthfulQA and Mu-SHROOM are understood as they are.
Nothing here imports a model library.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from store.errors import FormatError
from store.reports import LeftOut
from store.sources.questions.benchmarks import BENCHMARK_QUESTION_NAMES, Form, find_form
from store.sources.questions.given import add_response, parse_given_cells
from store.sources.questions.question import (
    ID_NAMES,
    QUESTION_NAMES,
    Question,
    RecordError,
    build_question,
    find_first,
    parse_answers_cells,
)
from store.sources.questions.records import TextRecords, read_records
from store.sources.text_records import LineError, name_file, read_json_lines
from store.sources.trace_ids import TraceNumbers

__all__ = ["QuestionFile", "read_question_file", "read_questions"]

RAGTRUTH_SOURCES = "source_info.jsonl"


class QuestionFile(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    questions
        In the order of the file; all of them with a response, or none.
    left_out
        Records that have something wrong about their response.
    remarks
        What was done that one would not expect; one line each.
    form
        The benchmark, if it is one that is known.
    """

    questions: list[Question]
    left_out: LeftOut
    remarks: list[str]
    form: Form | None


def read_questions(path: str | Path) -> list[Question]:
    """Read the questions of a file that must have nothing wrong with it.

    Parameters
    ----------
    path
        See `read_question_file`.

    Raises
    ------
    FormatError
        Also for a record that `read_question_file` leaves out.
    """
    file = read_question_file(path)
    if file.left_out.n:
        raise FormatError(file.left_out.messages[0])
    return file.questions


def read_question_file(path: str | Path, fields: Collection[str] = ()) -> QuestionFile:
    """Read a file of questions, with the answers to them that exist already.

    Parameters
    ----------
    path
        JSON lines, a JSON array of objects, or CSV with a header (commas, semicolons or tabs).
        Keys: `question_id`, `question` and `answers` (a list or one text; in CSV a JSON list or
        texts between `|`), and perhaps `context`. TriviaQA: `question_id` or `QuestionId`,
        `question` or `Question`, `answer` with `value`, `aliases` and `normalized_aliases`.
        NQ-open: `question` and `answer`; such questions have no id and get `nq_<number>`, from 1,
        and those of a CSV without ids `q_<number>`. An answer that exists already is `response`,
        with `label`, `score` and `spans` (`given.add_response`). `benchmarks` lists the benchmarks.
    fields
        Names of further fields to keep, for the prompt.

    Raises
    ------
    NotFoundError
        There is no such file, or none of the sources beside one of RAGTruth.
    FormatError
        A record is no question (names file and line), two traces have the same id, or there is
        nothing but records to leave out.
    """
    reader = _Reader(Path(path), fields)
    with name_file(path, "a file of questions"):
        text = Path(path).read_text(encoding="utf-8-sig")
        reader.read(read_records(text, (*QUESTION_NAMES, *BENCHMARK_QUESTION_NAMES)))
    return reader.finish()


class _Reader:
    """Collects the questions of one file."""

    def __init__(self, path: Path, fields: Collection[str]) -> None:
        self.path = path
        self.fields = fields
        self.form: Form | None = None
        self.left_out = LeftOut()
        self._found: list[tuple[int, Question]] = []  # with the line of its record
        self._line_of: dict[str, int] = {}  # question id, or trace id of a response -> that line
        self._numbers = TraceNumbers()
        self._sources: Mapping[str, Any] | None = None
        self._are_numbered = False

    def read(self, records: TextRecords) -> None:
        """Add all records; raises LineError for one that is no question."""
        for number, (line, record) in enumerate(records.records, 1):
            try:
                if records.are_cells:
                    record = self._parse_cells(record, number)
                self._add_all(record, number, line)
            except RecordError as error:
                self._leave_out(line, error)
            except LineError as error:
                error.line = line
                raise

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
        return QuestionFile([q for _, q in self._found], self.left_out, remarks, self.form)

    def _parse_cells(self, cells: Mapping[str, str], number: int) -> Mapping[str, Any]:
        record = parse_given_cells(parse_answers_cells(cells))
        if find_form(record) is None and find_first(record, ID_NAMES) is None:
            self._are_numbered = True
            return {**record, "question_id": f"q_{number}"}
        return record

    def _add_all(self, record: Any, number: int, line: int) -> None:
        for one in self._expand(record, number):
            try:
                self._add(one, number, line)
            except RecordError as error:
                self._leave_out(line, error)

    def _expand(self, record: Any, number: int) -> Iterable[Any]:
        form = find_form(record)
        if form is None:
            return [record]
        self.form = form
        if form.name == "RAGTruth":
            record = {**record, "source": self._source(record["source_id"])}
        return form.expand(record, number)

    def _source(self, source_id: Any) -> Mapping[str, Any]:
        """What RAGTruth keeps about a source in the file beside that of the responses."""
        sources = self.path.with_name(RAGTRUTH_SOURCES)
        if self._sources is None:
            self._sources = dict(_ragtruth_sources(sources))
        if str(source_id) not in self._sources:
            raise RecordError(f"source_id: expected one of {sources}, found {source_id!r:.200}")
        return self._sources[str(source_id)]

    def _add(self, record: Any, number: int, line: int) -> None:
        question = add_response(build_question(record, number, self.fields), record)
        if "response" in question:
            question_id = question["question_id"]
            if "trace_id" in question:
                self._numbers.add(question_id, question["trace_id"])
            else:
                question["trace_id"] = self._numbers.give(question_id)
        kind = "trace_id" if "response" in question else "question_id"
        name = question[kind]  # type: ignore[literal-required] # one of two keys
        if name in self._line_of:
            raise LineError(
                f"expected a new {kind}, found {name!r} of line {self._line_of[name]}", line
            )
        self._line_of[name] = line
        self._found.append((line, question))

    def _leave_out(self, line: int, error: LineError) -> None:
        self.left_out.add(f"{self.path}, line {line}: {error}")

    def _leave_out_unanswered(self) -> None:
        """In a file of answers that exist already, a question without one is a mistake."""
        missing = RecordError("response: expected a text, as other records have, found none")
        for line, question in self._found:
            if "response" not in question:
                self._leave_out(line, missing)
        self._found = [found for found in self._found if "response" in found[1]]


def _ragtruth_sources(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    expected = "RAGTruth's file of sources beside its responses"
    with name_file(path, expected), path.open(encoding="utf-8-sig") as file:
        for line, source in read_json_lines(file):
            if not isinstance(source, Mapping) or "source_id" not in source:
                raise LineError(f"expected an object with a source_id, found {source!r:.200}", line)
            yield str(source["source_id"]), source
