"""Questions and their right answers, read from a file: JSON lines, a JSON array or CSV, told apart
by the content.

Every format becomes the same list of `Question`. The field names of TriviaQA (the original files
and those of the Hugging Face Hub) and of NQ-open are understood as they are. A record that is wrong
is an error with the file and the line; nothing is guessed, and nothing here imports a model
library.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from store.errors import FormatError, NotFoundError

__all__ = ["MAX_ID_BYTES", "Question", "TraceNumbers", "number_trace", "read_questions"]

ID_NAMES = ("question_id", "QuestionId")
QUESTION_NAMES = ("question", "Question")
ANSWER_NAMES = ("answers", "answer", "Answer")
ALIAS_NAMES = ("value", "Value", "aliases", "Aliases", "normalized_aliases", "NormalizedAliases")
MAX_ID_BYTES = 1000  # a store takes 1024, and "#2" may come behind

_TRIVIAQA_FILE = re.compile(
    r'"Data"\s*:\s*\['
)  # the original files are one object with the questions under "Data"


class Question(TypedDict):
    """One question and the answers that count as right (none: the trace stays unlabelled)."""

    question_id: str
    question: str
    answers: list[str]


class TraceNumbers:
    """Gives the traces of questions their ids, in order: the k-th of question Q is `Q#k`, unless
    that is taken."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()  # traces of each question
        self._given: set[str] = set()

    def __contains__(self, trace_id: str) -> bool:
        """Whether an id was given."""
        return trace_id in self._given

    def add(self, question_id: str, trace_id: str) -> None:
        """Note an id that was given before."""
        self.seen[question_id] += 1
        self._given.add(trace_id)

    def give(self, question_id: str) -> str:
        """The id of the next trace of a question."""
        k = self.seen[question_id] + 1
        while (trace_id := number_trace(question_id, k)) in self._given:
            k += 1
        self.add(question_id, trace_id)
        return trace_id


def number_trace(question_id: str, k: int) -> str:
    """The id of the k-th trace of a question, k from 1: `Q`, `Q#2`, `Q#3`, ..."""
    return f"{question_id}#{k}" if k > 1 else question_id


class _WrongRecord(Exception):
    """What is wrong with a record, and on which line if it is not the one that was just read."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def read_questions(path: str | Path) -> list[Question]:
    """Read the questions of a file.

    Parameters
    ----------
    path
        JSON lines or a JSON array of objects, or CSV with a header. Keys: `question_id`, `question`
        and `answers` (a list or one text; in CSV a JSON list or texts between `|`). TriviaQA:
        `question_id` or `QuestionId`, `question` or `Question`, `answer` with `value`, `aliases`
        and `normalized_aliases`. NQ-open: `question` and `answer`; such questions have no id and
        get `nq_<number>`, from 1.

    Returns
    -------
    list of Question
        In the order of the file.

    Raises
    ------
    NotFoundError
        There is no such file.
    FormatError
        A record is wrong (names file and line), two have the same id, or there is none.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFoundError(
            f"{path}: expected a file of questions, found {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected UTF-8 text, found: {error}") from error
    questions: list[Question] = []
    lines: dict[str, int] = {}  # id -> where it stands
    line = 1
    try:
        for number, (line, record) in enumerate(_records(text), 1):
            question = _question(record, number)
            name = question["question_id"]
            if name in lines:
                raise _WrongRecord(
                    f"expected a new question_id, found {name!r} of line {lines[name]}"
                )
            lines[name] = line
            questions.append(question)
    except _WrongRecord as error:
        raise FormatError(f"{path}, line {error.line or line}: {error}") from error
    if not questions:
        raise FormatError(f"{path}: expected questions, found none")
    return questions


def _records(text: str) -> Iterator[tuple[int, Any]]:
    """The records of a file, whatever its format, each with the line on which it begins."""
    start = text.lstrip()
    if start.startswith("["):
        return _json_array(text, text.index("[") + 1)
    if start.startswith("{"):
        triviaqa = _TRIVIAQA_FILE.search(text)
        return _json_array(text, triviaqa.end()) if triviaqa else _json_lines(text)
    return _csv_rows(text)


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for line, record in enumerate(io.StringIO(text), 1):
        if record.strip():
            try:
                yield line, json.loads(record)
            except (ValueError, RecursionError) as error:
                raise _WrongRecord(
                    f"expected one JSON object on the line, found: {error}", line
                ) from error


