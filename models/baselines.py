"""The baselines that a detector has to beat: what little information, or how simple a model, is
enough?

Each is a probe, a logistic regression on features of one kind: a constant (the majority), the
length of the answer, how sure the language model was of it (mean log-probability, perplexity,
entropy), and one layer of `hs_last`. All of them give probabilities, so every metric applies to
them.

`logprob[t]` and `entropy[t]` are of the distribution that predicted token t from the tokens before
it, so the entries at the answer's tokens are about the answer's choices; nothing predicted token 0:
NaN there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.probe import Probe
from models.tokens import mean_over_answer

if TYPE_CHECKING:
    from store import Batch

__all__ = [
    "ANSWER_LENGTH",
    "ENTROPY",
    "LOGREG_BEST",
    "LOGREG_FIRST",
    "MAJORITY",
    "MEAN_LOGPROB",
    "PERPLEXITY",
    "every_layer",
]


def constant(batch: Batch) -> Tensor:
    """Nothing to go by (B, 1, 1): what remains is the share of hallucinations in train."""
    return torch.zeros(len(batch), 1, 1)


def answer_length(batch: Batch) -> Tensor:
    """Tokens of the answer (B, 1, 1) float32."""
    return batch["answer_len"].float()[:, None, None]


def mean_logprob(batch: Batch) -> Tensor:
    """Mean log-probability of the answer's tokens in nats, (B, 1, 1) float32; NaN for an empty
    answer.

    With its sign turned this is the log of the perplexity, the simplest of the uncertainty scores.
    """
    return mean_over_answer(batch, batch["logprob"])[:, None, None]


def perplexity(batch: Batch) -> Tensor:
    """exp(-mean log-probability of the answer's tokens), (B, 1, 1) float32; NaN for an empty
    answer.

    It ranks traces as `mean_logprob` does; the regression sees it on another scale.
    """
    return (-mean_logprob(batch)).exp()


def mean_entropy(batch: Batch) -> Tensor:
    """Mean over the answer's tokens of the entropy of what predicted them, in nats, (B, 1, 1)
    float32.

    NaN for an empty answer.
    """
    return mean_over_answer(batch, batch["entropy"])[:, None, None]


def every_layer(batch: Batch) -> Tensor:
    """State of the last token at each layer (B, L, d), as stored."""
    return batch["hs_last"]


def first_layer(batch: Batch) -> Tensor:
    """State of the last token at the lowest layer (B, 1, d): how much the input alone tells."""
    return batch["hs_last"][:, :1]


MAJORITY = Probe(("question_id",), constant)
ANSWER_LENGTH = Probe(("answer_len",), answer_length)
MEAN_LOGPROB = Probe(("logprob", "prompt_len", "answer_len"), mean_logprob)
PERPLEXITY = Probe(("logprob", "prompt_len", "answer_len"), perplexity)
ENTROPY = Probe(("entropy", "prompt_len", "answer_len"), mean_entropy)
LOGREG_FIRST = Probe(("hs_last",), first_layer)
LOGREG_BEST = Probe(("hs_last",), every_layer)
