"""Raw traces: a list of dicts with `hidden_states` and `attentions`, of six generations.

The letters of the generations are those of `docs/import.md`. What decides is how the arrays lie and
how many tokens stand beside how many states; keys tell apart only what is aligned alike, and what a
file calls itself is never asked. A record holds T states, and the tokens of the whole sequence or
of the answer alone:

==========  =========================  ==========================================================
states      whole sequence             answer alone
==========  =========================  ==========================================================
by step     T + 1 tokens (A, B)        T - P + 1 tokens, P tokens in the first step (C, D)
per layer   T tokens (F)               fewer than T, the last ones (E)
==========  =========================  ==========================================================

By step the last token that was kept never went into the model, so it has no state. A record that
contradicts itself, or that is not like most of its file, is an error with its reason.
"""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from store.errors import SchemaError
from store.importers.damage import DAMAGE
from store.importers.legacy import fields
from store.importers.legacy.states import (
    RawStates,
    attention_columns,
    is_by_step,
    read_states,
    state_columns,
)
from store.importers.source import Row

__all__ = ["UNCLEAR", "WITHOUT_IDS", "RawTraces"]

UNCLEAR = "unclear"  # of a file: no record of it can be aligned
WITHOUT_IDS = " without ids"  # the end of a kind whose records are known by their position
UNKNOWN = -1  # the id of a token that the file does not hold
ID_KEYS = ("question_id", "global_example_id")  # example_id is that of a batch: others have it too
ANSWER_KEYS = ("generated_answer_clean", "generated_answer")
WITH_QUESTIONS = ("raw A", "raw B", "raw C")
CUT_KEYS = ("tokens_full", "cutoff_method", "tokens_before_cutoff", "tokens_after_cutoff")
NUMBERED_KEYS = ("question", "prompt_length", "global_example_id")  # of generation C


class Likeness(NamedTuple):
    """What the records of one file have in common."""

    generation: str  # "raw A" to "raw F"
    n_states: int  # layers of hidden_states
    n_maps: int  # layers of attentions
    hidden: int
    dtype: str

    @property
    def layout(self) -> tuple[str, int, int]:
        """What no record may have otherwise; sizes and dtype are for the columns to judge."""
        return self.generation, self.n_states, self.n_maps

    def __str__(self) -> str:
        return (
            f"{self.generation}, {self.n_states} layers of hidden_states and {self.n_maps} of "
            "attentions"
        )


def _likeness(record: object) -> Likeness | None:
    """Return what a record, whatever it is, shows of itself; None if its parts do not fit."""
    try:
        return _likeness_of(record)  # type: ignore[arg-type]  # what is no record is damaged
    except DAMAGE:
        return None


def _likeness_of(record: Mapping) -> Likeness | None:
    states = record["hidden_states"]
    steps = states[0] if is_by_step(record) else [states[0]]
    n_states = sum(np.shape(step)[-2] for step in steps)
    n_tokens = len(fields.integers(record, "tokens"))
    if is_by_step(record):
        generation = _by_step(record, n_tokens, n_states + 1, np.shape(steps[0])[1])
    else:
        generation = _per_layer(n_tokens, n_states)
    n_maps = len(record["attentions"])
    has_embedding = len(states) == n_maps + 1
    if generation is None or not (has_embedding or len(states) == n_maps):
        return None
    first = fields.array(steps[0])  # a step may be lists of numbers
    return Likeness(generation, len(states), n_maps, first.shape[-1], str(first.dtype))


def _by_step(record: Mapping, n_tokens: int, n_whole: int, prompt_len: int) -> str | None:
    keys = record.keys()
    if n_tokens == n_whole:
        return "raw A" if keys.isdisjoint(CUT_KEYS) else "raw B"
    if n_tokens == n_whole - prompt_len:
        return "raw D" if keys.isdisjoint(NUMBERED_KEYS) else "raw C"
    return None


def _per_layer(n_tokens: int, n_states: int) -> str | None:
    if n_tokens == n_states:
        return "raw F"
    return "raw E" if 0 < n_tokens < n_states else None


