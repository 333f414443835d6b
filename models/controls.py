"""The controls: they see nothing of the answer but its length.

A detector that knows no more than they do has learned which questions are hard, or which answers
are long. `question_only` has a file of its own; these two are probes like the baselines.
"""

import torch
from torch import Tensor

from models.probe import Probe
from store import Batch

__all__ = ["ANSWER_LENGTH", "PROMPT_STATE"]


def answer_length(batch: Batch) -> Tensor:
    """Tokens of the answer (B, 1, 1) float32."""
    return batch.fixed("answer_len").float()[:, None, None]


def stored_prompt_state(batch: Batch) -> Tensor:
    """State of the prompt's last token at each layer (B, L, d), as stored."""
    return batch.fixed("hs_prompt")


def prompt_state(batch: Batch) -> Tensor:
    """State of the prompt's last token at each layer (B, L, d), from the states of all tokens.

    It is computed before the first token of the answer is. NaN where the length of the prompt is
    not known, is 0, or is larger than the number of tokens.
    """
    states, offsets = batch.ragged("hidden_states")
    length = batch.fixed("prompt_len").long()
    is_known = (length > 0) & (length <= offsets.diff())
    chosen = torch.full((len(length), *states.shape[1:]), torch.nan, dtype=states.dtype)
    last = offsets[:-1] + length - 1
    chosen[is_known] = states[last[is_known]]
    return chosen


PROMPT_STATE = Probe(
    ("hs_prompt",),
    stored_prompt_state,
    otherwise=Probe(("hidden_states", "prompt_len"), prompt_state),
)
ANSWER_LENGTH = Probe(("answer_len",), answer_length)
