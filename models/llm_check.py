"""LLM-Check's attention score: log-determinants of the attention maps (Sriramanan et al. 2024).

https://openreview.net/forum?id=LYx4w3CAgy (NeurIPS). A causal map is lower triangular, so its
log-determinant is the sum of the logarithms of its diagonal, and the column `attn_diag` suffices.
The score of a layer is the mean over heads and tokens; the layers are alternatives, of which
validation chooses. The regression only turns a score into a probability.

All tokens count, so no prompt length has to be known; the authors' code can also take the
response's tokens alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from models.probe import Probe
from models.tokens import mean_by_trace

if TYPE_CHECKING:
    from store import Batch

__all__ = ["FLOOR", "LLM_CHECK", "attention_score"]

# the smallest float16 above 0: what was less is stored as 0, whose logarithm is infinite
FLOOR = 2.0**-24


def attention_score(batch: Batch) -> Tensor:
    """Mean over tokens and heads of log A[t, t], (B, L, 1) float32; NaN without tokens."""
    diagonal, offsets = batch.ragged("attn_diag")  # (n_tokens, L, H), (B + 1,)
    logs = diagonal.float().clamp(min=FLOOR).log().mean(dim=2)  # (n_tokens, L)
    return mean_by_trace(logs, offsets)[:, :, None]


LLM_CHECK = Probe(("attn_diag",), attention_score)
