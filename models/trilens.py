"""TriLens: how sure each layer already is of the next token (Yang et al. 2026).

arXiv:2606.01033. The logit lens reads a layer's state as if it were the last one; the entropies of
what the layers would predict, one number each, are the features. The authors read three states in
every layer: the residual stream, what attention adds to it, and what the feed-forward part adds. A
store that has the first alone, `lens_entropy`, gives a third of their features.

As in their code, entry t belongs to the state of the answer's token t, which predicts token t + 1,
and the tokens are reduced in one of three ways: the first alone, the mean of the first three, the
mean of all. Validation chooses. The authors give the features to an MLP or, as here, to a logistic
regression; unlike theirs, its features are scaled and its penalty is chosen on validation.
"""

import torch
from torch import Tensor

from models.probe import Probe
from models.tokens import mean_over_answer
from store import Batch

__all__ = ["TRILENS", "entropies"]

STREAM = "lens_entropy"
PARTS = ("lens_entropy_attention", "lens_entropy_mlp")
REDUCTIONS = {"first token": 1, "first three tokens": 3, "all tokens": None}  # name -> how many


def entropies(batch: Batch) -> Tensor:
    """Entropies of the residual stream in the answer, (B, 3, L) float32 in nats.

    With those of attention and of the feed-forward part (B, 3, 3 L), where the store has both. NaN
    for an empty answer, and for what is added at the embedding.
    """
    parts = PARTS if all(name in batch for name in PARTS) else ()
    return torch.cat([reduced(batch, name) for name in (STREAM, *parts)], dim=2)


def reduced(batch: Batch, name: str) -> Tensor:
    """A column (n_tokens, L) in each of the three ways, (B, 3, L)."""
    column = batch.ragged(name)
    means = [mean_over_answer(batch, column, n_tokens) for n_tokens in REDUCTIONS.values()]
    return torch.stack(means, dim=1)


TRILENS = Probe(
    (STREAM, "prompt_len", "answer_len"),
    entropies,
    optional=PARTS,
    alternatives=tuple(REDUCTIONS),
    tokens_read="answer",
)
