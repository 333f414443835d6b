"""Hidden states that vLLM saved, one safetensors file a request, with a file of the requests.

vLLM's method `extract_hidden_states` with its ExampleHiddenStatesConnector writes the tensors
`hidden_states` (tokens, layers, hidden) and `token_ids` (tokens)
(https://docs.vllm.ai/en/latest/features/speculative_decoding/extract_hidden_states/). What else is
known of a request (its texts, the length of its prompt, its label) is in a file of JSON lines.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from store.errors import SchemaError
from store.importers.arrays.array_files import open_safetensors
from store.importers.arrays.contents import Arrays
from store.importers.arrays.mapping import Mapped, value_of
from store.importers.damage import DAMAGE
from store.importers.files import SAFETENSORS, Given
from store.importers.source import FileSource, Options, Row
from store.importers.vllm_requests import (
    TOKENS,
    Requests,
    checked_prompt,
    columns_of,
    fields_of,
    row_of,
)
from store.sources.recorder import client_ids
from store.traces.fields import find_fields
from store.traces.origin import FINAL_NORM, TRACE_CONVENTION
from store.traces.states import derive_states

__all__ = ["VllmSource", "is_vllm"]

STATES = "hidden_states"
STATE_DTYPES = ("float16", "bfloat16", "float32")
PROMPTS = "prompt tokens alone"


def is_vllm(item: Given) -> bool:
    """Return whether a safetensors file has vLLM's two tensors; one that is damaged may have."""
    if item.kind != "safetensors":
        return False
    try:
        return open_safetensors(item.path).keys.keys() >= {STATES, TOKENS}
    except DAMAGE:  # it is reported as the file is read
        return True


class VllmSource(FileSource):
    """The traces in vLLM's files; without requests, states and tokens alone.

    The numbers of the layers in the options are vLLM's `eagle_aux_hidden_state_layer_ids`.
    """

    def __init__(self, given: Sequence[Given], requests: Requests | None, options: Options) -> None:
        self._requests = requests or {}
        self._has_requests = requests is not None
        self._request_names = {self._name_of(item.path) for item in given}
        self._fields = columns_of(self._requests)
        records = [fields_of(request) for request in self._requests.values()]
        self.fields = find_fields(records, options.fields)
        self._has_answers = any(map(self._has_answer, given))
        if not self._has_answers:
            self._fields -= {"logprob"}
        super().__init__(given, options)

    def _describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(json.dumps(self._requests, sort_keys=True).encode()).hexdigest()
        described: dict[str, Any] = {
            "format": "vLLM hidden states",
            FINAL_NORM: False,
            "requests_sha256": digest if self._has_requests else None,
        }
        if "prompt_len" in self._fields:
            described["trace_convention"] = TRACE_CONVENTION if self._has_answers else PROMPTS
        return described

    def _records(self, item: Given) -> Iterator[tuple[int, Arrays]]:
        file = open_safetensors(item.path)
        _check_tensors(file)
        yield 0, file

    def _name_of(self, path: Path) -> str:
        """Return the name of a file as its request has it; the engine adds to a client's id."""
        stem = path.name.removesuffix(SAFETENSORS)
        return next((name for name in client_ids(stem) if name in self._requests), stem)

    def _has_answer(self, item: Given) -> bool:
        """Return whether a file has states of more than the prompt, from its header alone."""
        try:
            prompt_len = self._requests[self._name_of(item.path)]["prompt_len"]
            return open_safetensors(item.path).keys[TOKENS].shape[0] > prompt_len
        except DAMAGE:  # none is known; or it is reported as the file is read
            return False

    def _row(self, item: Given, file: Arrays, i: int) -> tuple[str, Row]:
        states = file.read(STATES)
        tokens = file.read(TOKENS)
        own_id = self._name_of(item.path)
        if self._has_requests and own_id not in self._requests:
            raise SchemaError(
                f"expected a request with the id {own_id!r:.100} in --requests, found none"
            )
        request = self._requests.get(own_id, {})
        token_ids = value_of(Mapped("tokens", TOKENS), tokens)
        prompt_len = checked_prompt(request, token_ids)
        _check_states(states, token_ids)
        row: Row = {"question_id": str(request.get("question_id", own_id)), "tokens": token_ids}
        row |= {STATES: states, "hs_last": derive_states("hs_last", states, None)}
        row |= row_of(request, self._fields, token_ids) | self.fields.row(fields_of(request))
        if "prompt_len" in self._fields:
            row |= self._parts(states, prompt_len or 0)
        return own_id, row

    def _parts(self, states: Any, prompt_len: int) -> Row:
        """Return what is known of prompt and answer; of a prompt alone its last state."""
        n = len(states)
        if not self._has_answers and prompt_len == n:
            return {"hs_prompt": states[-1]}
        if prompt_len >= n:
            raise SchemaError(
                f"expected more tokens than the {prompt_len} of the prompt, found {n}: no state of "
                "an answer, as other files have; import files of prompts alone apart from them"
            )
        made = {name: derive_states(name, states, prompt_len) for name in ("hs_prompt", "hs_mean")}
        return made | {"prompt_len": np.int32(prompt_len), "answer_len": np.int32(n - prompt_len)}

    def _missing(self) -> Iterator[str]:
        for name in self._requests:
            if name not in self._request_names:
                file = f"{name}{SAFETENSORS}"
                yield f"request {name!r:.100}: expected the file {file:.120}, found none"


def _check_tensors(file: Arrays) -> None:
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


def _check_states(states: Any, tokens: np.ndarray) -> None:
    """Raise SchemaError for states (T, L, d) that are no model's: a layer of zeros, a row again.

    Engines left zeros where hybrid models keep no states, and rows of others where a prefix was
    cached. Equal tokens may have equal states.
    """
    first: dict[int, int] = {}
    for i, row in enumerate(states):
        before = first.setdefault(hash(row.tobytes()), i)
        has_all = row.any(axis=1).all()
        if not has_all or tokens[before] != tokens[i]:
            found = f"those of token {before} again" if has_all else "zeros"
            raise SchemaError(
                f"{STATES}: expected states of every token, found {found} for token {i} of "
                f"{len(tokens)}: the engine did not save them"
            )
