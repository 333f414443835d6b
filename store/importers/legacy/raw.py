"""Raw traces: a list of dicts with `hidden_states` and `attentions`, of six generations.

Every record is aligned by the numbers of its states and tokens (`alignment.py`); what its file
calls itself is never asked. A record that contradicts itself, or that is of another generation than
most of its file, is an error with its reason.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from store.errors import SchemaError
from store.importers.legacy import fields
from store.importers.legacy.alignment import (
    Span,
    align_texts,
    align_tokens,
    align_uncut_tokens,
    check_cut,
)
from store.importers.legacy.generations import (
    CUT_KEYS,
    UNCLEAR,
    WITHOUT_IDS,
    Sizes,
    has_text_of_each_token,
    keys_of,
    measure,
    most_common,
    name_generation,
)
from store.importers.legacy.layers import attention_columns, state_columns, without_embedding
from store.importers.legacy.raw_states import RawStates, read_states
from store.importers.source import Row

__all__ = ["RawTraces"]

T = TypeVar("T")

ID_KEYS = ("question_id", "global_example_id")  # example_id is that of a batch: others have it too
ANSWER_KEYS = ("generated_answer_clean", "generated_answer")
WITH_QUESTIONS = ("raw A", "raw B", "raw C")


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
        """Return the generation of most records, such as "raw B" or "raw A without ids".

        "empty" without records, "unclear" if none of them can be aligned.
        """
        if not self.records:
            return "empty"
        if self._generation == UNCLEAR or self._id_key:
            return self._generation
        return self._generation + WITHOUT_IDS

    def _of_each(self, function: Callable[[Any], T]) -> list[T]:
        """Return the function of each record; one that is there a million times is asked once."""
        distinct = {id(record): record for record in self.records}
        values = {key: function(record) for key, record in distinct.items()}
        return [values[id(record)] for record in self.records]

    @cached_property
    def _generations(self) -> list[str | None]:
        return self._of_each(name_generation)

    @cached_property
    def _generation(self) -> str:
        known = [generation for generation in self._generations if generation is not None]
        return most_common(known, UNCLEAR)

    @cached_property
    def _own(self) -> list[Mapping]:
        """The records of the file's own generation."""
        own = {}
        for record, generation in zip(self.records, self._generations, strict=True):
            if generation == self._generation:
                own[id(record)] = record
        return list(own.values())

    @cached_property
    def _sizes(self) -> list[Sizes | None]:
        return self._of_each(measure)

    @cached_property
    def _common_sizes(self) -> Sizes | None:
        own = (sizes for sizes in self._sizes if sizes is not None)
        return most_common(list(own), None)

    @cached_property
    def _have_text_of_each_token(self) -> bool | None:
        found = map(has_text_of_each_token, self._own)
        return most_common([has_text for has_text in found if has_text is not None], None)

    @property
    def typical_first(self) -> list[int]:
        """The numbers of all records, first those that have the sizes of most."""
        return sorted(range(len(self)), key=lambda i: self._sizes[i] != self._common_sizes)

    @cached_property
    def _keys(self) -> frozenset[str]:
        """What a record of the file may be expected to have: some other has it."""
        return keys_of(self._own)

    @cached_property
    def _id_key(self) -> str | None:
        """The key of the question's id in most records, None if none has one."""
        # the version that read B alone did so by this key, and stores that it began go on
        order = ID_KEYS[::-1] if self._generation == "raw B" else ID_KEYS
        keys = [key for record in self._own for key in order if key in record]
        return most_common(keys, None)

    def row(self, i: int) -> Row:
        """Return the columns of record i; raise SchemaError if it contradicts itself.

        The question_id is None if the file has no ids.
        """
        record = self.records[i]
        self._check_record(record, i)
        raw = read_states(record, self.max_bytes)
        states = without_embedding(raw.states, len(raw.maps))
        n_states = len(states[0])
        tokens, span = _align(record, raw, n_states)
        row: Row = {"question_id": self._question_id(record), "tokens": tokens}
        row |= self._texts(record)
        if "tokens_decoded" in self._keys:
            row["token_texts"], span = _token_texts(record, span)
        if span.prompt_len is not None:
            row["prompt_len"] = np.int32(span.prompt_len)
            row["answer_len"] = np.int32(n_states - span.prompt_len)
        row |= state_columns(states, n_states)
        row |= attention_columns(raw.maps, n_states, span.prompt_len, self.keep_attention)
        self._check_known(i)
        return row

    def _check_record(self, record: object, i: int) -> None:
        """Raise SchemaError for what is no record, or none of this file's generation."""
        first = self._first.setdefault(id(record), i)
        if first != i:
            raise SchemaError(f"expected a record of its own, found record {first} again")
        if not isinstance(record, Mapping):
            raise SchemaError(f"expected a dict, found {type(record).__name__}")
        found = self._generations[i]
        if found is not None and found != self._generation:
            raise SchemaError(
                f"expected a record of generation {self._generation} like most of its file, "
                f"found one of {found}; put such records into a file of their own"
            )
        self._check_layers(i)
        self._check_texts(record)

    def _check_layers(self, i: int) -> None:
        """Raise SchemaError for other numbers of layers: which are missing cannot be known."""
        found, common = self._sizes[i], self._common_sizes
        if found and common and found.n_layers != common.n_layers:
            raise SchemaError(
                "expected {} layers of hidden_states and {} of attentions like most of its file, "
                "found {} and {}".format(*common.n_layers, *found.n_layers)
            )

    def _check_texts(self, record: Mapping) -> None:
        """Raise SchemaError for texts of other tokens than the other records have."""
        found = has_text_of_each_token(record)
        if found is not None and found != self._have_text_of_each_token:
            raise SchemaError(
                "tokens_decoded: expected texts of the same tokens as in most of its file, "
                f"found {len(record['tokens_decoded'])} beside {len(record['tokens'])} tokens"
            )

    def _check_known(self, i: int) -> None:
        """Raise SchemaError for a record of no generation, of whatever it could be made."""
        if self._generations[i] is None:
            raise SchemaError("expected tokens that belong to the states, found others")

    def _question_id(self, record: Mapping) -> str | None:
        match self._id_key:
            case None:
                return None
            case "question_id":
                return fields.text(record, "question_id")
            case key:
                return str(fields.integer(record, key))

    def _texts(self, record: Mapping) -> Row:
        """Return question, answer and references, as far as the generation has them."""
        has_questions = self._generation in WITH_QUESTIONS
        answer_key = next((key for key in ANSWER_KEYS if key in self._keys), ANSWER_KEYS[0])
        row: Row = {"answer": fields.text(record, answer_key)}
        if has_questions or "question" in self._keys:
            row["question"] = fields.text(record, "question")
        if has_questions or "ground_truth_answers" in self._keys:
            references = []
            if "ground_truth_answers" in record:
                references = fields.texts(record, "ground_truth_answers")
            row["references"] = json.dumps(references, ensure_ascii=False)
        return row


