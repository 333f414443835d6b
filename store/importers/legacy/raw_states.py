"""States and attention maps of one raw record, whether they lie per layer or by step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from store.errors import SchemaError
from store.importers.legacy import fields

__all__ = ["RawStates", "is_by_step", "read_states"]


@dataclass(frozen=True)
class RawStates:
    """What the model computed for one record, of the first beam.

    Attributes
    ----------
    states
        `(T, d)` for each layer.
    maps
        Attention `(H, T, T)` for each layer.
    prompt_len
        Tokens of the first step, which took the whole prompt; None for arrays per layer.
    """

    states: list[np.ndarray]
    maps: list[np.ndarray]
    prompt_len: int | None


def is_by_step(record: Mapping) -> bool:
    """Return whether each layer is a list of arrays, one for each step of the generation."""
    layers = record["hidden_states"]
    first = layers[0] if isinstance(layers, list | tuple) and layers else None
    return isinstance(first, list | tuple)


def read_states(record: Mapping, max_bytes: int) -> RawStates:
    """Return the arrays of a record; raise SchemaError if they contradict each other.

    Parameters
    ----------
    max_bytes
        Most bytes of all arrays: one array, repeated by reference, would fill the memory.
    """
    if is_by_step(record):
        return _joined_steps(record, max_bytes)
    states = _arrays(record, "hidden_states", 2)
    maps = _arrays(record, "attentions", 3)
    _check_size(chain(states, maps), max_bytes)
    return RawStates(states, maps, None)


def _joined_steps(record: Mapping, max_bytes: int) -> RawStates:
    states_by_step = _first_beams(record, "hidden_states", 3)
    maps_by_step = _first_beams(record, "attentions", 4)
    steps_of_layers = chain(states_by_step, maps_by_step)
    _check_size(chain.from_iterable(steps_of_layers), max_bytes)
    prompt_len = states_by_step[0][0].shape[0]
    _check_steps(record, states_by_step, maps_by_step, prompt_len)
    states = [np.concatenate(steps) for steps in states_by_step]
    n_tokens = len(states[0])
    maps = [_joined_map(steps, n_tokens) for steps in maps_by_step]
    return RawStates(states, maps, prompt_len)


def _check_steps(
    record: Mapping,
    states_by_step: list[list[np.ndarray]],
    maps_by_step: list[list[np.ndarray]],
    prompt_len: int,
) -> None:
    """Raise SchemaError unless the first step takes the prompt, and each later one a token."""
    prompts = {
        "hidden_states": prompt_len,
        "attentions": maps_by_step[0][0].shape[1],
    }
    said = prompt_len
    if "prompt_length" in record:
        said = fields.integer(record, "prompt_length")
    for key, expected in prompts.items():
        if said != expected:
            raise SchemaError(
                f"prompt_length: expected {expected} as in the first step of {key}, found {said}"
            )
    if not prompt_len:
        raise SchemaError("hidden_states: expected a prompt in the first step, found no token")
    for layer in states_by_step:
        n_tokens = [len(step) for step in layer]
        if n_tokens[0] != prompt_len or any(n != 1 for n in n_tokens[1:]):
            raise SchemaError(
                f"hidden_states: expected {prompt_len} tokens in the first step and one in each "
                f"later one, found {n_tokens[:8]}"
            )


def _layers(record: Mapping, key: str) -> Sequence:
    return fields.parts(fields.value(record, key), key, "an array for each layer")


def _arrays(record: Mapping, key: str, ndim: int) -> list[np.ndarray]:
    return [fields.floats(layer, key, ndim) for layer in _layers(record, key)]


def _check_size(arrays: Iterable[np.ndarray], max_bytes: int) -> None:
    n_bytes = sum(array.nbytes for array in arrays)
    if n_bytes > max_bytes:
        raise SchemaError(
            f"hidden_states and attentions: expected at most {max_bytes} bytes, "
            f"found {n_bytes} (see --max-file-gb)"
        )


def _first_beams(record: Mapping, key: str, ndim: int) -> list[list[np.ndarray]]:
    """Return the first beam of each step of each layer."""
    layers = []
    for layer in _layers(record, key):
        steps = fields.parts(layer, key, "an array for each step")
        beams = [fields.floats(step, key, ndim) for step in steps]
        if not all(map(len, beams)):
            raise SchemaError(f"{key}: expected a beam at least, found none")
        layers.append([step[0] for step in beams])
    return layers


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
        if step.shape[0] != n_heads or step.shape[2] != end or step.dtype != joined.dtype:
            raise SchemaError(
                f"attentions: expected {n_heads} heads that see {end} tokens of {n_tokens}, "
                f"in {joined.dtype}, found shape {step.shape} of {step.dtype}"
            )
        joined[:, start:end, :end] = step
        start = end
    return joined
