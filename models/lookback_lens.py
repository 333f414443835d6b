"""Lookback Lens: does the answer attend to the prompt or to itself? (Chuang et al. 2024).

arXiv:2407.07071. For the token at position t of an answer after P tokens of prompt, a head attends
to the prompt with the mass m = `attn_pmass[t]`, m / P a token on average, and to the t - P + 1
tokens of the answer so far, itself included, with the rest. The lookback ratio is the first mean
over the sum of both; its mean over the answer's tokens is one feature a layer and head.

The authors read the maps one row earlier, where each token of the answer was predicted; the first
of these rows, the prompt's last, sees no answer yet, so here every token of the answer is read at
its own row.
"""

from torch import Tensor

from models.probe import Probe
from models.tokens import mean_over_answer, positions_in_trace, trace_of_token
from store import Batch

__all__ = ["LOOKBACK_LENS", "lookback_ratios"]


def lookback_ratios(batch: Batch) -> Tensor:
    """Mean lookback ratio of the answer by layer and head, (B, 1, L * H) float32 in [0, 1].

    NaN for an empty answer, and where there is no prompt or its length is not known.
    """
    column = batch.ragged("attn_pmass")  # (n_tokens, L, H), (B + 1,)
    n_prompt = batch.fixed("prompt_len").float()[trace_of_token(column.offsets)]  # (n_tokens,)
    # (n_tokens,), below 1 within the prompt, which does not count
    n_answer = positions_in_trace(batch, column.offsets) - n_prompt + 1
    mass = column.values.float().clamp(0, 1)  # half precision may round it out of the range
    on_prompt = mass / n_prompt[:, None, None]
    on_answer = (1 - mass) / n_answer[:, None, None]
    ratio = on_prompt / (on_prompt + on_answer)  # 0 / 0 is NaN, without a prompt
    return mean_over_answer(batch, column._replace(values=ratio)).flatten(1)[:, None]


LOOKBACK_LENS = Probe(
    ("attn_pmass", "prompt_len", "answer_len"), lookback_ratios, tokens_read="answer"
)
