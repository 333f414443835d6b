"""Which generation of the extractor wrote a raw record.

The letters are those of `docs/import.md`. What decides is how the arrays lie and how many tokens
stand beside how many states; keys tell apart only what is aligned alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from store.importers.damage import DAMAGE
from store.importers.legacy import fields
from store.importers.legacy.raw_states import is_by_step

__all__ = [
    "CUT_KEYS",
    "UNCLEAR",
    "WITHOUT_IDS",
    "Sizes",
    "belongs_to",
    "has_text_of_each_token",
    "keys_of",
    "measure",
    "most_common",
    "name_generation",
]

UNCLEAR = "unclear"  # of a file: no record of it can be aligned
WITHOUT_IDS = " without ids"  # the end of a kind whose records are known by their position

T = TypeVar("T")
U = TypeVar("U")

CUT_KEYS = ("tokens_before_cutoff", "tokens_after_cutoff")


def belongs_to(kind: str, imported: str) -> bool:
    """Return whether files of a kind go into the store of another.

    The extractor began to write ids at some time: its later files may follow those without.
    """
    return imported in (kind, kind + WITHOUT_IDS)


def name_generation(record: Any) -> str | None:
    """Return "raw A" to "raw F", None for a record whose tokens cannot belong to its states."""
    try:
        return _by_step(record) if is_by_step(record) else _per_layer(record)
    except DAMAGE:
        return None


def _by_step(record: Mapping) -> str | None:
    steps = [np.shape(step) for step in record["hidden_states"][0]]
    prompt_len = steps[0][1]
    n_states = sum(shape[1] for shape in steps)
    if "tokens_full" in record:
        return "raw B"
    n_tokens = _count_tokens(record)
    if n_tokens == n_states + 1:
        return "raw B" if _is_cut(record) else "raw A"
    if n_tokens != n_states + 1 - prompt_len:
        return None
    is_numbered = not {"question", "prompt_length", "global_example_id"}.isdisjoint(record)
    return "raw C" if is_numbered else "raw D"


def _count_tokens(record: Mapping) -> int:
    return len(fields.integers(record, "tokens"))


def _is_cut(record: Mapping) -> bool:
    return not {"cutoff_method", *CUT_KEYS}.isdisjoint(record)


def _per_layer(record: Mapping) -> str | None:
    n_states, _ = np.shape(record["hidden_states"][0])
    n_tokens = _count_tokens(record)
    if n_tokens < n_states:
        return "raw E" if n_tokens else None
    if n_tokens > n_states:
        return None
    n_texts = (
        len(fields.texts(record, "tokens_decoded")) if "tokens_decoded" in record else n_states
    )
    is_prompt_known = "prompt_length" in record or n_texts < n_states
    return "raw F with prompt lengths" if is_prompt_known else "raw F"


class Sizes(NamedTuple):
    """What the records of one model have in common."""

    n_layers: tuple[int, int]  # of hidden_states and of attentions
    hidden: int
    dtype: str


def measure(record: Any) -> Sizes | None:
    """Return the sizes of a record, by its first array; None if its layers do not fit."""
    try:
        states = record["hidden_states"]
        array = states[0][0] if is_by_step(record) else states[0]
        n_layers = len(states), len(record["attentions"])
        sizes = Sizes(n_layers, array.shape[-1], str(array.dtype).removeprefix("torch."))
    except DAMAGE:
        return None
    n_more = n_layers[0] - n_layers[1]
    return sizes if n_more in (0, 1) else None  # 1: the embedding's


def has_text_of_each_token(record: Any) -> bool | None:
    """Return whether a record has a text for each id that it holds; None without texts.

    The others of an extractor's version have texts of the same part: a list that happens to have
    the length of another part is damaged.
    """
    try:
        return len(record["tokens_decoded"]) == len(record["tokens"])
    except DAMAGE:
        return None


def most_common(items: Sequence[T], default: U) -> T | U:
    """Return the item that is there most often, the first one of equals."""
    counts = Counter(items)
    return max(counts, key=counts.__getitem__, default=default)


def keys_of(records: Sequence[Mapping]) -> frozenset[str]:
    """Return the keys that some of the records have."""
    return frozenset(chain.from_iterable(records))
