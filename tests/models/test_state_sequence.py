"""The sequence of states: it tells which token came first."""

import torch
from torch.nn import functional as F

from models.state_sequence import StateSequence
from store import Batch, Ragged

LABELS = torch.arange(40) % 2


def orders():
    """Answers of 8 tokens behind 2 of the prompt, with a token A and a token B; 1: A is first."""
    generator = torch.Generator().manual_seed(0)
    states = 0.3 * torch.randn(40, 10, 1, 4, generator=generator)
    for i, label in enumerate(LABELS.tolist()):
        first, last = (2 + torch.randperm(8, generator=generator)[:2]).sort().values
        states[i, first, 0, 1 - label] += 2
        states[i, last, 0, label] += 2
    columns = {
        "hidden_states": Ragged(states.flatten(0, 1), 10 * torch.arange(41)),
        "prompt_len": torch.full((40,), 2),
        "answer_len": torch.full((40,), 8),
    }
    return Batch(torch.arange(40), columns)


def test_it_learns_which_token_came_first():
    """The mean and the maximum over the tokens say nothing of it."""
    torch.manual_seed(0)
    detector, batch = StateSequence(4, 1, dropout=0.0), orders()
    optimizer = torch.optim.AdamW(detector.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(detector(batch).logits, LABELS.float())
        loss.backward()
        optimizer.step()
    assert loss < 0.05
