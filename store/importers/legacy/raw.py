"""Raw traces: a list of dicts with `hidden_states` and `attentions`, of six generations.

The letters of the generations are those of `docs/import.md`. What decides is how the arrays lie and
how many tokens stand beside how many states; keys tell apart only what is aligned alike, and what a
file calls itself is never asked. A record that contradicts itself, or that is of another generation
than most of its file, is an error with its reason.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from store.errors import SchemaError
from store.importers.damage import DAMAGE
from store.importers.legacy import fields
from store.importers.legacy.alignment import Span
from store.importers.legacy.states import (
    RawStates,
    attention_columns,
    is_by_step,
    read_states,
    state_columns,
)
from store.importers.source import Row

__all__ = ["UNCLEAR", "WITHOUT_IDS", "RawTraces", "belongs_to"]

UNCLEAR = "unclear"  # of a file: no record of it can be aligned
WITHOUT_IDS = " without ids"  # the end of a kind whose records are known by their position
ID_KEYS = ("question_id", "global_example_id")  # example_id is that of a batch: others have it too
ANSWER_KEYS = ("generated_answer_clean", "generated_answer")
WITH_QUESTIONS = ("raw A", "raw B", "raw C")
CUT_KEYS = ("tokens_full", "cutoff_method", "tokens_before_cutoff", "tokens_after_cutoff")
NUMBERED_KEYS = ("question", "prompt_length", "global_example_id")  # of generation C

T = TypeVar("T")
U = TypeVar("U")


def belongs_to(kind: str, imported: str) -> bool:
    """Return whether files of a kind go into the store of another.

    The extractor began to write ids at some time: its later files may follow those without.
    """
    return imported in (kind, kind + WITHOUT_IDS)


class Sizes(NamedTuple):
    """What the records of one model have in common."""

    n_layers: tuple[int, int]  # of hidden_states and of attentions
    hidden: int
    dtype: str


class Facts(NamedTuple):
    """What a record shows of itself; each is None where its parts do not fit together."""

    generation: str | None  # "raw A" to "raw F"
    sizes: Sizes | None

    @classmethod
    def of(cls, record: object) -> "Facts":
        """Return what a record shows, whatever it is."""
        return cls(_attempt(_generation_of, record), _attempt(_sizes_of, record))


def _attempt(function: Callable[[Any], T], record: Any) -> T | None:
    try:
        return function(record)
    except DAMAGE:
        return None


def _generation_of(record: Mapping) -> str | None:
    return _by_step(record) if is_by_step(record) else _per_layer(record)


def _by_step(record: Mapping) -> str | None:
    steps = [np.shape(step) for step in record["hidden_states"][0]]
    prompt_len = steps[0][1]
    n_states = sum(shape[1] for shape in steps)
    n_tokens = len(fields.integers(record, "tokens"))
    if n_tokens == n_states + 1:
        is_cut = not record.keys().isdisjoint(CUT_KEYS)
        return "raw B" if is_cut else "raw A"
    if n_tokens != n_states + 1 - prompt_len:
        return None
    return "raw D" if record.keys().isdisjoint(NUMBERED_KEYS) else "raw C"


def _per_layer(record: Mapping) -> str | None:
    n_states, _ = np.shape(record["hidden_states"][0])
    n_tokens = len(fields.integers(record, "tokens"))
    if n_tokens < n_states:
        return "raw E" if n_tokens else None
    if n_tokens > n_states:
        return None
    return "raw F"


def _sizes_of(record: Mapping) -> Sizes | None:
    """Return the sizes of a record, by its first array; None if its layers do not fit."""
    states = record["hidden_states"]
    array = states[0][0] if is_by_step(record) else states[0]
    n_layers = len(states), len(record["attentions"])
    n_more = n_layers[0] - n_layers[1]
    if n_more not in (0, 1):  # 1: the embedding's
        return None
    return Sizes(n_layers, array.shape[-1], str(array.dtype))


def _most_common(items: Iterable[T | None], default: U) -> T | U:
    """Return the item that is there most often, the first one of equals; None does not count."""
    counts = Counter(item for item in items if item is not None)
    return max(counts, key=counts.__getitem__, default=default)


@dataclass
class RawTraces:
    """The records of one file, as they were read; one of them may contradict itself."""

    records: list
    keep_attention: bool  # whether the rows hold the full attention maps

    def __post_init__(self) -> None:
        self._facts = list(map(Facts.of, self.records))
        self._generation = _most_common((one.generation for one in self._facts), UNCLEAR)
        self._common_sizes = _most_common((one.sizes for one in self._facts), None)
        own = [i for i, one in enumerate(self._facts) if one.generation == self._generation]
        # what a record of the file may be expected to have: some other has it
        self._keys = frozenset(chain.from_iterable(self.records[i] for i in own))
        id_keys = (name for i in own for name in ID_KEYS if name in self.records[i])
        self._id_key = _most_common(id_keys, None)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def kind(self) -> str:
        """Return the generation of most records, such as "raw B" or "raw A without ids".

        "empty" without records, "unclear" if none of them can be aligned.
        """
        if not self.records:
            return "empty"
        if self._generation == UNCLEAR or self._id_key:
            return self._generation
        return self._generation + WITHOUT_IDS

    @property
    def typical_first(self) -> list[int]:
        """The numbers of all records, first those that have the sizes of most."""
        return sorted(range(len(self)), key=lambda i: self._facts[i].sizes != self._common_sizes)

    def row(self, i: int) -> Row:
        """Return the columns of record i; raise SchemaError if it contradicts itself.

        The question_id is None if the file has no ids.
        """
        record = self.records[i]
        self._check_record(record, i)
        raw = read_states(record)
        n_states = len(raw.states[0])
        tokens, span = _align(record, raw, n_states)
        row: Row = {"question_id": self._question_id(record), "tokens": tokens}
        row |= self._texts(record)
        if "tokens_decoded" in self._keys:
            row["token_texts"] = _token_texts(record, span)
        if span.prompt_len is not None:
            row["prompt_len"] = np.int32(span.prompt_len)
            row["answer_len"] = np.int32(n_states - span.prompt_len)
        row |= state_columns(raw.states)
        row |= attention_columns(raw, span.prompt_len, self.keep_attention)
        if self._facts[i].generation is None:  # of whatever a row could be made
            raise SchemaError("expected tokens that belong to the states, found others")
        return row

    def _check_record(self, record: object, i: int) -> None:
        """Raise SchemaError for what is no record, or not like most of its file."""
        if not isinstance(record, Mapping):
            raise SchemaError(f"expected a dict, found {type(record).__name__}")
        facts = self._facts[i]
        if facts.generation not in (None, self._generation):
            raise SchemaError(
                f"expected a record of generation {self._generation} like most of its file, "
                f"found one of {facts.generation}; put such records into a file of their own"
            )
        common = self._common_sizes  # which layers are missing cannot be known
        if facts.sizes and common and facts.sizes.n_layers != common.n_layers:
            raise SchemaError(
                "expected {} layers of hidden_states and {} of attentions like most of its file, "
                "found {} and {}".format(*common.n_layers, *facts.sizes.n_layers)
            )

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
        return span.align_tokens(tokens), span
    span = Span.by_step(n_states, raw.prompt_len)
    if record.get("cutoff_method") != "none":  # without a cut the number says nothing
        span.check_cut(_optional(record, "tokens_before_cutoff"))
    return span.align_tokens(fields.integers(record, "tokens")), span


def _optional(record: Mapping, key: str) -> int | None:
    return fields.integer(record, key) if key in record else None


def _token_texts(record: Mapping, span: Span) -> str:
    """Return a JSON list of T texts: one of each token that has an id, empty ones of others."""
    texts = fields.texts(record, "tokens_decoded")
    n_tokens = len(fields.integers(record, "tokens"))
    if len(texts) != n_tokens:
        raise SchemaError(
            f"tokens_decoded: expected a text of each of {n_tokens} tokens, found {len(texts)}"
        )
    return json.dumps(span.align_texts(texts), ensure_ascii=False)
