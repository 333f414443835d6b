"""The controls that are probes like the baselines: of the prompt, and of the answer's length.

A detector that knows no more than they do has learned which questions are hard, or which answers
are long. The controls that read texts and fields have files of their own.
"""

from dataclasses import replace

import torch
from torch import Tensor

from models.baselines import states_by_layer
from models.probe import Probe
from models.samples import number_of
from models.tokens import positions_in_trace, trace_of_token
from store import Batch

__all__ = ["ANSWER_LENGTH", "PROMPT_STATE"]


def prompt_state(batch: Batch) -> Tensor:
    """State of the prompt's last token at each layer (B, L, d), from the states of all tokens.

    It is computed before the first token of the answer is. NaN where the length of the prompt is
    not known, is 0, or is larger than the number of tokens.
    """
    states, offsets = batch.ragged("hidden_states")
    trace = trace_of_token(offsets)
    is_last = positions_in_trace(batch, offsets) == batch.fixed("prompt_len").long()[trace] - 1
    chosen = torch.full((len(batch), *states.shape[1:]), torch.nan, dtype=states.dtype)
    chosen[trace[is_last]] = states[is_last]
    return chosen


PROMPT_STATE = states_by_layer(
    "hs_prompt",
    sees="prompt",
    otherwise=Probe(
        ("hidden_states", "prompt_len"), prompt_state, tokens_read="prompt end", by_layer=True
    ),
)
ANSWER_LENGTH = replace(number_of("answer_len"), sees="length")
