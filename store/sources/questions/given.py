"""Answers that exist already: the response of a record, its label or score, its spans."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from store.sources.questions.question import (
    Question,
    Span,
    check_id,
    check_text,
    find_first,
)
from store.text_records import LineError, parse_json, parse_number

__all__ = ["add_response", "parse_given_cells", "without_responses"]

RESPONSE_NAMES = ("response", "Response")
LABEL_NAMES = ("label", "is_hallucination", "hallucination")
GIVEN_KEYS = ("trace_id", "response", "label", "score", "spans")
_LABELS = (0, 1, -1)
_LABEL_TEXTS = {"true": 1, "false": 0, "0": 0, "1": 1, "-1": -1, "0.0": 0, "1.0": 1}


def add_response(question: Question, record: Mapping[str, Any]) -> Question:
    """Add the response of a record to its question, if it has one.

    Parameters
    ----------
    record
        With `response`, and as it likes `label` (1 = hallucination), `score` (higher is better),
        `spans` and `trace_id`. Spans are objects with `start`, `end` and perhaps `label` and
        `text`, or pairs of start and end: characters of the response, from 0, the end excluded.
        Without a label, spans decide it: 1 if there is one. A label of 0 allows none.

    Raises
    ------
    LineError
        Something of it is wrong.
    """
    if not any(name in record for name in RESPONSE_NAMES):
        return question
    return {**question, **_given(record)}  # type: ignore[typeddict-item] # keys of Question


def without_responses(questions: Iterable[Question]) -> list[Question]:
    """The questions alone, each once: to have a model answer what others have answered."""
    asked: dict[str, Question] = {}
    for question in questions:
        kept = {key: value for key, value in question.items() if key not in GIVEN_KEYS}
        asked.setdefault(question["question_id"], kept)  # type: ignore[arg-type] # keys of Question
    return list(asked.values())


def parse_given_cells(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a CSV row, empty ones left out, with those of spans read as JSON."""
    optional = (*LABEL_NAMES, "score", "spans", "context", "trace_id")
    filled = {name: cell for name, cell in cells.items() if name not in optional or cell.strip()}
    if "spans" not in filled:
        return filled
    try:
        return filled | {"spans": parse_json(filled["spans"])}
    except (ValueError, RecursionError) as error:
        message = f"spans: expected a JSON list of [start, end], found {filled['spans']!r:.200}"
        raise LineError(message) from error


def _given(record: Mapping[str, Any]) -> dict[str, Any]:
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
        _check_spans_of_right(given)
    elif score is None and "spans" in given:
        given["label"] = int(bool(given["spans"]))
    return given


def _check_spans_of_right(given: Mapping[str, Any]) -> None:
    """Raise LineError for hallucinated parts of a response that is called right."""
    if given["label"] == 0 and given.get("spans"):
        raise LineError(
            f"label: expected 1 (hallucination), as there are spans, found 0 (right) and "
            f"{len(given['spans'])} of them; correct one of the two"
        )


def _label(value: Any) -> int:
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


def _spans(value: Any, response: str) -> list[Span]:
    if not isinstance(value, list):
        raise LineError(f"spans: expected a list, found {value!r:.200}")
    return [_span(span, response) for span in value]


def _span(value: Any, response: str) -> Span:
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


def _whole(value: Any) -> int:
    """A whole number; -1, which no span has, for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _as_mapping(span: Any) -> Mapping[str, Any]:
    if isinstance(span, list | tuple) and len(span) == 2:
        return {"start": span[0], "end": span[1]}
    if isinstance(span, Mapping):
        return span
    raise LineError(f"spans: expected objects with start and end, found {span!r:.200}")


def _check_words(expected: Any, found: str) -> None:
    """Raise LineError where a span's own text says that it counts something else, bytes say."""
    if isinstance(expected, str) and expected.split() != found.split():
        raise LineError(
            f"spans: expected the text {expected!r:.100}, found {found!r:.100} there; "
            "start and end count characters of the response from 0"
        )
