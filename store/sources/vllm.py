"""Hidden states that vLLM saved, one safetensors file a request, with a file of the requests.

vLLM's method `extract_hidden_states` with its ExampleHiddenStatesConnector writes the tensors
`hidden_states` (tokens, layers, hidden) and `token_ids` (tokens)
(https://docs.vllm.ai/en/latest/features/speculative_decoding/extract_hidden_states/). What else is
known of a request (its texts, the length of its prompt, its label) is in a file of JSON lines.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.format.schema import Column
from store.format.values import is_integer
from store.read.store import TraceStore
from store.sources.arrays.files import FileSource, Labels
from store.sources.arrays.find import SAFETENSORS, Given
from store.sources.arrays.imports import SINGLE
from store.sources.arrays.mapping import Mapped, column_of, references_of
from store.sources.arrays.safetensors import SafetensorsFile
from store.sources.legacy.fields import Row
from store.sources.states import derive_states
from store.sources.text_records import LineError, name_file, read_json_lines

__all__ = ["Requests", "VllmSource", "is_vllm", "read_requests"]

STATES = "hidden_states"
TOKENS = "token_ids"
STATE_DTYPES = ("float16", "bfloat16", "float32")
IDS = ("request_id", "id", "trace_id")  # names of the same thing in files of requests
PATHS = ("hidden_states_path", "file")
ANSWERS = ("answer", "response", "output", "generated_text")
QUESTIONS = ("question", "prompt")
REFERENCES = ("references", "answers")

Requests = dict[str, dict[str, Any]]  # name of a file without its suffix -> request


def is_vllm(item: Given) -> bool:
    """Return whether a file has vLLM's two tensors; raises what is wrong with the file."""
    return item.kind == "safetensors" and {STATES, TOKENS} <= SafetensorsFile(item.path).keys.keys()


def read_requests(path: Path) -> Requests:
    """Read a file of requests, one JSON object a line.

    Parameters
    ----------
    path
        Each line has the name of its file without `.safetensors` (`id`, `request_id` or
        `trace_id`) or its path (`hidden_states_path`, `file`). All else is optional: `question`,
        `answer` (or `response`), `references`, `label`, `score`, `prompt_len`, `question_id`,
        `answer_len`, `token_ids`.

    Raises
    ------
    StoreError
        It cannot be read, a line has no id, or two have the same.
    """
    requests: Requests = {}
    with name_file(path, "requests in JSON lines"), path.open(encoding="utf-8-sig") as lines:
        for number, request in read_json_lines(lines):
            name = _name_of(request, number)
            if name in requests:
                raise LineError(f"expected each request once, found {name!r:.80} again", number)
            requests[name] = request
    return requests


def _name_of(request: Any, number: int) -> str:
    if not isinstance(request, dict):
        raise LineError(f"expected a JSON object, found {type(request).__name__}", number)
    where = _first_of(request, PATHS)
    if isinstance(where, str) and where:
        return PurePath(where).name.removesuffix(SAFETENSORS)
    name = _first_of(request, IDS)
    if is_integer(name):
        return str(name)
    if isinstance(name, str) and name:
        return name
    raise LineError(f"expected an id ({', '.join(IDS)}) of a file, found {name!r:.80}", number)


