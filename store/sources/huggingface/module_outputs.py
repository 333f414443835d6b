"""Finds which modules of a model give its hidden states and attention maps, and watches them.

transformers collects states and maps until a pass is over, which takes memory for all layers at
once. Here each is handed over the moment its module returns it. A short pass tells which modules
these are: those whose outputs are the tensors that transformers collected, at the same place in
memory. So nothing is known by the name of an architecture, and what no module returns is taken from
transformers' own collection after the pass.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from store.errors import SchemaError

__all__ = [
    "PROBE",
    "Place",
    "Places",
    "Takes",
    "find_places",
    "once_a_model",
    "run_noted",
    "run_watched",
]

Asked = ParamSpec("Asked")
Found = TypeVar("Found")

Take = Callable[[Tensor], None]
# token ids of the short pass; of a length that no head has, so that states do not look like maps
PROBE = ((0, 1, 2),)
# of transformers: what else a pass is to return
STATES, MAPS = "output_hidden_states", "output_attentions"


class Place(NamedTuple):
    """Where a tensor comes from."""

    module: nn.Module
    call: int  # which of its calls in a pass: some models use one module in several layers
    position: int | None  # its position in a tuple of outputs; None where it is the only output


Note = Callable[[Place, Tensor, object], None]


@dataclass
class Places:
    """Where a model's hidden states and attention maps come from, as far as modules return them."""

    # by entry of transformers' `hidden_states`: 0 is the embedding, L the last layer
    states: dict[int, Place] = field(default_factory=dict)
    maps: dict[int, Place] = field(default_factory=dict)  # by entry of `attentions`, from 0


@dataclass
class Takes:
    """What is called with the states and attention maps of a pass, each entry as in `Places`."""

    # called with the states (B, T, d) of an entry, which they leave as they are
    states: defaultdict[int, list[Take]] = field(default_factory=lambda: defaultdict(list))
    # called with the maps (B, H, T, T) of an entry, which are theirs; with none they are dropped
    maps: defaultdict[int, list[Take]] = field(default_factory=lambda: defaultdict(list))
    # called with what comes from a place, which they leave as it is
    others: dict[Place, Take] = field(default_factory=dict)


def once_a_model(
    look: Callable[Concatenate[PreTrainedModel, Asked], Found],
) -> Callable[Concatenate[PreTrainedModel, Asked], Found]:
    """Look for something in a model once, and know it as long as the model lives."""
    found: WeakKeyDictionary[PreTrainedModel, dict[Any, Found]] = WeakKeyDictionary()

    @wraps(look)
    def find(model: PreTrainedModel, *args: Asked.args, **options: Asked.kwargs) -> Found:
        known = found.setdefault(model, {})
        asked = (args, tuple(options.items()))
        if asked not in known:
            known[asked] = look(model, *args, **options)
        return known[asked]

    return find


def run_noted(model: PreTrainedModel, note: Note, **asked: bool) -> Any:
    """Run the short pass, and hand over what each module is given and returns.

    `note`: called as each module returns, with the place of each tensor that it returns, with that
    tensor, and with the first of the module's inputs; None if it has none.

    Returns what the model returns.
    """
    calls: Counter[nn.Module] = Counter()

    def hand_over(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        given = inputs[0] if inputs else None
        for position, tensor in _tensors(output):
            note(Place(module, calls[module], position), tensor, given)
        calls[module] += 1

    ids = torch.tensor(PROBE, device=model.device) % model.config.get_text_config().vocab_size
    handles = [module.register_forward_hook(hand_over) for module in model.modules()]
    try:
        with torch.inference_mode():
            return model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                use_cache=False,
                output_hidden_states=True,
                **asked,
            )
    finally:
        for handle in handles:
            handle.remove()


@once_a_model
def find_places(model: PreTrainedModel, maps: bool) -> Places:
    """Find where the states come from, and with `maps` the attention maps.

    Raises SchemaError: a layer has no attention map, as in models that mix attention with other
    layers.
    """
    returned: list[tuple[Place, Tensor]] = []
    note: Note = lambda place, tensor, _: returned.append((place, tensor))  # noqa: E731
    out = run_noted(model, note, output_attentions=maps)
    places = Places()
    # of nested modules the outer one: what an inner one returned may be changed in place after it
    found = {_memory(tensor): place for place, tensor in returned}
    for entry, state in enumerate(out.hidden_states):
        if _memory(state) in found:
            places.states[entry] = found[_memory(state)]
    if maps:
        # the inner one: it hands over the map before anything outside it sees the map; but a module
        # that returns nothing beside it, as dropout does, comes before the map is used
        found = {
            _memory(tensor): place
            for place, tensor in reversed(returned)
            if place.position is not None
        }
        _check_maps(model, out.attentions)
        for entry, attention in enumerate(out.attentions):
            if _memory(attention) in found:
                places.maps[entry] = found[_memory(attention)]
    return places


