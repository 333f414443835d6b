"""Which sequences may go through a model together, and runs those that may not one after the other.

LongRoPE has one set of factors for short sequences and one for long ones, and transformers chooses
between them for a whole batch, by the longest of its sequences.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import TypeVar

from transformers import PreTrainedModel

__all__ = ["length_kinds", "run_apart"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_apart(
    run: Callable[[list[Item]], Sequence[Result]], items: Sequence[Item], kinds: Sequence[Hashable]
) -> list[Result]:
    """Run the items of one kind at a time, each of which has one result; keeps their order."""
    places = defaultdict(list)
    for place, kind in enumerate(kinds):
        places[kind].append(place)
    found: dict[int, Result] = {}
    for those in places.values():
        found |= zip(those, run([items[place] for place in those]), strict=True)
    return [found[place] for place in range(len(items))]


def length_kinds(model: PreTrainedModel, lengths: Sequence[int], n_new: int = 0) -> list[int]:
    """The kinds of sequences by their lengths, to which up to `n_new` tokens are added.

    They are short or long, or become long at a step that those of another length do not share.
    """
    limit = _longest_short(model)
    return [0 if n + n_new <= limit else -1 if n > limit else n for n in lengths]


def _longest_short(model: PreTrainedModel) -> float:
    """The longest sequence with the factors for short ones; infinite without LongRoPE."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    of_layers = [rope, *(one for one in rope.values() if isinstance(one, dict))]
    return min(
        (
            one["original_max_position_embeddings"]
            for one in of_layers
            if one.get("rope_type") == "longrope"
        ),
        default=inf,
    )
