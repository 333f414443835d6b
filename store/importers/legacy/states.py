"""States and attention maps of a trace: read from a raw record, and made into columns.

In a record they lie per layer or by step. Axes: L layers, H heads, T tokens, d hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from store.errors import SchemaError
from store.importers.legacy import fields
from store.importers.source import Row

__all__ = ["RawStates", "attention_columns", "is_by_step", "read_states", "state_columns"]


class RawStates(NamedTuple):
    """What the model computed for one record, of the first beam."""

    states: list[np.ndarray]  # (T, d) for each layer that has attention maps
    maps: list[np.ndarray]  # attention (H, T, T) for each layer
    prompt_len: int | None  # of the first step, which took the prompt; None for arrays per layer


def is_by_step(record: Mapping) -> bool:
    """Return whether each layer is a list of arrays, one for each step of the generation."""
    layers = record["hidden_states"]
    first = layers[0] if isinstance(layers, list | tuple) and layers else None
    return isinstance(first, list | tuple)


def read_states(record: Mapping) -> RawStates:
    """Return the arrays of a record; raise SchemaError if they contradict each other.

    The output of the embedding, which transformers gives before that of the first layer, is left
    out.
    """
    prompt_len = None
    if is_by_step(record):
        states, prompt_len = _joined_states(record)
        n_tokens = len(states[0])
        layers = _steps(record, "attentions", 4)
        _check_prompt(layers[0][0].shape[1], prompt_len)
        maps = [_joined_map(steps, n_tokens) for steps in layers]
    else:
        states = _arrays(record, "hidden_states", 2)
        maps = _arrays(record, "attentions", 3)
    n_layers = len(maps)
    if len(states) not in (n_layers, n_layers + 1):
        raise SchemaError(
            f"hidden_states: expected states of the {n_layers} layers of attentions, "
            f"or one more before them, the embedding's, found {len(states)}"
        )
    return RawStates(states[-n_layers:], maps, prompt_len)


def _layers(record: Mapping, key: str) -> Sequence:
    return fields.parts(fields.value(record, key), key, "an array for each layer")


def _arrays(record: Mapping, key: str, ndim: int) -> list[np.ndarray]:
    return [fields.floats(layer, key, ndim) for layer in _layers(record, key)]


def _steps(record: Mapping, key: str, ndim: int) -> list[list[np.ndarray]]:
    """Return the first beam of each step of each layer."""
    layers = []
    for layer in _layers(record, key):
        steps = fields.parts(layer, key, "an array for each step")
        beams = [fields.floats(step, key, ndim) for step in steps]
        if not all(map(len, beams)):
            raise SchemaError(f"{key}: expected a beam at least, found none")
        layers.append([step[0] for step in beams])
    return layers


def _joined_states(record: Mapping) -> tuple[list[np.ndarray], int]:
    """Return `(T, d)` of each layer, and the length of the prompt, which the first step took."""
    layers = _steps(record, "hidden_states", 3)
    prompt_len = len(layers[0][0])
    said = fields.optional_integer(record, "prompt_length")
    if said not in (None, prompt_len):
        raise SchemaError(
            f"prompt_length: expected {prompt_len} as in the first step of hidden_states, "
            f"found {said}"
        )
    for steps in layers:
        n_tokens = [len(step) for step in steps]
        if not prompt_len or n_tokens != [prompt_len, *[1] * (len(steps) - 1)]:
            raise SchemaError(
                f"hidden_states: expected the {prompt_len or 1} tokens of the prompt in the first "
                f"step and one in each later one, found {n_tokens[:8]}"
            )
    return [np.concatenate(steps) for steps in layers], prompt_len


def _check_prompt(of_maps: int, prompt_len: int) -> None:
    """Raise SchemaError unless maps and states say the same of the prompt."""
    if of_maps != prompt_len:
        raise SchemaError(
            f"attentions: expected the {prompt_len} tokens of the prompt in the first step, as in "
            f"that of hidden_states, found {of_maps}"
        )


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


def state_columns(states: list[np.ndarray]) -> Row:
    """Return hidden_states `(T, L, d)` and hs_last `(L, d)` of `(T, d)` for each layer."""
    first = states[0]
    for layer in states:
        if layer.shape != first.shape or layer.dtype != first.dtype:
            raise SchemaError(
                f"hidden_states: expected shape {first.shape} of {first.dtype} in every layer, "
                f"one row a token, found {layer.shape} of {layer.dtype}"
            )
    if not first.size:
        raise SchemaError(
            f"hidden_states: expected numbers for one token at least, found shape {first.shape}"
        )
    hidden = np.stack(states, axis=1)
    return {"hs_last": hidden[-1], "hidden_states": hidden}


def attention_columns(raw: RawStates, prompt_len: int | None, keep: bool) -> Row:
    """Return the reductions of the maps of each layer, and with `keep` the maps themselves.

    One layer after the other is reduced in float32 and cast to float16.
    """
    n_heads = len(raw.maps[0])
    n_tokens = len(raw.states[0])
    shape = (n_heads, n_tokens, n_tokens)
    if not n_heads:
        raise SchemaError("attentions: expected one head at least, found none")
    for layer in raw.maps:
        if layer.shape != shape:
            raise SchemaError(
                f"attentions: expected shape {shape} in every layer, found {layer.shape}"
            )
    reduced = [_reduce(layer, prompt_len) for layer in raw.maps]
    columns: Row = {}
    for name in reduced[0]:
        layers = [layer[name] for layer in reduced]
        columns[name] = np.concatenate(layers, axis=1)
    if keep:
        squares = np.stack(raw.maps).transpose(2, 3, 0, 1)  # (T, T, L, H)
        columns["attentions"] = squares.reshape(-1, len(raw.maps), n_heads)
    return columns


def _reduce(layer: np.ndarray, prompt_len: int | None) -> dict[str, np.ndarray]:
    """Return the columns of the maps `(H, T, T)` of one layer, in float16."""
    maps = layer.astype(np.float32)
    by_head = {
        "attn_diag": maps.diagonal(axis1=1, axis2=2),
        "attn_colsum": np.tril(maps).sum(axis=1),
    }
    if prompt_len is not None:
        by_head["attn_pmass"] = maps[..., :prompt_len].sum(axis=2)
    columns = {name: values.T[:, None] for name, values in by_head.items()}  # (T, 1, H)
    triangle = np.tril_indices(maps.shape[1])
    columns["attn_mean"] = maps.mean(axis=0)[triangle][:, None]  # (pairs, 1)
    return {name: values.astype(np.float16) for name, values in columns.items()}
