"""Requests to vLLM in JSON lines: as somebody wrote them down, or the server's responses.

They are read for an import, or joined to traces that were recorded while vLLM served.

Responses of the OpenAI-compatible API, to completions and chats, are taken as they are. Other keys
may stand in one, or around it where it is the value of `response`; they count more. An `answer`
around it is the right one, as in the question files of `extract`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from store.errors import SchemaError
from store.format.schema import Column
from store.format.values import is_integer
from store.importers.arrays.mapping import Mapped, references_of, value_of
from store.importers.damage import DAMAGE, one_line
from store.importers.files import SAFETENSORS
from store.importers.source import Row
from store.labels.rule import UNLABELLED, label_scores
from store.read.store import Trace, TraceStore
from store.sources.questions.question import find_first
from store.text_records import LineError, name_file, read_json_lines, refuse
from store.traces.columns import TRACE_COLUMNS
from store.traces.fields import Fields, find_fields
from store.write.writer import StoreWriter

__all__ = [
    "TOKENS",
    "Requests",
    "checked_prompt",
    "columns_of",
    "fields_of",
    "join_responses",
    "read_requests",
    "row_of",
]

TOKENS = "token_ids"
ENDED = "answer_ended"
ENDS = ("stop", "length")  # those that recorded traces know
IDS = ("request_id", "id", "trace_id")  # names of the same thing in files of requests
PATHS = ("hidden_states_path", "file")
COLUMNS = {  # column -> its names there
    "question": ("question", "prompt"),
    "answer": ("answer", "response", "output", "generated_text"),
    "context": ("context",),
    "references": ("references", "answers"),
    "prompt_len": ("prompt_len",),
    "logprob": ("answer_logprobs", "prompt_logprobs"),
}
# what is no field: of the server's answer, or known otherwise
NOT_FIELDS = {TOKENS, "question_id", "answer_len", "score", "label", "usage_len", "answer_ids"}
NOT_FIELDS |= {"prompt_token_ids", "object", "created", "system_fingerprint", "service_tier"}
NOT_FIELDS |= {ENDED, *IDS, *PATHS, *(name for names in COLUMNS.values() for name in names)}
OF_RESPONSES = ("response", "choices", "usage", "kv_transfer_params")

NO_LABELS = {"score": np.float32("nan"), "label": UNLABELLED}

Requests = dict[str, dict[str, Any]]  # name of a file without its suffix -> request


def read_requests(path: Path) -> Requests:
    """Read a file of requests, one JSON object a line.

    Each line has the name of its file without `.safetensors` (`id`, `request_id` or `trace_id`) or
    its path (`hidden_states_path`, `file`). All else is optional: `question`, `answer` (or
    `response`), `references`, `label`, `score`, `prompt_len`, `question_id`, `answer_len`,
    `token_ids`. Or it is a response of the server, or has one. A file that cannot be read, a line
    without an id, and an id twice are a StoreError.
    """
    requests: Requests = {}
    with name_file(path, "requests in JSON lines"), path.open(encoding="utf-8-sig") as lines:
        for number, record in refuse(read_json_lines(lines)):
            try:
                request = _flatten(record)
            except DAMAGE as error:
                raise LineError(f"expected a request, found: {one_line(error)}", number) from error
            name = _name_of(request, number)
            if name in requests:
                raise LineError(f"expected each request once, found {name!r:.80} again", number)
            requests[name] = request
    return requests


def _flatten(record: dict[str, Any]) -> dict[str, Any]:
    """Return a request with what its response says; new are `usage_len`, `answer_ids` and so on."""
    response = record["response"] if isinstance(record.get("response"), dict) else record
    if "choices" not in response:
        return record
    if len(response["choices"]) != 1:
        raise SchemaError(f"{len(response['choices'])} choices of one request")
    choice = response["choices"][0]
    usage = response.get("usage") or {}
    lengths = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    logprobs = choice.get("logprobs") or {}
    of_chat = [one.get("logprob") for one in logprobs.get("content") or ()]
    found = {
        IDS[0]: response.get("id"),
        PATHS[0]: (response.get("kv_transfer_params") or {}).get(PATHS[0]),
        "answer": choice.get("text", (choice.get("message") or {}).get("content")),
        "prompt_len": lengths[0],
        "usage_len": lengths if all(map(is_integer, lengths)) else None,
        "answer_ids": choice.get(TOKENS),
        ENDED: choice.get("finish_reason"),
        "answer_logprobs": logprobs.get("token_logprobs", of_chat),
        **{key: choice.get(key) for key in ("prompt_token_ids", "prompt_logprobs")},
    }
    own = dict(record)
    if response is not record and found["answer"] is not None and "answer" in own:
        right = own.pop("answer")
        if find_first(own, COLUMNS["references"]) is None:
            own["references"] = right
    merged: dict[str, Any] = {}
    for part in (found, response, own):
        merged |= {k: v for k, v in part.items() if v is not None and k not in OF_RESPONSES}
    return merged


def _name_of(request: Mapping[str, object], number: int) -> str:
    where = find_first(request, PATHS)
    if isinstance(where, str) and where:
        return PurePath(where).name.removesuffix(SAFETENSORS)
    name = find_first(request, IDS)
    if is_integer(name) or (isinstance(name, str) and name):
        return str(name)
    raise LineError(f"expected an id ({', '.join(IDS)}) of a file, found {name!r:.80}", number)


def columns_of(requests: Requests) -> set[str]:
    """Return the columns of `COLUMNS` that some request has a value for."""
    return {
        column
        for request in requests.values()
        for column, names in COLUMNS.items()
        if find_first(request, names) not in (None, [])
    }


def fields_of(request: Mapping[str, object]) -> dict[str, Any]:
    """Return what else a request knows."""
    return {name: value for name, value in request.items() if name not in NOT_FIELDS}


def row_of(request: Mapping[str, object], columns: set[str], tokens: np.ndarray) -> Row:
    """Return what a request says of its trace; raises what is wrong with it."""
    row: Row = {}
    for column in ("question", "answer", "context"):
        text = find_first(request, COLUMNS[column])
        if not isinstance(text, str | None):
            raise SchemaError(f"{column}: expected a text, found {type(text).__name__}")
        if column in columns:
            row[column] = text or ""
    if "references" in columns:
        references = find_first(request, COLUMNS["references"])
        row["references"] = references_of(references or [], "references")
    if "logprob" in columns:
        row["logprob"] = _logprobs(request, tokens)
    for name in ("score", "label"):
        if request.get(name) is not None:
            row[name] = value_of(Mapped(name, name), request[name])
    return row


def _logprobs(request: Mapping[str, Any], tokens: np.ndarray) -> np.ndarray:
    """Return the log-probability of each token, float32 (T,); NaN where the response has none."""
    logprobs = np.full(len(tokens), np.nan, np.float32)
    for i, entry in enumerate((request.get("prompt_logprobs") or [])[1:], 1):  # null for token 0
        logprobs[i] = entry[str(tokens[i])]["logprob"]
    of_answer = request.get("answer_logprobs")
    if of_answer:
        sent, made = request.get("usage_len", (0, 0))
        if len(of_answer) != made:
            raise SchemaError(f"expected {made} log-probabilities, found {len(of_answer)}")
        logprobs[sent:] = of_answer[: len(tokens) - sent]
    return logprobs


def checked_prompt(request: Mapping[str, Any], tokens: np.ndarray) -> int | None:
    """Return the length of the prompt; raise SchemaError if the file has other tokens.

    Of a prompt of P tokens and an answer of n it has P or, as the last one is never an input,
    P + n - 1; P + n of an answer that was sent with the prompt.
    """
    n_tokens = len(tokens)
    ids = request.get(TOKENS)
    if ids is None and request.get("prompt_token_ids") and request.get("answer_ids"):
        ids = [*request["prompt_token_ids"], *request["answer_ids"]][:n_tokens]
    if ids is not None and ids != tokens.tolist():
        raise SchemaError(
            f"expected the {len(ids) if isinstance(ids, list) else 0} tokens that its request "
            f"names, found {n_tokens} others"
        )
    asked = [request.get(name) for name in ("prompt_len", "answer_len")]
    if not all(length is None or (is_integer(length) and length > 0) for length in asked):
        raise SchemaError(f"prompt_len: expected a number of tokens, found {asked!r:.60}")
    for sent, made in (request.get("usage_len", asked), asked):
        if sent and made and n_tokens - sent not in (0, made - 1, made):
            raise SchemaError(
                f"expected {sent} + {made} tokens, all but the last, or {sent}, found {n_tokens}"
            )
    return asked[0]


class Joined(NamedTuple):
    """Traces with a response, all traces, responses without a trace; what is said of fields."""

    n_joined: int
    n_traces: int
    n_left: int
    contradicted: list[str]  # traces whose response says otherwise, and what
    remarks: list[str]


def join_responses(
    writer: StoreWriter, requests: Requests, wanted: list[str] | None = None
) -> Joined:
    """Add to all traces, in one commit, the columns that some response has a value for.

    A trace without a response has empty texts, no label, and NaN as log-probabilities; so has one
    whose response contradicts the trace or itself. `wanted` names fields, as of `find_fields`.
    Raises SchemaError if no response is of a trace, or the store has one of the columns.
    """
    store = TraceStore.open(writer.root)
    found = {trace_id: requests[trace_id] for trace_id in store.ids if trace_id in requests}
    if not found:
        ids, names = (next(iter(one), "none at all") for one in (store.ids, requests))
        raise SchemaError(
            f"{store.path}: expected responses with ids of its traces, as {ids!r:.80}, "
            f"found {names!r:.80}"
        )
    fields = find_fields([fields_of(request) for request in found.values()], wanted)
    columns = _joined_columns(found, fields)
    there = [name for name in columns if name in store.schema.columns]
    if there:
        raise SchemaError(
            f"{store.path}: expected no column {there[0]!r} yet: responses are joined once, when "
            "recording has ended; record into another store, and merge both"
        )
    contradicted: list[str] = []
    writer.set_columns(columns, _joined_rows(store, found, columns, fields, contradicted))
    n_joined = len(found) - len(contradicted)
    n_left = len(requests) - len(found)
    return Joined(n_joined, len(store), n_left, contradicted, fields.remarks())


def _joined_columns(requests: Requests, fields: Fields) -> dict[str, Column]:
    labels = {
        name for name in NO_LABELS if any(one.get(name) is not None for one in requests.values())
    }
    names = {"question_id", *columns_of(requests), *labels} - {"prompt_len"}
    known = {name: TRACE_COLUMNS[name].stored({}) for name in TRACE_COLUMNS if name in names}
    return {**known, **fields.columns}


def _joined_rows(
    store: TraceStore,
    requests: Requests,
    columns: Mapping[str, Column],
    fields: Fields,
    contradicted: list[str],
) -> Iterator[dict[str, Any]]:
    """The values of each trace; `contradicted` is told of responses that are left out."""
    names = set(columns)
    for trace in store:
        request = requests.get(trace.id, {})
        tokens = np.asarray(trace["tokens"])
        try:
            prompt_len = checked_prompt(request, tokens)
            row = row_of(request, names, tokens)
            _check_row(row, prompt_len, request.get(ENDED), trace)
        except DAMAGE as error:
            contradicted.append(f"trace {trace.id!r}: {one_line(error)}")
            request = {}
            row = row_of(request, names, tokens)
        question = str(request.get("question_id", trace.id))
        row = NO_LABELS | row | {"question_id": question} | fields.row(fields_of(request))
        yield {name: row[name] for name in columns}


def _check_row(row: Row, prompt_len: int | None, ended: object, trace: Trace) -> None:
    """Raise SchemaError where a response contradicts itself, or what was recorded of its trace."""
    label = int(row.get("label", UNLABELLED))
    if label not in (0, 1, UNLABELLED):
        raise SchemaError(f"label: expected 1, 0 or {UNLABELLED}, found {label}")
    score = float(row.get("score", np.nan))
    if UNLABELLED not in (by_score := int(label_scores(score)), label) and by_score != label:
        raise SchemaError(f"label {label} and score {score:g} contradict each other")
    if "logprob" in row and np.nanmax(row["logprob"], initial=-np.inf) > 0:
        raise SchemaError("expected log-probabilities, which are at most 0, found others")
    said = {"prompt_len": prompt_len, "finish_reason": ended if ended in ENDS else None}
    for name, found in said.items():
        if found is not None and name in trace.store.schema.columns and found != trace[name]:
            raise SchemaError(f"{name}: expected {trace[name]}, as recorded, found {found}")