class RawTraces:
    """The records of one file, as they were read; some of them may contradict themselves.

    With `keep_attention` the rows hold the full attention maps.
    """

    def __init__(self, records: list, keep_attention: bool) -> None:
        self.records = records
        self._keep_attention = keep_attention
        self._likenesses = list(map(_likeness, records))
        counts = Counter(one for one in self._likenesses if one is not None)
        self._common = max(counts, key=counts.__getitem__, default=None)
        layout = self._common and self._common.layout
        own = [records[i] for i, one in enumerate(self._likenesses) if one and one.layout == layout]
        # what a record of the file may be expected to have: some other has it
        self._keys = frozenset(chain.from_iterable(own))
        id_keys = Counter(key for record in own for key in ID_KEYS if key in record)
        self._id_key = max(id_keys, key=id_keys.__getitem__, default=None)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def kind(self) -> str:
        """Return the generation of most records, such as "raw B" or "raw A without ids".

        "empty" without records, "unclear" if none of them can be aligned.
        """
        if self._common is None:
            return UNCLEAR if self.records else "empty"
        return self._common.generation + ("" if self._id_key else WITHOUT_IDS)

    @property
    def typical_first(self) -> list[int]:
        """The numbers of all records, first those that are like most."""
        return sorted(range(len(self)), key=lambda i: self._likenesses[i] != self._common)

    def row(self, i: int) -> Row:
        """Return the columns of record i; raise SchemaError if it contradicts itself.

        The question_id is None if the file has no ids.
        """
        record = self.records[i]
        if not isinstance(record, Mapping):
            raise SchemaError(f"expected a dict, found {type(record).__name__}")
        likeness = self._likenesses[i]
        if likeness and self._common and likeness.layout != self._common.layout:
            raise SchemaError(
                f"expected a record like most of its file, {self._common}, found {likeness}"
            )
        raw = read_states(record)
        n_states = len(raw.states[0])
        tokens, start, prompt_len = _align(record, raw)
        unknown = np.full(start, UNKNOWN, np.int32)
        ids = np.concatenate([unknown, tokens])
        row: Row = {"question_id": self._question_id(record), "tokens": ids[:n_states]}
        row |= self._texts(record)
        if "tokens_decoded" in self._keys:
            texts = [*[""] * start, *_token_texts(record, len(tokens))]
            row["token_texts"] = json.dumps(texts[:n_states], ensure_ascii=False)
        if prompt_len is not None:
            row["prompt_len"] = np.int32(prompt_len)
            row["answer_len"] = np.int32(n_states - prompt_len)
        row |= state_columns(raw.states)
        row |= attention_columns(raw, prompt_len, self._keep_attention)
        if likeness is None:  # of whatever a row could be made
            raise SchemaError("expected tokens that belong to the states, found others")
        return row

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
        has_questions = self.kind.startswith(WITH_QUESTIONS)
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


def _align(record: Mapping, raw: RawStates) -> tuple[np.ndarray, int, int | None]:
    """Return the tokens of a record, the position of the first one, and the prompt's length.

    That is None where nothing says it. No beginning is guessed: raises SchemaError.
    """
    tokens = fields.integers(record, "tokens")
    n_states = len(raw.states[0])
    if raw.prompt_len is None:
        said = fields.optional_integer(record, "prompt_length")
        start = _start_per_layer(len(tokens), n_states, said)
        return tokens, start, start or said
    n_answer = n_states + 1 - raw.prompt_len
    starts = {n_states + 1: 0, n_answer: raw.prompt_len}
    if len(tokens) not in starts:
        raise SchemaError(
            f"tokens: expected {n_states + 1} of the whole sequence, or {n_answer} of the answer "
            f"alone, for {n_states} in hidden_states, found {len(tokens)}"
        )
    n_kept = fields.optional_integer(record, "tokens_before_cutoff")
    # without a cut the number says nothing
    if record.get("cutoff_method") != "none" and n_kept not in (None, n_answer):
        raise SchemaError(
            f"tokens_before_cutoff: expected {n_answer}, the answer's tokens of {n_states} in "
            f"hidden_states, found {n_kept}"
        )
    return tokens, starts[len(tokens)], raw.prompt_len


def _start_per_layer(n_tokens: int, n_states: int, said: int | None) -> int:
    """Return the position of the first token; `said` is the prompt's length by the record."""
    start = n_states - n_tokens
    if not 0 < n_tokens <= n_states:
        raise SchemaError(
            f"tokens: expected {n_states} as hidden_states has, or fewer of the answer alone, "
            f"found {n_tokens}"
        )
    if start and said not in (None, start):
        raise SchemaError(
            f"prompt_length: expected {start}, the {n_states} states before the {n_tokens} tokens "
            f"of the answer, found {said}"
        )
    if said is not None and not 0 < said <= n_states:
        raise SchemaError(f"prompt_length: expected 1 to {n_states}, found {said}")
    return start


def _token_texts(record: Mapping, n_tokens: int) -> list[str]:
    texts = fields.texts(record, "tokens_decoded")
    if len(texts) != n_tokens:
        raise SchemaError(
            f"tokens_decoded: expected a text of each of {n_tokens} tokens, found {len(texts)}"
        )
    return texts
