"""A question from a record of a file: one spelling for the names that the field uses.

With it the answer that exists already: the response, its label or score, its spans. A record that
is wrong is a LineError; nothing is guessed.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from store.errors import SchemaError, closest
from store.text_records import LineError, parse_json, parse_number
from store.traces.trace_ids import MAX_ID_BYTES

__all__ = [
    "ID_NAMES",
    "QUESTION_NAMES",
    "Question",
    "Span",
    "add_response",
    "build_question",
    "check_text",
    "find_first",
    "generators_of",
    "keep_generator",
    "parse_cells",
    "without_responses",
]

ID_NAMES = ("question_id", "QuestionId", "id")
QUESTION_NAMES = ("question", "Question")
ANSWER_NAMES = ("answers", "answer", "Answer")
CONTEXT_NAMES = ("context", "Context")
ALIAS_NAMES = ("value", "Value", "aliases", "Aliases", "normalized_aliases", "NormalizedAliases")
RESPONSE_NAMES = ("response", "Response")
LABEL_NAMES = ("label", "is_hallucination", "hallucination")
# of records; anything else in one is a field
_USED = {*ID_NAMES, *QUESTION_NAMES, *ANSWER_NAMES, *CONTEXT_NAMES, *RESPONSE_NAMES, *LABEL_NAMES}
_USED |= {"score", "spans", "trace_id"}
GENERATOR_NAMES = ("model", "model_id", "model_name", "llm_checkpoint", "generator")  # of answers
GIVEN_KEYS = ("trace_id", "response", "label", "score", "spans")
_OPTIONAL = {*LABEL_NAMES, "score", "spans", "context", "trace_id"}  # columns of a CSV
_LABELS = (0, 1, -1)
_LABEL_TEXTS = {"true": 1, "false": 0, "0": 0, "1": 1, "-1": -1, "0.0": 0, "1.0": 1}


class Span(TypedDict):
    """Characters of a response that are hallucinated: those from `start` to before `end`."""

    start: int
    end: int
    label: str


class Question(TypedDict):
    """One question, the answers that count as right, and an answer to it that exists already."""

    question_id: str  # traces of one question_id stay in one split
    question: str
    answers: list[str]  # those that count as right; none: no rule labels the trace
    context: NotRequired[str]  # text that the answer is to be taken from
    fields: NotRequired[dict[str, Any]]  # what else the record has
    # of the trace of the response; as all that follows only where there is a response
    trace_id: NotRequired[str]
    response: NotRequired[str]  # the answer that exists already: nothing is generated
    label: NotRequired[int]  # 1 = hallucination, 0 = right, -1 = unlabelled
    score: NotRequired[float]
    # the hallucinated parts of the response; an empty list says that there is none
    spans: NotRequired[list[Span]]


def build_question(
    record: object, number: int, needed: Collection[str] = (), used: Collection[str] = ()
) -> Question:
    """Check a record and give its names their one spelling.

    `number`: of the record, from 1, for questions of NQ-open, which have no id. All that has none
    of the names is in `fields`, but for what a benchmark has `used` already and no prompt `needed`.

    Raises LineError: it is no question.
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
    others = {key: record[key] for key in record if key not in _USED and key not in used}
    others |= {name: record[name] for name in needed if name in record}
    if others:
        question["fields"] = others
    return question


def check_id(what: str, value: object) -> str:
    """An id as text; raises LineError."""
    name = check_text(what, _spell_int(value))
    n_bytes = len(name.encode())
    if n_bytes > MAX_ID_BYTES:
        raise LineError(f"{what}: expected at most {MAX_ID_BYTES} bytes, found {n_bytes}")
    return name


def find_first(record: Mapping[str, object], names: tuple[str, ...]) -> object:
    """The first value under these names that is not empty; an empty one, or None, if none is."""
    # min returns the first of equals
    return min(map(record.get, names), key=lambda value: (value is None, value in ([], "")))


