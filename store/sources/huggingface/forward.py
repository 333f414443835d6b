"""Runs whole traces through a model: hidden states, attention maps and predictions in one pass.

Sequences are padded on the right: padding comes after every token of a trace, so a causal model
never attends to it, and positions count from 0 as in a trace run alone. Only what a kept column
needs is computed.
"""

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from store.sources.huggingface.columns import ATTENTION, PREDICTIONS, STATES, ForwardOutput
from store.sources.huggingface.padding import pad

__all__ = ["run_forward"]


def run_forward(
    model: PreTrainedModel, traces: Sequence[list[int]], columns: Collection[str]
) -> ForwardOutput | None:
    """Run whole traces through the model.

    Parameters
    ----------
    model : PreTrainedModel
        Causal model.
    traces : sequence of list of int
        Token ids of each trace.
    columns : collection of str
        The columns that are kept.

    Returns
    -------
    ForwardOutput or None
        `hidden_states` (B, T, d) and `attentions` (B, H, T, T), a tuple over the layers each, and
        `logits` (B, T, V), as far as columns need them; None if none does.
    """
    wants_states = not STATES.isdisjoint(columns)
    wants_maps = not ATTENTION.isdisjoint(columns)
    wants_predictions = not PREDICTIONS.isdisjoint(columns)
    if not (wants_states or wants_maps or wants_predictions):
        return None
    ids, mask = pad(traces, "right", 0, model.device)
    positions = torch.arange(ids.shape[1], device=model.device).expand_as(ids)
    optional: dict[str, Any] = {"position_ids": positions}
    if not wants_predictions:
        optional["logits_to_keep"] = 1  # (B, T, V) may well be the largest tensor of all
    accepted = inspect.signature(model.forward).parameters
    with torch.inference_mode():
        return model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=False,
            output_hidden_states=wants_states,
            output_attentions=wants_maps,
            **{name: value for name, value in optional.items() if name in accepted},
        )