def _json_array(text: str, at: int) -> Iterator[tuple[int, Any]]:
    """The elements of the array whose first one begins at or behind `at`."""
    decoder, line, counted, start = json.JSONDecoder(), 1, 0, _behind_space(text, 0)
    at = _behind_space(text, at)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            record, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _WrongRecord(
                f"expected a JSON object, found: {error.msg}", error.lineno
            ) from error
        except (ValueError, RecursionError) as error:
            raise _WrongRecord(f"expected a JSON object, found: {error}", line) from error
        yield line, record
        at = _behind_space(text, at)
        if text[at : at + 1] == ",":
            at = _behind_space(text, at + 1)
        elif text[at : at + 1] != "]":
            raise _WrongRecord(
                f"expected ',' or ']', found {text[at : at + 20]!r}", text.count("\n", 0, at) + 1
            )
    behind = _behind_space(text, at + 1)
    if text.startswith("[", start) and behind < len(text):
        line = text.count("\n", 0, behind) + 1
        raise _WrongRecord(
            f"expected nothing behind the array, found {text[behind : behind + 20]!r}", line
        )


def _behind_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _csv_rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        line = reader.line_num + 1
        for cells in reader:
            if cells and len(cells) != len(header):
                raise _WrongRecord(f"expected {len(header)} cells, found {len(cells)}", line)
            if cells:
                record = dict(zip(header, cells, strict=True))
                yield (
                    line,
                    record
                    | {name: _split(record[name], line) for name in ANSWER_NAMES if name in record},
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise _WrongRecord(f"expected CSV, found: {error}", line) from error


def _check_header(header: list[str]) -> None:
    if len(set(header)) != len(header):
        raise _WrongRecord(f"expected different columns, found {header!r:.200}", 1)
    for names in (ID_NAMES, QUESTION_NAMES):
        if not set(names) & set(header):
            raise _WrongRecord(
                f"expected JSON, or a CSV header with question_id, question and answers, found {header!r:.200}",
                1,
            )


def _split(cell: str, line: int) -> list[Any]:
    """The answers in a cell of a CSV file."""
    if not cell.strip().startswith("["):
        return cell.split("|")
    try:
        return json.loads(cell)
    except (json.JSONDecodeError, RecursionError) as error:
        message = f"expected a JSON list or texts between '|' as answers, found {cell!r:.200}"
        raise _WrongRecord(message, line) from error


def _question(record: Any, number: int) -> Question:
    """Check a record and give its names their one spelling."""
    if not isinstance(record, Mapping):
        raise _WrongRecord(f"expected an object with a question, found {record!r:.200}")
    name = _first(record, ID_NAMES)
    if name is None and isinstance(record.get("answer"), list):
        name = f"nq_{number}"
    text = _text("question", _first(record, QUESTION_NAMES))
    answers = _answers(_first(record, ANSWER_NAMES))
    name = _text("question_id", str(name) if _is_int(name) else name)
    if len(name.encode()) > MAX_ID_BYTES:
        raise _WrongRecord(
            f"question_id: expected at most {MAX_ID_BYTES} bytes, found {len(name.encode())}"
        )
    return {"question_id": name, "question": text, "answers": answers}


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first of these names that says something."""
    found = [record[name] for name in names if record.get(name) is not None]
    return next((value for value in found if value not in ([], "")), found[0] if found else None)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _WrongRecord(
            f"{what}: expected a text, found {'none' if value is None else format(repr(value), '.200')}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise _WrongRecord(f"{what}: expected text that UTF-8 can hold, found {error}") from error
    return value


def _answers(value: Any) -> list[str]:
    """The different answers, in their order; blank ones are left out."""
    if isinstance(value, Mapping):
        found = [value.get(name) for name in ALIAS_NAMES]
        if all(part is None for part in found):
            raise _WrongRecord(
                f"answer: expected one of {ALIAS_NAMES[::2]} in it, found {list(value)!r:.200}"
            )
        value = [
            answer
            for part in found
            if part is not None
            for answer in (part if isinstance(part, list) else [part])
        ]
    if value is None:
        return []
    texts = [
        str(answer) if _is_int(answer) else answer
        for answer in (value if isinstance(value, list) else [value])
    ]
    return list(dict.fromkeys(_text("answers", text) for text in texts if not _is_blank(text)))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()
