"""Scores of single tokens: what the methods that score whole traces have in common.

A score of a token is a number that is larger where a hallucination is more likely. Its scale is
the method's own (log-odds, a part of a logit, nats), so scores of two methods are not compared. The
values are in the order of the batch's tokens.

A method that reads the state of one token a trace reads any token's state in its place. A detector
that reads the states of all tokens has a logit whose gradient says how much each state counts.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from store import Batch, Ragged

__all__ = ["STATES", "columns_for_tokens", "gradient_times_input", "tokens_as_traces"]

STATES = "hidden_states"
# of one state a trace, in whose place the state of any token can be read
ONE_STATE = ("hs_last", "hs_mean")
TOKENS_AT_ONCE = 4096  # as traces of their own: a bound on the memory of a sequence over layers


def columns_for_tokens(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that scores of tokens are computed from, for a method that reads `columns`.

    Empty where such scores make no sense.
    """
    if STATES in columns:
        return columns
    has_one_state = len(columns) == 1 and columns[0] in ONE_STATE
    return (STATES,) if has_one_state else ()


def tokens_as_traces(batch: Batch, column: str) -> Iterator[Batch]:
    """Batches in which each token is a trace, with its state (L, d) as the fixed `column`."""
    states = batch.ragged(STATES).values
    for part in states.split(TOKENS_AT_ONCE):
        yield Batch(torch.arange(len(part)), {column: part})


def gradient_times_input(logits_of: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
    """Gradient of a trace's logit by the state of a token, times that state, summed over L and d.

    The first-order estimate of what the logit loses if the state were 0 (gradient x input:
    Shrikumar et al., arXiv:1605.01713).

    `logits_of` gives logits (B,), each of its own trace alone; `batch` has `hidden_states`,
    (n_tokens, L, d). Returns (n_tokens,) float32.
    """
    values, offsets = batch.ragged(STATES)
    # cuDNN's LSTM has no gradient at evaluation, which must not drop out anything
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        states = values.detach().float().requires_grad_()
        columns = batch.columns | {STATES: Ragged(states, offsets)}
        logits = logits_of(Batch(batch.rows, columns))
        if not logits.requires_grad:  # they do not depend on the states
            return states.new_zeros(len(states))
        gradient = torch.autograd.grad(
            logits.sum(), states, allow_unused=True, materialize_grads=True
        )[0]
    return (gradient * states.detach()).flatten(1).sum(dim=1)