def check_text(what: str, value: object) -> str:
    """A text that is not blank; raises LineError."""
    if not isinstance(value, str) or not value.strip():
        found = "none" if value is None else repr(value)
        raise LineError(f"{what}: expected a text, found {found:.200}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise LineError(f"{what}: expected text that UTF-8 can hold, found {error}") from error
    return value


def _context(value: object) -> str | None:
    """One text, or passages with an empty line between them; None if it is blank."""
    passages = value if isinstance(value, list) else [value]
    texts = [passage for passage in passages if passage is not None and passage != ""]
    if not texts:
        return None
    return "\n\n".join(check_text("context", text) for text in texts)


def _answers(value: object) -> list[str]:
    """The different answers, in their order; blank ones are left out."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = value["text"] if "text" in value else _aliases(value)  # SQuAD on the Hub has "text"
    answers = value if isinstance(value, list) else [value]
    texts = [_spell_int(answer) for answer in answers]
    filled = [text for text in texts if not isinstance(text, str) or text.strip()]
    return list(dict.fromkeys(check_text("answers", text) for text in filled))


def _aliases(answer: Mapping[str, object]) -> list[object]:
    """The spellings of a right answer of TriviaQA."""
    values = [answer[name] for name in ALIAS_NAMES if answer.get(name) is not None]
    if not values:
        raise LineError(
            f"answer: expected one of {ALIAS_NAMES[::2]} in it, found {list(answer)!r:.200}"
        )
    spellings: list[object] = []
    for value in values:
        spellings += value if isinstance(value, list) else [value]
    return spellings


def _spell_int(value: object) -> object:
    """A whole number as text; anything else unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def add_response(question: Question, record: Mapping[str, object]) -> Question:
    """Add the response of a record to its question, if it has one.

    `record`: with `response`, and as it likes `label` (1 = hallucination), `score` (higher is
    better), `spans` and `trace_id`. Spans are objects with `start`, `end` and perhaps `label` and
    `text`, or pairs of start and end: characters of the response, from 0, the end excluded. Without
    a label, spans decide it: 1 if there is one. A label of 0 allows none.

    Raises LineError: something of it is wrong.
    """
    if not any(name in record for name in RESPONSE_NAMES):
        return question
    return {**question, **_given(record)}  # type: ignore[typeddict-item] # keys of Question


def without_responses(questions: Iterable[Question]) -> list[Question]:
    """The questions alone, each once: to have a model answer what others have answered.

    Fields that tell the responses of a question apart go with them, as do names of models.
    """
    asked: dict[str, dict[str, Any]] = {}
    for question in questions:
        kept: dict[str, Any] = {k: v for k, v in question.items() if k not in GIVEN_KEYS}
        first = asked.setdefault(question["question_id"], kept)
        fields = kept.get("fields", {}).items()
        common = {k: v for k, v in first.pop("fields", {}).items() if (k, v) in fields}
        shared = {k: v for k, v in common.items() if k not in GENERATOR_NAMES}
        if shared:
            first["fields"] = shared
    return list(asked.values())  # type: ignore[arg-type] # keys of Question


def generators_of(questions: Iterable[Question]) -> list[str]:
    """The models that the responses are by, as far as records name them, sorted."""
    return sorted({_generator_of(question) for question in questions} - {""})


def keep_generator(questions: Sequence[Question], generator: str) -> list[Question]:
    """The questions with a response by a model; raises SchemaError if there is none."""
    kept = [question for question in questions if _generator_of(question) == generator]
    if not kept:
        known = generators_of(questions)
        raise SchemaError(
            f"--generator: expected a model whose responses the file has, one of "
            f"{', '.join(known) or 'none, as no record names one'}, found {generator!r:.80}"
            f"{closest(generator, known)}"
        )
    return kept


def _generator_of(question: Question) -> str:
    """The model that a response is by; "" if there is no response, or nothing says."""
    named = find_first(question.get("fields", {}), GENERATOR_NAMES)
    return str(named) if "response" in question and named else ""


def parse_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    """The cells of a CSV row as a record: answers are lists, spans as JSON has them.

    Empty cells of what a record need not have are left out.
    """
    record: dict[str, Any] = {}
    for name, cell in cells.items():
        if name in ANSWER_NAMES:
            expected = "expected a JSON list or texts between '|' as answers"
            is_json = cell.strip().startswith("[")
            record[name] = _parse_cell(cell, expected) if is_json else cell.split("|")
        elif name == "spans" and cell.strip():
            record[name] = _parse_cell(cell, "spans: expected a JSON list of [start, end]")
        elif name not in _OPTIONAL or cell.strip():
            record[name] = cell
    return record


def _parse_cell(cell: str, expected: str) -> object:
    try:
        return parse_json(cell)
    except (ValueError, RecursionError) as error:
        raise LineError(f"{expected}, found {cell!r:.200}") from error


def _given(record: Mapping[str, object]) -> dict[str, object]:
    response = check_text("response", find_first(record, RESPONSE_NAMES))
    given: dict[str, Any] = {"response": response}
    if record.get("trace_id") is not None:
        given["trace_id"] = check_id("trace_id", record["trace_id"])
    if record.get("spans") is not None:
        given["spans"] = _spans(record["spans"], response)
    score = _score(record.get("score"))
    if score is not None:
        given["score"] = score
    label = find_first(record, LABEL_NAMES)
    if label is not None:
        given["label"] = _label(label)
        if given["label"] == 0 and given.get("spans"):
            raise LineError(
                f"label: expected 1 (hallucination), as there are spans, found 0 (right) and "
                f"{len(given['spans'])} of them; correct one of the two"
            )
    elif score is None and "spans" in given:
        given["label"] = int(bool(given["spans"]))
    return given


def _label(value: object) -> int:
    label = _LABEL_TEXTS.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(label, bool | int | float) and label in _LABELS:
        return int(label)
    raise LineError(
        f"label: expected 1 (hallucination), 0 (right) or -1 (unlabelled), found {value!r:.200}"
    )


def _score(value: Any) -> float | None:
    """A number; None for none, and for NaN, which files write where there is none."""
    if value is None:
        return None
    try:
        number = parse_number(value) if isinstance(value, str) else float(value)
        score = math.inf if isinstance(value, bool) else number
    except (TypeError, ValueError, OverflowError):
        score = math.inf
    if math.isinf(score):
        raise LineError(f"score: expected a finite number, found {value!r:.200}")
    return None if math.isnan(score) else score


def _spans(value: object, response: str) -> list[Span]:
    if not isinstance(value, list):
        raise LineError(f"spans: expected a list, found {value!r:.200}")
    return [_span(span, response) for span in value]


def _span(value: object, response: str) -> Span:
    span = _as_mapping(value)
    start = _whole(span.get("start"))
    end = _whole(span.get("end"))
    if not 0 <= start < end <= len(response):
        raise LineError(
            f"spans: expected 0 <= start < end <= {len(response)}, the characters of the "
            f"response, found {value!r:.200}"
        )
    _check_words(span.get("text"), response[start:end])
    label = find_first(span, ("label", "label_type"))
    return {"start": start, "end": end, "label": label if isinstance(label, str) else ""}


def _whole(value: object) -> int:
    """A whole number; -1, which no span has, for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _as_mapping(span: object) -> Mapping[str, object]:
    if isinstance(span, list | tuple) and len(span) == 2:
        return {"start": span[0], "end": span[1]}
    if isinstance(span, Mapping):
        return span
    raise LineError(f"spans: expected objects with start and end, found {span!r:.200}")


def _check_words(expected: object, found: str) -> None:
    """Raise LineError where a span's own text says that it counts something else, bytes say."""
    if isinstance(expected, str) and expected.split() != found.split():
        raise LineError(
            f"spans: expected the text {expected!r:.100}, found {found!r:.100} there; "
            "start and end count characters of the response from 0"
        )
