"""AggTruth: what every head pays to the tokens of the context, in four ways (Matys et al. 2025).

arXiv:2506.18628 (ICCS). Of the attention a_i of a head at an answer's token to the C tokens of the
context, with m = sum_i a_i and, in the last two, 1 - m as one place more,

- `aggtruth_sum`: m (column `attn_cmass`);
- `aggtruth_cosine`: the mean cosine similarity of a to that of the layer's other heads
  (`attn_ccosine`);
- `aggtruth_entropy`: -sum_i a_i log2 a_i, from `attn_cmass` and `attn_centropy`;
- `aggtruth_js`: the Jensen-Shannon distance of a from the mean of the layer's heads (`attn_cjs`).

Its mean over the answer's tokens is one feature a layer and head. Each is a method of its own, as
in the paper, which recommends the sum. A trace without a context has the mean features of train.

The authors label windows of 8 tokens; here an answer is one. They choose heads (by the rank
correlation with the label, say), scale to [0, 1] and weigh classes; here all heads are features of
unit variance, and validation chooses the penalty. As there, a token is read at its own row, where
the next one was predicted.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from models.probe import Probe
from models.tokens import mean_over_answer
from store import Batch, Ragged

__all__ = ["AGGTRUTH_COSINE", "AGGTRUTH_ENTROPY", "AGGTRUTH_JS", "AGGTRUTH_SUM", "entropy"]


def mean_of(batch: Batch, column: Callable[[Batch], Ragged]) -> Tensor:
    """Mean over the answer by layer and head, (B, 1, L * H) float32; NaN without a context."""
    return mean_over_answer(batch, column(batch)).flatten(1)[:, None]


def entropy(batch: Batch) -> Ragged:
    """In bits, of the attention to the context and to all that is outside, (n_tokens, L, H)."""
    mass = batch.ragged("attn_cmass")
    m = mass.values.float().clamp(0, 1)
    nats = m * batch.ragged("attn_centropy").values.float()
    nats = nats + torch.special.entr(m) + torch.special.entr(1 - m)
    return mass._replace(values=nats / math.log(2))


def of_column(name: str, *more: str, column: Callable[[Batch], Ragged] | None = None) -> Probe:
    """The probe of a column of every token and head, or of what `column` makes of several."""
    column = column or partial(Batch.ragged, name=name)
    columns = (name, *more, "prompt_len", "answer_len")
    return Probe(columns, partial(mean_of, column=column), tokens_read="answer")


AGGTRUTH_SUM = of_column("attn_cmass")
AGGTRUTH_COSINE = of_column("attn_ccosine")
AGGTRUTH_ENTROPY = of_column("attn_cmass", "attn_centropy", column=entropy)
AGGTRUTH_JS = of_column("attn_cjs")
