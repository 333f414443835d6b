"""Lookback Lens: does the answer attend to the prompt or to itself? (Chuang et al. 2024).

arXiv:2407.07071. For the token at position t of an answer after P tokens of prompt, a head attends
to the prompt with the mass m = `attn_pmass[t]`, m / P a token on average, and to the t - P + 1
tokens of the answer so far, itself included, with the rest. The lookback ratio is the first mean
over the sum of both; its mean over the answer's tokens is one feature a layer and head.

`lookback_context` has the context in the prompt's place, as AggTruth (arXiv:2506.18628) proposes:
the mass `attn_cmass` on its `context_len` tokens, and `attn_amass` on the answer's. What the rest
of the prompt gets counts for neither.

The authors read the maps one row earlier, where each token of the answer was predicted; the first
of these rows, the prompt's last, sees no answer yet, so here every token of the answer is read at
its own row.
"""

from torch import Tensor

from models.probe import Probe
from models.tokens import mean_over_answer, positions_in_trace, trace_of_token
from store import Batch, Ragged

__all__ = ["LOOKBACK_CONTEXT", "LOOKBACK_LENS", "context_ratios", "lookback_ratios"]


def lookback_ratios(batch: Batch) -> Tensor:
    """Mean lookback ratio of the answer by layer and head, (B, 1, L * H) float32 in [0, 1].

    NaN for an empty answer, and where there is no prompt or its length is not known.
    """
    column = batch.ragged("attn_pmass")  # (n_tokens, L, H), (B + 1,)
    mass = column.values.float().clamp(0, 1)  # half precision may round it out of the range
    return mean_ratios(batch, column._replace(values=mass), "prompt_len", 1 - mass)


def context_ratios(batch: Batch) -> Tensor:
    """The same of the context, (B, 1, L * H); NaN without one as well."""
    on_answer = batch.ragged("attn_amass").values.float()
    return mean_ratios(batch, batch.ragged("attn_cmass"), "context_len", on_answer)


def mean_ratios(batch: Batch, looked_at: Ragged, length: str, mass_on_answer: Tensor) -> Tensor:
    """The mean ratio, from the mass on a part of so many tokens and that on the answer."""
    trace = trace_of_token(looked_at.offsets)
    n_prompt, n_part = (batch.fixed(name).float()[trace] for name in ("prompt_len", length))
    # (n_tokens,), below 1 within the prompt, which does not count
    n_answer = positions_in_trace(batch, looked_at.offsets) - n_prompt + 1
    on_part = looked_at.values.float() / n_part[:, None, None]
    on_answer = mass_on_answer / n_answer[:, None, None]
    ratio = on_part / (on_part + on_answer)  # 0 / 0 is NaN, without a prompt
    return mean_over_answer(batch, looked_at._replace(values=ratio)).flatten(1)[:, None]


LOOKBACK_LENS = Probe(
    ("attn_pmass", "prompt_len", "answer_len"), lookback_ratios, tokens_read="answer"
)
LOOKBACK_CONTEXT = Probe(
    ("attn_cmass", "attn_amass", "context_len", "prompt_len", "answer_len"),
    context_ratios,
    tokens_read="answer",
)
