"""A question from a record of a file: one spelling for the names that the field uses.

A record that is wrong is a LineError; nothing is guessed.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, TypedDict

from store.text_records import LineError, parse_json
from store.traces.trace_ids import MAX_ID_BYTES

__all__ = [
    "ID_NAMES",
    "QUESTION_NAMES",
    "Question",
    "Span",
    "build_question",
    "check_id",
    "check_text",
    "find_first",
    "parse_answers_cells",
]

ID_NAMES = ("question_id", "QuestionId", "id")
QUESTION_NAMES = ("question", "Question")
ANSWER_NAMES = ("answers", "answer", "Answer")
CONTEXT_NAMES = ("context", "Context")
ALIAS_NAMES = ("value", "Value", "aliases", "Aliases", "normalized_aliases", "NormalizedAliases")


class Span(TypedDict):
    """Characters of a response that are hallucinated: those from `start` to before `end`."""

    start: int
    end: int
    label: str


class _Asked(TypedDict):
    question_id: str
    question: str
    answers: list[str]


class Question(_Asked, total=False):
    """One question, the answers that count as right, and an answer to it that exists already.

    Attributes
    ----------
    question_id, question : str
        Traces of one question_id stay in one split.
    answers : list of str
        The answers that count as right; none: no rule labels the trace.
    context : str
        Text that the answer is to be taken from.
    fields : dict
        Texts of further fields of the record, for the prompt.
    trace_id : str
        Of the trace of the response; as all that follows only where there is a response.
    response : str
        The answer that exists already: nothing is generated.
    label : int
        1 = hallucination, 0 = right, -1 = unlabelled.
    spans : list of Span
        The hallucinated parts of the response; an empty list says that there is none.
    """

    context: str
    fields: dict[str, str]
    trace_id: str
    response: str
    label: int
    score: float
    spans: list[Span]


def build_question(record: Any, number: int, fields: Collection[str] = ()) -> Question:
    """Check a record and give its names their one spelling.

    Parameters
    ----------
    number
        Of the record, from 1, for questions of NQ-open, which have no id.

    Raises
    ------
    LineError
        It is no question, or lacks one of `fields`.
    """
    if not isinstance(record, Mapping):
        raise LineError(f"expected an object with a question, found {record!r:.200}")
    question_id = find_first(record, ID_NAMES)
    if question_id is None and isinstance(record.get("answer"), list):
        question_id = f"nq_{number}"
    text = check_text("question", find_first(record, QUESTION_NAMES))
    answers = _answers(find_first(record, ANSWER_NAMES))
    question: Question = {
        "question_id": check_id("question_id", question_id),
        "question": text,
        "answers": answers,
    }
    context = _context(find_first(record, CONTEXT_NAMES))
    if context:
        question["context"] = context
    if fields:
        question["fields"] = {name: _field(record, name) for name in fields}
    return question


def check_id(what: str, value: Any) -> str:
    """An id as text; raises LineError."""
    name = check_text(what, _spell_int(value))
    n_bytes = len(name.encode())
    if n_bytes > MAX_ID_BYTES:
        raise LineError(f"{what}: expected at most {MAX_ID_BYTES} bytes, found {n_bytes}")
    return name


def find_first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first value under these names that is not empty; an empty one, or None, if none is."""
    # min returns the first of equals
    return min(map(record.get, names), key=lambda value: (value is None, value in ([], "")))


def check_text(what: str, value: Any) -> str:
    """A text that is not blank; raises LineError."""
    if not isinstance(value, str) or not value.strip():
        found = "none" if value is None else repr(value)
        raise LineError(f"{what}: expected a text, found {found:.200}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise LineError(f"{what}: expected text that UTF-8 can hold, found {error}") from error
    return value


def parse_answers_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    """The cells of a CSV row, with those of answers as lists."""
    answers = {name: _split(cells[name]) for name in ANSWER_NAMES if name in cells}
    return {**cells, **answers}


def _split(cell: str) -> list[Any]:
    if not cell.strip().startswith("["):
        return cell.split("|")
    try:
        return parse_json(cell)
    except (ValueError, RecursionError) as error:
        message = f"expected a JSON list or texts between '|' as answers, found {cell!r:.200}"
        raise LineError(message) from error


def _context(value: Any) -> str | None:
    """One text, or passages with an empty line between them; None if it is blank."""
    passages = value if isinstance(value, list) else [value]
    texts = [passage for passage in passages if passage is not None and passage != ""]
    if not texts:
        return None
    return "\n\n".join(check_text("context", text) for text in texts)


def _field(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        raise LineError(
            f"{name}: expected this field of the prompt template, found none; give it to "
            "every record, or a --prompt-template without it"
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _answers(value: Any) -> list[str]:
    """The different answers, in their order; blank ones are left out."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = value["text"] if "text" in value else _aliases(value)  # SQuAD on the Hub has "text"
    answers = value if isinstance(value, list) else [value]
    texts = [_spell_int(answer) for answer in answers]
    filled = [text for text in texts if not isinstance(text, str) or text.strip()]
    return list(dict.fromkeys(check_text("answers", text) for text in filled))


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
