"""Entropy of the attention of the answer's last token in the first block (Aiersilan 2026).

arXiv:2606.02628. The mean over the heads of -sum_j a_j ln a_j, with a the attention of the last
token of the answer to the tokens up to it. Nothing is learned: the regression only turns the number
into a probability, and finds its sign.

There the best of the first, the middle and the last blocks is shown, by its AUROC on all data, and
the first one stands out on HaluEval-QA; here it is the lowest layer of the store. That is the first
block unless layers were left out, or the embedding kept (`--layers 1:` leaves it out).
"""

from torch import Tensor

from models.probe import Probe
from models.tokens import answer_tokens, mean_by_trace, positions_in_trace, trace_of_token
from store import Batch

__all__ = ["ATTENTION_ENTROPY", "first_block"]


def first_block(batch: Batch) -> Tensor:
    """Mean over heads at the lowest layer, in nats, (B, 1, 1) float32; NaN for an empty answer."""
    column = batch.ragged("attn_entropy")  # (n_tokens, L, H), (B + 1,)
    end = (batch.fixed("prompt_len") + batch.fixed("answer_len"))[trace_of_token(column.offsets)]
    is_last = positions_in_trace(batch, column.offsets) == end - 1
    is_last &= answer_tokens(batch, column.offsets)
    entropy = column.values[:, 0].float().mean(dim=1)  # (n_tokens,)
    return mean_by_trace(entropy, column.offsets, is_last)[:, None, None]


ATTENTION_ENTROPY = Probe(
    ("attn_entropy", "prompt_len", "answer_len"),
    first_block,
    layers_read=(0,),
    tokens_read="last of answer",
)