def _align(record: Mapping, raw: RawStates, n_states: int) -> tuple[np.ndarray, Span]:
    """Return the ids of the tokens that have states, int32 `(T,)`, and what is known of them."""
    if raw.prompt_len is None:
        tokens = fields.integers(record, "tokens")
        span = Span.per_layer(n_states, len(tokens), _optional(record, "prompt_length"))
        return align_tokens(tokens, span), span
    span = Span.by_step(n_states, raw.prompt_len)
    n_kept, n_cut = _cut(record)
    check_cut(n_kept, span)
    if "tokens_full" not in record:
        return align_tokens(fields.integers(record, "tokens"), span), span
    tokens_or_none = fields.integers(record, "tokens") if "tokens" in record else None
    full = fields.integers(record, "tokens_full")
    return align_uncut_tokens(full, tokens_or_none, n_cut, span), span


def _cut(record: Mapping) -> tuple[int | None, int | None]:
    """Return the answer's tokens that were kept and that were cut off, None where not given.

    Without a cut the two numbers say nothing.
    """
    if record.get("cutoff_method") == "none":
        return None, None
    n_kept, n_cut = (_optional(record, key) for key in CUT_KEYS)
    if n_cut is not None and n_cut < 0:
        raise SchemaError(f"tokens_after_cutoff: expected no negative number, found {n_cut}")
    return n_kept, n_cut


def _optional(record: Mapping, key: str) -> int | None:
    return fields.integer(record, key) if key in record else None


def _token_texts(record: Mapping, span: Span) -> tuple[str, Span]:
    """Return a JSON list of T texts, and the span with the prompt's length if they tell it."""
    texts = fields.texts(record, "tokens_decoded")
    n_before = span.n_whole - len(texts)
    if span.prompt_len is None and 0 < n_before < span.n_whole:
        span = Span(span.n_states, span.n_whole, n_before)
    aligned = align_texts(texts, span)
    return json.dumps(aligned, ensure_ascii=False), span
