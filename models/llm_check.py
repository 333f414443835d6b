"""LLM-Check: log-determinants of attention maps and of states, and logits (Sriramanan et al. 2024).

https://openreview.net/forum?id=LYx4w3CAgy (NeurIPS). Three kinds of scores, each a detector by
itself in the paper, so each a probe here: they read different columns, of which a store may have
some. The regression only turns a score into a probability; validation chooses among layers, or
among the scores of the logits.

- *Attention*: a causal map is lower triangular, so its log-determinant is the sum of the logarithms
  of its diagonal, and the column `attn_diag` suffices. All tokens count, so no prompt length has to
  be known; the authors' code can also take the response's tokens alone.
- *Hidden*: the log-determinant of the Gram matrix of the answer's states, each state centred over
  its d numbers, with `RIDGE` added to the diagonal, divided by the number of tokens: the mean
  logarithm of its singular values.
- *Logits*: the perplexity of the answer; the largest entropy of a window of tokens, one token wide
  as in the authors' code; the mean entropy over the likeliest tokens, renormalised. The authors
  take 50 of these, here it is as many as the store keeps (`extract --top-k`), 50 at most. Their
  entropies are of the distributions behind each token, here of those that predicted it, as for the
  perplexity; they divide them by the size of the vocabulary.
"""

import torch
from torch import Tensor

from models.baselines import max_entropy, perplexity
from models.probe import Probe
from models.tokens import answer_tokens, count_by_trace, mean_by_trace, mean_over_answer
from store import Batch

__all__ = [
    "FLOOR",
    "LLM_CHECK",
    "LLM_CHECK_HIDDEN",
    "LLM_CHECK_LOGIT",
    "attention_score",
    "hidden_score",
    "log_determinants",
    "logit_scores",
]

# the smallest float16 above 0: what was less is stored as 0, whose logarithm is infinite
FLOOR = 2.0**-24
RIDGE = 1e-3
TOP_K = 50


def log_determinants(batch: Batch) -> Tensor:
    """Mean over tokens of log A[t, t] by layer and head, (B, L, H) float32; NaN without tokens."""
    diagonal, offsets = batch.ragged("attn_diag")  # (n_tokens, L, H), (B + 1,)
    return mean_by_trace(diagonal.float().clamp(min=FLOOR).log(), offsets)


def attention_score(batch: Batch) -> Tensor:
    """Mean over tokens and heads of log A[t, t], (B, L, 1) float32; NaN without tokens."""
    return log_determinants(batch).mean(dim=2, keepdim=True)


def hidden_score(batch: Batch) -> Tensor:
    """Mean log singular value of the Gram matrix of the answer's states, (B, L, 1) float32.

    NaN for an empty answer, and where the prompt's length is not known.
    """
    states, offsets = batch.ragged("hidden_states")  # (n_tokens, L, d), (B + 1,)
    in_answer = answer_tokens(batch, offsets)
    n_tokens = count_by_trace(in_answer, offsets)  # (B,)
    # one layer at a time is in memory as float64
    layers = [layer[in_answer] for layer in states.unbind(1)]
    return torch.stack([log_volumes(layer, n_tokens) for layer in layers], dim=1)[:, :, None]


def log_volumes(states: Tensor, n_tokens: Tensor) -> Tensor:
    """Log-determinant of each trace's Gram matrix with `RIDGE`, divided by its size.

    Traces of one length go through LAPACK together: padding would change the last bits of their
    numbers with what they are batched with. In float32 the small singular values would be rounding.

    `states` are (sum of n_tokens, d), `n_tokens` (B,) int64. Returns (B,) float32, NaN without
    tokens.
    """
    exact = states.double()
    by_trace = (exact - exact.mean(dim=1, keepdim=True)).split(n_tokens.tolist())
    volumes = torch.full((len(n_tokens),), torch.nan, device=states.device)
    for length in n_tokens.unique().tolist():
        if length:
            same = (n_tokens == length).nonzero().squeeze(1)
            together = torch.stack([by_trace[i] for i in same.tolist()])  # (n, length, d)
            gram = together @ together.mT
            gram.diagonal(dim1=1, dim2=2).add_(RIDGE)
            volumes[same] = (torch.linalg.slogdet(gram).logabsdet / length).float()
    return volumes


def logit_scores(batch: Batch) -> Tensor:
    """Perplexity, window entropy and entropy of the likeliest tokens, (B, 3, 1) float32.

    NaN for an empty answer.
    """
    candidates = batch.ragged("topk_logprob")  # (n_tokens, K), (B + 1,)
    shares = candidates.values[:, :TOP_K].float().softmax(dim=1)
    entropy = torch.special.entr(shares).sum(dim=1)  # (n_tokens,)
    among_likeliest = mean_over_answer(batch, candidates._replace(values=entropy))
    return torch.cat([perplexity(batch), max_entropy(batch), among_likeliest[:, None, None]], dim=1)


LLM_CHECK = Probe(("attn_diag",), attention_score)
LLM_CHECK_HIDDEN = Probe(
    ("hidden_states", "prompt_len", "answer_len"), hidden_score, tokens_read="answer"
)
LLM_CHECK_LOGIT = Probe(
    ("logprob", "entropy", "topk_logprob", "prompt_len", "answer_len"),
    logit_scores,
    alternatives=("perplexity", "window entropy", "top-k entropy"),
    tokens_read="answer",
)
