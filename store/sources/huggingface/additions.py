"""Finds what the two parts of each layer, attention and the feed-forward part, add to its states.

Nothing is known by the name of an architecture: a short pass tells which two outputs of modules, of
those between the states of two layers, have the difference of these states as their sum. Attention
is the one that is computed first. This holds for layers that run one part after the other, for
those that run both on the same states, and for those that normalise what they add. It does not hold
for layers that scale what they add, or have more than two parts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from store.errors import SchemaError
from store.sources.huggingface.module_outputs import (
    PROBE,
    Place,
    find_places,
    once_a_model,
    run_noted,
)

__all__ = ["Additions", "find_additions"]


class Additions(NamedTuple):
    """Where what a layer adds to the states comes from."""

    attention: Place
    mlp: Place


class Returned(NamedTuple):
    """What a module returned in the short pass, and its input: (T, d) float32 on the CPU."""

    place: Place
    output: Tensor
    given: Tensor | None


@once_a_model
def find_additions(model: PreTrainedModel) -> list[Additions]:
    """What each layer adds, from the first one on.

    Raises
    ------
    SchemaError
        The two parts of a layer are not found.
    """
    places = find_places(model, maps=False).states
    returned, states = _run_short(model)
    rows = {one.place: row for row, one in enumerate(returned)}
    ends = [rows.get(places[entry]) if entry in places else None for entry in range(len(states))]
    precision = torch.finfo(model.dtype)
    additions = []
    # the states of the embedding may come from no module
    begin = -1 if ends[0] is None else ends[0]
    for layer, end in enumerate(ends[1:], 1):
        if end is None:
            raise _not_found(model, layer, "no module returns its states")
        # transformers has the states of the last layer behind the final norm
        after = returned[end].given if layer == len(states) - 1 else states[layer]
        between = returned[begin + 1 : end]
        before = states[layer - 1]
        pairs = [] if after is None else _pairs_that_sum(between, before, after, precision)
        if len(pairs) != 1:
            raise _not_found(model, layer, f"{len(pairs)} pairs of outputs sum to what it adds")
        additions += pairs
        begin = end
    return additions


def _run_short(model: PreTrainedModel) -> tuple[list[Returned], list[Tensor]]:
    """All outputs of modules that have the shape of states, as they come; and the states."""
    config = model.config.get_text_config()
    shape = (len(PROBE[0]), config.hidden_size)
    returned: list[Returned] = []

    def as_states(value: object) -> Tensor | None:
        # some models flatten traces and tokens into one axis
        if not isinstance(value, Tensor) or value.numel() != shape[0] * shape[1]:
            return None
        return value.to("cpu", torch.float32, copy=True).reshape(shape)

    def note(place: Place, tensor: Tensor, given: object) -> None:
        states = as_states(tensor)
        if states is not None:
            returned.append(Returned(place, states, as_states(given)))

    out = run_noted(model, note)
    return returned, [state[0].float().cpu() for state in out.hidden_states]


def _pairs_that_sum(
    between: Sequence[Returned], before: Tensor, after: Tensor, precision: torch.finfo
) -> list[Additions]:
    """Pairs of different outputs whose sum is `after - before`, but for the model's rounding.

    Of equal outputs, as those of a module and of its last part, the first one.
    """
    distinct: list[Returned] = []
    for one in between:
        if not any(torch.equal(one.output, other.output) for other in distinct):
            distinct.append(one)
    return [
        Additions(first.place, second.place)
        for i, first in enumerate(distinct)
        for second in distinct[i + 1 :]
        if _is_sum(torch.stack([before, first.output, second.output]), after, precision)
    ]


def _is_sum(parts: Tensor, after: Tensor, precision: torch.finfo) -> bool:
    """Whether parts (3, T, d) sum to `after` (T, d), within twice what two sums are rounded by."""
    rounding = precision.eps * (parts.abs().sum(dim=0) + after.abs()) + precision.tiny
    return bool(((parts.sum(dim=0) - after).abs() <= rounding).all())


def _not_found(model: PreTrainedModel, layer: int, reason: str) -> SchemaError:
    return SchemaError(
        "columns: lens_entropy_attention, lens_entropy_mlp: expected layers whose attention and "
        f"feed-forward outputs add up to what they add, found {type(model).__name__}: layer "
        f"{layer}: {reason}; leave the columns out"
    )
