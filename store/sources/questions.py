"""Questions and their right answers, read from a file: JSON lines, a JSON array or CSV.

The content decides the format. Every format becomes the same list of `Question`; the field names
of TriviaQA (the original files and those of the Hugging Face Hub) and of NQ-open are understood as
they are. A record that is wrong is an error with the file and the line; nothing is guessed, and
nothing here imports a model library.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from store.errors import FormatError
from store.sources.text_records import LineError, name_file, read_csv, read_json_lines
from store.sources.trace_ids import MAX_ID_BYTES

__all__ = ["Question", "read_questions"]

ID_NAMES = ("question_id", "QuestionId")
QUESTION_NAMES = ("question", "Question")
ANSWER_NAMES = ("answers", "answer", "Answer")
ALIAS_NAMES = ("value", "Value", "aliases", "Aliases", "normalized_aliases", "NormalizedAliases")

# the original files of TriviaQA are one object with the questions under "Data"
_TRIVIAQA_FILE = re.compile(r'"Data"\s*:\s*\[')

Records = Iterator[tuple[int, Any]]  # each with the line on which it begins


class Question(TypedDict):
    """One question and the answers that count as right (none: the trace stays unlabelled)."""

    question_id: str
    question: str
    answers: list[str]


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
    questions: list[Question] = []
    line_of: dict[str, int] = {}  # question id -> the line of its record
    with name_file(path, "a file of questions"):
        text = Path(path).read_text(encoding="utf-8-sig")
        for number, (line, record) in enumerate(_records(text), 1):
            try:
                question = _question(record, number)
            except LineError as error:
                error.line = line
                raise
            question_id = question["question_id"]
            if question_id in line_of:
                raise LineError(
                    f"expected a new question_id, found {question_id!r} "
                    f"of line {line_of[question_id]}",
                    line,
                )
            line_of[question_id] = line
            questions.append(question)
    if not questions:
        raise FormatError(f"{path}: expected questions, found none")
    return questions


def _records(text: str) -> Records:
    start = text.lstrip()
    if start.startswith("["):
        return _json_array(text, text.index("[") + 1, ends_file=True)
    if not start.startswith("{"):
        return _csv_records(text)
    triviaqa = _TRIVIAQA_FILE.search(text)
    if triviaqa:
        return _json_array(text, triviaqa.end(), ends_file=False)
    return read_json_lines(io.StringIO(text))


def _json_array(text: str, at: int, *, ends_file: bool) -> Records:
    """The elements of the array whose first one begins at or after `at`."""
    decoder = json.JSONDecoder()
    at = _skip_space(text, at)
    line = 1 + text.count("\n", 0, at)
    while not text.startswith("]", at):
        start = at
        try:
            record, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise LineError(f"expected a JSON object, found: {error}", line) from error
        yield line, record
        at = _skip_space(text, at)
        if text.startswith(",", at):
            at = _skip_space(text, at + 1)
        elif not text.startswith("]", at):
            raise _unexpected("',' or ']'", text, at)
        line += text.count("\n", start, at)
    end = _skip_space(text, at + 1)
    if ends_file and end < len(text):
        raise _unexpected("nothing after the array", text, end)


def _unexpected(expected: str, text: str, at: int) -> LineError:
    line = 1 + text.count("\n", 0, at)
    return LineError(f"expected {expected}, found {text[at : at + 20]!r}", line)


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _csv_records(text: str) -> Records:
    header, records = read_csv(io.StringIO(text, newline=""))
    if len(set(header)) != len(header):
        raise LineError(f"expected different columns, found {header!r:.200}", 1)
    for names in (ID_NAMES, QUESTION_NAMES):
        if set(names).isdisjoint(header):
            message = "expected JSON, or a CSV header with question_id, question and answers"
            raise LineError(f"{message}, found {header!r:.200}", 1)
    for line, cells in records:
        answers = {name: _split(cells[name], line) for name in ANSWER_NAMES if name in cells}
        yield line, cells | answers


def _split(cell: str, line: int) -> list[Any]:
    if not cell.strip().startswith("["):
        return cell.split("|")
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        message = f"expected a JSON list or texts between '|' as answers, found {cell!r:.200}"
        raise LineError(message, line) from error


def _question(record: Any, number: int) -> Question:
    """Check a record and give its names their one spelling; `number` counts records from 1."""
    if not isinstance(record, Mapping):
        raise LineError(f"expected an object with a question, found {record!r:.200}")
    question_id = _first(record, ID_NAMES)
    if question_id is None and isinstance(record.get("answer"), list):
        question_id = f"nq_{number}"
    question = _text("question", _first(record, QUESTION_NAMES))
    answers = _answers(_first(record, ANSWER_NAMES))
    question_id = _text("question_id", _spell_int(question_id))
    n_bytes = len(question_id.encode())
    if n_bytes > MAX_ID_BYTES:
        raise LineError(f"question_id: expected at most {MAX_ID_BYTES} bytes, found {n_bytes}")
    return {"question_id": question_id, "question": question, "answers": answers}


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first value under these names that is not empty; an empty one, or None, if none is."""
    # min returns the first of equals
    return min(map(record.get, names), key=lambda value: (value is None, value in ([], "")))


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "none" if value is None else repr(value)
        raise LineError(f"{what}: expected a text, found {found:.200}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise LineError(f"{what}: expected text that UTF-8 can hold, found {error}") from error
    return value


def _answers(value: Any) -> list[str]:
    """The different answers, in their order; blank ones are left out."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = _aliases(value)
    answers = value if isinstance(value, list) else [value]
    texts = [_spell_int(answer) for answer in answers]
    filled = [text for text in texts if not isinstance(text, str) or text.strip()]
    return list(dict.fromkeys(_text("answers", text) for text in filled))


def _aliases(answer: Mapping[str, Any]) -> list[Any]:
    """The spellings of a right answer of TriviaQA."""
    values = [answer[name] for name in ALIAS_NAMES if answer.get(name) is not None]
    if not values:
        raise LineError(
            f"answer: expected one of {ALIAS_NAMES[::2]} in it, found {list(answer)!r:.200}"
        )
    spellings = []
    for value in values:
        spellings += value if isinstance(value, list) else [value]
    return spellings


def _spell_int(value: Any) -> Any:
    """A whole number as text; anything else unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
