"""What an extraction is asked for, checked against its model and its questions before it runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from store.errors import SchemaError
from store.format.schema import Column, Schema
from store.sources.huggingface.attention import EAGER, can_give_maps, implementation_of
from store.sources.huggingface.columns import build_schema, choose_columns, needs_maps
from store.sources.huggingface.decoding import Decoding
from store.sources.questions import Question
from store.traces.layers import choose_layers, parse_layers
from store.traces.trace_ids import number_trace

__all__ = [
    "Kept",
    "check_given",
    "check_ids",
    "check_model",
    "choose_kept",
    "layers_to_keep",
    "model_sizes",
    "with_label_columns",
]


class Kept(NamedTuple):
    """What is kept of a model's traces."""

    layers: list[int]
    top_k: int
    schema: Schema


def choose_kept(
    config: PreTrainedConfig,
    dtype: torch.dtype,
    *,
    layers: Sequence[int] | str | None,
    columns: Sequence[str] | None,
    top_k: int,
    label_columns: Mapping[str, Column],
) -> Kept:
    """Choose what is kept of the traces of a model.

    Parameters
    ----------
    dtype
        In which it runs: states of bfloat16 are kept as they are.

    Raises
    ------
    SchemaError, NotFoundError
        There is no such layer or column.
    """
    n_layers, n_heads, hidden_size = model_sizes(config, needs_maps(columns))
    chosen = layers_to_keep(layers, n_layers)
    n_candidates = min(top_k, config.vocab_size)
    state_dtype = "bfloat16" if dtype == torch.bfloat16 else "float16"
    every = build_schema(len(chosen), n_heads, hidden_size, n_candidates, state_dtype)
    schema = choose_columns(columns, with_label_columns(every, label_columns))
    return Kept(chosen, n_candidates, schema)


def model_sizes(config: PreTrainedConfig, wants_maps: bool) -> tuple[int, int, int]:
    """Layers, heads and hidden size; raises SchemaError for a model that has none."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None and wants_maps:
        raise SchemaError(
            "columns: expected a model with attention, found one without; leave out the attn_ "
            "columns"
        )
    try:
        return config.num_hidden_layers, heads or 1, config.hidden_size
    except AttributeError as error:
        raise SchemaError(
            f"model: expected num_hidden_layers and hidden_size in its config, found: {error}"
        ) from error


def layers_to_keep(layers: Sequence[int] | str | None, n_layers: int) -> list[int]:
    """The layers to keep, as the model numbers them; raises SchemaError unless they ascend."""
    every = list(range(1, n_layers + 1))
    if _asks_for_embedding(layers):
        every = [0, *every]
    if layers is None:
        chosen = every
    elif isinstance(layers, str):
        chosen = [every[i] for i in choose_layers(layers, every, "layers: the model")]
    else:
        chosen = list(layers)
    if not chosen or chosen != sorted(set(chosen).intersection(every)):
        raise SchemaError(
            f"layers: expected different ones from 1 to {n_layers}, ascending, found {chosen}"
        )
    return chosen


def _asks_for_embedding(layers: Sequence[int] | str | None) -> bool:
    """Whether 0 is named; a range without a beginning begins with layer 1."""
    if isinstance(layers, str):
        return any(0 in (wanted.first, wanted.last) for wanted in parse_layers(layers))
    return layers is not None and 0 in layers


def with_label_columns(schema: Schema, label_columns: Mapping[str, Column]) -> Schema:
    """The schema with the columns of several rules behind the column `label`."""
    columns: dict[str, Column] = {}
    for name, column in schema.columns.items():
        columns[name] = column
        if name == "label":
            columns |= label_columns
    return Schema(columns)


def check_model(model: PreTrainedModel, wants_maps: bool) -> None:
    """Raise ValueError for a model that would give no attention maps, or random values."""
    if wants_maps and not can_give_maps(model):
        raise ValueError(
            f"model: expected attn_implementation {EAGER!r}, or one that can be changed, found "
            f"{implementation_of(model)!r} of {type(model).__name__}; load it with that argument"
        )
    if model.training:
        raise ValueError("model: expected evaluation mode, found training mode; call model.eval()")


def check_ids(questions: Sequence[Question], n_samples: int) -> None:
    """Raise ValueError if two traces, numbered samples included, would share an id."""
    seen = set()
    for question in questions:
        for k in range(1, n_samples + 1):
            trace_id = question.get("trace_id") or number_trace(question["question_id"], k)
            if trace_id in seen:
                raise ValueError(
                    f"questions: expected different question_ids, found {trace_id!r} twice"
                )
            seen.add(trace_id)


def check_given(questions: Sequence[Question], decoding: Decoding) -> bool:
    """Whether the answers are given; raises ValueError if only some are, or others are wanted."""
    n_given = sum("response" in question for question in questions)
    if not n_given:
        return False
    if n_given < len(questions):
        raise ValueError(
            f"questions: expected responses to all {len(questions)} or to none, found {n_given}"
        )
    if decoding != Decoding():
        raise ValueError(
            "decoding: expected none, because the answers are given, found beams or samples; leave "
            "them out, or have the model answer (--generate)"
        )
    return True
