"""Runs whole traces through a model, and makes their columns while it runs.

Sequences are padded on the right: padding comes after every token of a trace, so a causal model
never attends to it, and the model counts positions as in a trace run alone. Only what a kept column
needs is computed. Each layer's states and attention maps are cast and reduced when the layer gives
them, so that memory is needed for one layer at a time, apart from the columns themselves.
"""

import inspect
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from store.sources.huggingface.attention_scores import ICR, IcrColumn
from store.sources.huggingface.batching import run_apart, share_factors
from store.sources.huggingface.collectors import (
    ATTENTION,
    STATES,
    AttentionColumns,
    HalfRangeError,
    Layout,
    StateColumns,
)
from store.sources.huggingface.generation import end_ids, pad
from store.sources.huggingface.module_outputs import Takes, run_watched
from store.sources.huggingface.predictions import (
    BEFORE_NORM,
    PREDICTIONS,
    LensColumns,
    find_additions,
    find_lens,
    prediction_columns,
)

__all__ = ["run_forward"]

Row = dict[str, Any]
Collector = StateColumns | AttentionColumns | LensColumns | IcrColumn

EMBEDDING = 0  # the number of the embedding among the layers
# column -> which of the two parts of a layer
ADDED = {"lens_entropy_attention": "attention", "lens_entropy_mlp": "mlp"}


def run_forward(
    model: PreTrainedModel,
    traces: Sequence[list[int]],
    prompt_lens: Sequence[int],
    layers: Sequence[int],
    top_k: int,
    columns: Collection[str],
    contexts: Sequence[tuple[int, int]] = (),
) -> list[Row | HalfRangeError]:
    """Run whole traces through the model, and make the columns that come from it.

    Where columns need maps, the model's implementation of attention has to be 'eager'.

    `layers`: layers to keep, ascending; 0 is the embedding. `columns`: the columns that are kept;
    those that do not come from the model are passed over. `contexts`: of each trace the first token
    of its context, and how many there are, (-1, 0) without one; of no trace if it is empty.

    Returns the columns of each trace, or why it has none: a state is beyond the range of its
    column. Raises SchemaError: the model cannot give a column.
    """
    contexts = contexts or [(-1, 0)] * len(traces)
    return run_apart(
        partial(_run_batch, model, layers, top_k, columns),
        list(zip(traces, prompt_lens, contexts, strict=True)),
        together=share_factors(model, list(map(len, traces))),
    )


def _run_batch(
    model: PreTrainedModel,
    layers: Sequence[int],
    top_k: int,
    columns: Collection[str],
    batch: Sequence[tuple[list[int], int, tuple[int, int]]],
) -> list[Row | HalfRangeError]:
    """The columns of each trace, which comes with the length of its prompt and its context."""
    traces, prompt_lens, contexts = zip(*batch, strict=True)
    layout = Layout(tuple(map(len, traces)), prompt_lens, contexts)
    collectors, takes = _collectors(model, layout, layers, columns)
    wants_predictions = not set(PREDICTIONS).isdisjoint(columns)
    if not collectors and not wants_predictions:
        return [{} for _ in traces]
    with torch.inference_mode():
        logits = _run(model, traces, takes, wants_predictions)
        parts: list[Sequence[Row | HalfRangeError]] = [collector.rows() for collector in collectors]
        if wants_predictions:
            parts.append(prediction_columns(logits, traces, top_k, end_ids(model), columns))
    return [_joined(of_trace) for of_trace in zip(*parts, strict=True)]


def _joined(parts: Sequence[Row | HalfRangeError]) -> Row | HalfRangeError:
    """All columns of a trace, or the error of one."""
    row: Row = {}
    for part in parts:
        if isinstance(part, HalfRangeError):
            return part
        row |= part
    return row


def _collectors(
    model: PreTrainedModel, layout: Layout, layers: Sequence[int], columns: Collection[str]
) -> tuple[list[Collector], Takes]:
    """What makes the columns of states and maps, and what is called with which layer's."""
    of_states: list[StateColumns | LensColumns] = []
    if not STATES.keys().isdisjoint(columns):
        of_states.append(StateColumns(layout, layers, model.dtype == torch.bfloat16, columns))
    if "lens_entropy" in columns:
        of_states.append(LensColumns(find_lens(model), layout, layers, "lens_entropy"))
    collectors: list[Collector] = [*of_states]
    takes = Takes()
    for collector in of_states:
        for number, layer in enumerate(layers):
            takes.states[layer].append(partial(collector.take, number))
    for name in ADDED.keys() & columns:
        added = LensColumns(find_lens(model), layout, [BEFORE_NORM] * len(layers), name)
        collectors.append(added)
        for number, layer in enumerate(layers):
            if layer != EMBEDDING:
                place = getattr(find_additions(model)[layer - 1], ADDED[name])
                takes.others[place] = partial(added.take, number)
    if not set(ATTENTION).isdisjoint(columns):
        config = model.config.get_text_config()
        for layer in range(config.num_hidden_layers):
            takes.maps[layer] = []  # those of layers that are not kept are dropped
        maps = AttentionColumns(layout, len(layers), config.num_attention_heads, columns)
        collectors.append(maps)
        for number, layer in enumerate(layers):
            if layer == EMBEDDING:
                maps.take_identity(number, model.device)
            else:
                takes.maps[layer - 1].append(partial(maps.take, number))
    if ICR in columns:
        icr = IcrColumn(layout.lengths, layers)
        icr.watch(takes)
        collectors.append(icr)
    return collectors, takes


def _run(
    model: PreTrainedModel, traces: Sequence[list[int]], takes: Takes, wants_predictions: bool
) -> Tensor:
    """One pass over padded traces; returns the logits (B, T, V), one token's unless wanted."""
    ids, mask = pad(traces, "right", 0, model.device)
    optional = {}
    if not wants_predictions and "logits_to_keep" in inspect.signature(model.forward).parameters:
        optional["logits_to_keep"] = 1  # (B, T, V) may well be the largest tensor of all
    out = run_watched(model, takes, input_ids=ids, attention_mask=mask, use_cache=False, **optional)
    logits: Tensor = out.logits
    return logits
