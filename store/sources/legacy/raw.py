"""Raw traces: a list of dicts with `hidden_states` and `attentions`, of two generations.

- **raw v3**: one array for each layer.
- **raw v1**: one array for each layer *and step of the generation* (the first step is the whole
  prompt), of several beams; the first is the answer.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from store.errors import SchemaError
from store.sources.legacy import fields
from store.sources.legacy.fields import Row
from store.sources.legacy.layers import attention_columns, state_columns, without_embedding

__all__ = ["RawTraces"]


@dataclass
class RawTraces:
    """The records of one file.

    Attributes
    ----------
    records
        As they were read; one of them may contradict itself.
    keep_attention
        Whether the rows hold the full attention maps.
    max_bytes
        Most bytes of the arrays of one record: one array, repeated by reference in a small file,
        would fill the memory.
    """

    records: list
    keep_attention: bool
    max_bytes: int
    _first: dict[int, int] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def kind(self) -> str:
        """Return "raw v1", "raw v3" or, without records, "empty"."""
        if not self.records:
            return "empty"
        record = self.records[0]
        layers = record["hidden_states"]
        first = layers[0] if isinstance(layers, list | tuple) and layers else None
        by_step = isinstance(first, list | tuple)
        return "raw v1" if by_step or "global_example_id" in record else "raw v3"

    def row(self, i: int) -> Row:
        """Return the columns of record i; raise SchemaError if it contradicts itself."""
        record = self.records[i]
        first = self._first.setdefault(id(record), i)
        if first != i:
            raise SchemaError(f"expected a record of its own, found record {first} again")
        if not isinstance(record, Mapping):
            raise SchemaError(f"expected a dict, found {type(record).__name__}")
        if self.kind == "raw v1":
            return self._row_v1(record)
        return self._row_v3(record)

    def _row_v3(self, record: Mapping) -> Row:
        tokens = fields.integers(record, "tokens")
        n_tokens = len(tokens)
        states = _arrays(record, "hidden_states", 2)
        maps = _arrays(record, "attentions", 3)
        self._check_size(chain(states, maps))
        states = without_embedding(states, len(maps))
        row = {
            "question_id": fields.text(record, "question_id"),
            "tokens": tokens,
            "answer": fields.text(record, "generated_answer_clean"),
            **state_columns(states, n_tokens),
            **attention_columns(maps, n_tokens, None, self.keep_attention),
        }
        if "tokens_decoded" in record:
            row["token_texts"] = _token_texts(record, n_tokens)
        return row

    def _row_v1(self, record: Mapping) -> Row:
        prompt_len = fields.integer(record, "prompt_length")
        states_by_step = _first_beams(record, "hidden_states", 3)
        maps_by_step = _first_beams(record, "attentions", 4)
        steps_of_layers = chain(states_by_step, maps_by_step)
        self._check_size(chain.from_iterable(steps_of_layers))
        prompts = {
            "hidden_states": states_by_step[0][0].shape[0],
            "attentions": maps_by_step[0][0].shape[1],
        }
        for key, expected in prompts.items():
            if prompt_len != expected:
                raise SchemaError(
                    f"prompt_length: expected {expected} as in the first step of {key}, "
                    f"found {prompt_len}"
                )
        states = [np.concatenate(steps) for steps in states_by_step]
        states = without_embedding(states, len(maps_by_step))
        n_tokens = len(states[0])
        maps = [_joined_map(steps, n_tokens) for steps in maps_by_step]
        references = []
        if "ground_truth_answers" in record:
            references = fields.texts(record, "ground_truth_answers")
        return {
            "question_id": str(fields.integer(record, "global_example_id")),
            "tokens": _fed_tokens(record, n_tokens),
            "prompt_len": np.int32(prompt_len),
            "answer_len": np.int32(n_tokens - prompt_len),
            "question": fields.text(record, "question"),
            "answer": fields.text(record, "generated_answer_clean"),
            "references": json.dumps(references, ensure_ascii=False),
            **state_columns(states, n_tokens),
            **attention_columns(maps, n_tokens, prompt_len, self.keep_attention),
        }

    def _check_size(self, arrays: Iterable[np.ndarray]) -> None:
        n_bytes = sum(array.nbytes for array in arrays)
        if n_bytes > self.max_bytes:
            raise SchemaError(
                f"hidden_states and attentions: expected at most {self.max_bytes} bytes, "
                f"found {n_bytes} (see --max-file-gb)"
            )


def _layers(record: Mapping, key: str) -> Sequence:
    return fields.parts(fields.value(record, key), key, "an array for each layer")


def _arrays(record: Mapping, key: str, ndim: int) -> list[np.ndarray]:
    return [fields.floats(layer, key, ndim) for layer in _layers(record, key)]


def _token_texts(record: Mapping, n_tokens: int) -> str:
    texts = fields.texts(record, "tokens_decoded")
    if len(texts) != n_tokens:
        raise SchemaError(
            f"tokens_decoded: expected {n_tokens} texts, one a token, found {len(texts)}"
        )
    return json.dumps(texts, ensure_ascii=False)


def _first_beams(record: Mapping, key: str, ndim: int) -> list[list[np.ndarray]]:
    """Return the first beam of each step of each layer: it is the answer's."""
    layers = []
    for layer in _layers(record, key):
        steps = fields.parts(layer, key, "an array for each step")
        beams = [fields.floats(step, key, ndim) for step in steps]
        if not all(map(len, beams)):
            raise SchemaError(f"{key}: expected a beam at least, found none")
        layers.append([step[0] for step in beams])
    return layers


def _fed_tokens(record: Mapping, n_tokens: int) -> np.ndarray:
    """Return the tokens that have states: the last generated one never went into the model."""
    tokens = fields.integers(record, "tokens_full")
    if len(tokens) not in (n_tokens, n_tokens + 1):
        raise SchemaError(
            f"tokens_full: expected {n_tokens} tokens as hidden_states has, or one more, "
            f"found {len(tokens)}"
        )
    return tokens[:n_tokens]


def _joined_map(steps: list[np.ndarray], n_tokens: int) -> np.ndarray:
    """Return `(H, T, T)` of the rows of each step, `(H, q, k)`: zero where k is less than T."""
    n_rows = sum(step.shape[1] for step in steps)
    if n_rows != n_tokens:
        raise SchemaError(
            f"attentions: expected {n_tokens} tokens as hidden_states has, found {n_rows}"
        )
    n_heads = len(steps[0])
    joined = np.zeros((n_heads, n_tokens, n_tokens), steps[0].dtype)
    start = 0
    for step in steps:
        end = start + step.shape[1]
        if step.shape[0] != n_heads or step.shape[2] != end:
            raise SchemaError(
                f"attentions: expected {n_heads} heads that see {end} tokens of {n_tokens}, "
                f"found shape {step.shape}"
            )
        joined[:, start:end, :end] = step
        start = end
    return joined