def _memory(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Where the numbers of a tensor lie: equal for two that are the same, as long as both live."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _tensors(output: object) -> list[tuple[int | None, Tensor]]:
    """The tensors that a module returns, with their positions."""
    if isinstance(output, Tensor):
        return [(None, output)]
    if isinstance(output, tuple):
        return [(i, part) for i, part in enumerate(output) if isinstance(part, Tensor)]
    return []


def _check_maps(model: PreTrainedModel, maps: Any) -> None:
    """Raise SchemaError unless each layer has an attention map of all heads, and no other state."""
    config = model.config.get_text_config()
    n_layers, n_heads = config.num_hidden_layers, config.num_attention_heads
    n_maps = sum(attention is not None for attention in maps or ())
    if n_maps != n_layers or len(maps) != n_layers:
        raise SchemaError(
            f"columns: expected attention maps of {n_layers} layers, found {n_maps}; leave out the "
            "attn_ columns and icr"
        )
    expected = (len(PROBE), n_heads, len(PROBE[0]), len(PROBE[0]))
    for layer, attention in enumerate(maps, 1):
        if attention.shape != expected:
            raise SchemaError(
                f"columns: expected attention maps of {n_heads} heads, of shape {expected}, found "
                f"{tuple(attention.shape)} in layer {layer}; leave out the attn_ columns and icr"
            )


def run_watched(model: PreTrainedModel, takes: Takes, **inputs: object) -> Any:
    """Run a model, and hand over its states and maps as they come; none of these maps is kept.

    Returns what the model returns. Its states and maps are of no use. Raises SchemaError: a layer
    has no attention map, or the model does not run as it ran before.
    """
    if not takes.states and not takes.maps and not takes.others:
        return model(**inputs)
    wants_states, wants_maps = inputs.pop(STATES, False), inputs.pop(MAPS, False)
    places = find_places(model, maps=bool(takes.maps))
    watched: dict[Place, Callable[[Tensor], Tensor | None]] = {**takes.others}
    for entry, place in places.states.items():
        if entry in takes.states:
            watched[place] = partial(_hand_over, takes.states[entry])
    for entry, place in places.maps.items():
        watched[place] = partial(_take_map, takes.maps[entry])
    others = [entry for entry in takes.states if entry not in places.states]
    with _watch(watched) as missed:
        out = model(
            **inputs,
            **{STATES: bool(others or wants_states), MAPS: bool(takes.maps or wants_maps)},
        )
    if missed:
        raise SchemaError(
            f"model: expected the same modules in every pass of {type(model).__name__}, found "
            f"{len(missed)} that were not run"
        )
    for entry in others:
        _hand_over(takes.states[entry], out.hidden_states[entry])
    for entry in takes.maps.keys() - places.maps.keys():
        _hand_over(takes.maps[entry], out.attentions[entry])
    return out


def _hand_over(takes: Sequence[Take], values: Tensor) -> None:
    for take in takes:
        take(values)


def _take_map(takes: Sequence[Take], maps: Tensor) -> Tensor:
    """Hand over a map, and give nothing in its place."""
    _hand_over(takes, maps)
    return maps.new_empty(0)


@contextmanager
def _watch(takes: Mapping[Place, Callable[[Tensor], Tensor | None]]) -> Iterator[set[Place]]:
    """Hand over each tensor when its module returns it; yields the places that have not been met.

    What a callable returns stands in for the tensor from there on; None leaves it as it is.
    """
    missed = set(takes)
    calls: Counter[nn.Module] = Counter()

    def hand_over(module: nn.Module, _: object, output: object) -> Any:
        call = calls[module]
        calls[module] += 1
        for position, tensor in _tensors(output):
            place = Place(module, call, position)
            if place in missed:
                missed.remove(place)
                output = _with(output, position, takes[place](tensor))
        return output

    # first of all hooks: transformers' own, which collect the maps, get what stands in for them
    modules = {place.module for place in takes}
    handles = [module.register_forward_hook(hand_over, prepend=True) for module in modules]
    try:
        yield missed
    finally:
        for handle in handles:
            handle.remove()


def _with(output: Any, position: int | None, substitute: Tensor | None) -> Any:
    """The output of a module with one of its tensors replaced."""
    if substitute is None:
        return output
    if position is None:
        return substitute
    return (*output[:position], substitute, *output[position + 1 :])