def _first_of(request: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((request[name] for name in names if request.get(name) is not None), None)


class VllmSource(FileSource):
    """The traces in vLLM's files.

    Parameters
    ----------
    given
        The files, in order.
    requests
        Of `read_requests`; None for states and tokens alone.
    labels
        How the traces are labelled.
    layers
        Numbers of the layers in the files (`eagle_aux_hidden_state_layer_ids`), ascending.
    columns, part, begun
        See `FileSource`.
    """

    def __init__(
        self,
        given: Sequence[Given],
        requests: Requests | None,
        labels: Labels,
        *,
        layers: Sequence[int] | None,
        columns: Sequence[str] | None,
        part: tuple[int, int],
        begun: TraceStore | None,
    ) -> None:
        self._requests = requests
        self._stems = {_stem(item.path) for item in given}
        self._is_first_part = part[0] == 1
        self._fields = _fields_of(requests or {})
        provenance: dict[str, Any] = {"format": "vLLM hidden states"}
        provenance["requests_sha256"] = _digest(requests)
        super().__init__(
            given,
            labels,
            layers=layers,
            columns=columns,
            part=part,
            begun=begun,
            provenance=provenance,
        )

    def _records(self, item: Given, name: str) -> Iterator[tuple[Path, Any, np.ndarray]]:
        file = SafetensorsFile(item.path)
        _check_tensors(file)
        yield item.path, file.read(STATES), np.asarray(file.read(TOKENS))

    def _row(self, record: Any, name: str, i: int) -> tuple[str | None, Row]:
        path, states, tokens = record
        stem = _stem(path)
        if self._requests is not None and stem not in self._requests:
            raise SchemaError(
                f"expected a request with the id {stem!r:.100} in --requests, found none"
            )
        request = (self._requests or {}).get(stem, {})
        token_ids = tokens.astype(np.int32)
        if not np.array_equal(token_ids, tokens):
            raise SchemaError(f"{TOKENS}: expected ids that int32 holds, found {tokens.max()}")
        row: Row = {"question_id": str(request.get("question_id", stem)), "tokens": token_ids}
        row |= {STATES: states, "hs_last": derive_states("hs_last", states, None)}
        row |= _texts(request, self._fields)
        row |= _numbers(request)
        prompt_len = _checked_prompt(request, token_ids)
        if "prompt_len" in self._fields:
            row["hs_prompt"] = derive_states("hs_prompt", states, prompt_len)
            row["hs_mean"] = derive_states("hs_mean", states, prompt_len)
            row["prompt_len"] = np.int32(prompt_len or 0)
            row["answer_len"] = np.int32(len(token_ids) - (prompt_len or 0))
        return stem, row

    def _columns(self, row: Row) -> dict[str, Column]:
        names = [name for name in row if name not in SINGLE]
        return SINGLE | {name: column_of(Mapped(name, name), row[name]) for name in names}

    def _missing(self) -> Iterator[str]:
        if not self._is_first_part:  # which reports them for all parts
            return
        for name in self._requests or {}:
            if name not in self._stems:
                file = f"{name}{SAFETENSORS}"
                yield f"request {name!r:.100}: expected the file {file:.120}, found none"


def _stem(path: Path) -> str:
    return path.name.removesuffix(SAFETENSORS)


def _digest(requests: Requests | None) -> str | None:
    if requests is None:
        return None
    return hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()


def _fields_of(requests: Requests) -> set[str]:
    """Return the columns that some request has a value for."""
    found = set()
    for request in requests.values():
        names = {"question": QUESTIONS, "answer": ANSWERS, "references": REFERENCES}
        found |= {name for name, keys in names.items() if _first_of(request, keys) is not None}
        if request.get("prompt_len") is not None:
            found.add("prompt_len")
    return found


def _check_tensors(file: SafetensorsFile) -> None:
    """Raise SchemaError unless the tensors are vLLM's."""
    for name in (STATES, TOKENS):
        if name not in file.keys:
            shown = ", ".join(list(file.keys)[:10]) or "none"
            raise SchemaError(f"expected the tensor {name!r}, found {shown:.200}")
    states = file.keys[STATES]
    tokens = file.keys[TOKENS]
    if len(states.shape) != 3 or states.dtype not in STATE_DTYPES:
        expected = f"{' or '.join(STATE_DTYPES)} (tokens, layers, hidden)"
        raise SchemaError(f"{STATES}: expected {expected}, found {states}")
    if len(tokens.shape) != 1 or tokens.dtype not in ("int32", "int64"):
        raise SchemaError(f"{TOKENS}: expected int64 (tokens), found {tokens}")
    if tokens.shape[0] != states.shape[0]:
        raise SchemaError(
            f"expected as many states as tokens, found {states.shape[0]} states and "
            f"{tokens.shape[0]} tokens"
        )


def _texts(request: Mapping[str, Any], fields: set[str]) -> Row:
    row: Row = {}
    for name, keys in (("question", QUESTIONS), ("answer", ANSWERS)):
        if name in fields:
            text = _first_of(request, keys)
            if not isinstance(text, str | None):
                raise SchemaError(f"{name}: expected a text, found {type(text).__name__}")
            row[name] = text or ""
    if "references" in fields:
        given = _first_of(request, REFERENCES)
        row["references"] = references_of([] if given is None else given, "references")
    return row


def _numbers(request: Mapping[str, Any]) -> Row:
    """Return score and label of a request, where it has them."""
    row: Row = {}
    for name in ("score", "label"):
        value = request.get(name)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or (
            name == "label" and value not in (-1, 0, 1)
        ):
            raise SchemaError(f"{name}: expected a number, found {value!r:.60}")
        row[name] = value
    return row


def _checked_prompt(request: Mapping[str, Any], tokens: np.ndarray) -> int | None:
    """Return the length of the prompt; raise SchemaError if the file has other tokens."""
    n_tokens = len(tokens)
    ids = request.get(TOKENS)
    if ids is not None and ids != tokens.tolist():
        raise SchemaError(
            f"expected the {len(ids) if isinstance(ids, list) else 0} tokens that its request "
            f"names, found {n_tokens} others"
        )
    lengths: dict[str, int | None] = {}
    for name in ("prompt_len", "answer_len"):
        value = request.get(name)
        if value is not None and (not is_integer(value) or value < 1):
            raise SchemaError(f"{name}: expected a number of tokens, found {value!r:.60}")
        lengths[name] = value
    prompt_len = lengths["prompt_len"]
    if prompt_len is not None and prompt_len >= n_tokens:
        raise SchemaError(
            f"expected more tokens than the {prompt_len} of the prompt, found {n_tokens}: states "
            "of the answer are saved where prompt and answer are sent as one prompt"
        )
    answer_len = lengths["answer_len"]
    if prompt_len and answer_len and prompt_len + answer_len != n_tokens:
        raise SchemaError(
            f"expected {prompt_len} + {answer_len} tokens as its request says, found {n_tokens}"
        )
    return prompt_len
