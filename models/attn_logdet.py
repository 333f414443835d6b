"""AttnLogDet: LLM-Check's log-determinants as features (Binkowski et al. 2025).

arXiv:2502.17598, where it is the supervised rival of LapEigvals: not one score of a layer, but the
log-determinant of every map of every layer, divided by its number of tokens, in one logistic
regression. As for all probes here, features are scaled to unit variance first, and classes have no
weights; logarithms of 0 are cut at the smallest float16.
"""

from torch import Tensor

from models.llm_check import log_determinants
from models.probe import Probe
from store import Batch

__all__ = ["ATTN_LOGDET", "every_head"]


def every_head(batch: Batch) -> Tensor:
    """Log-determinants by layer and head, (B, 1, L * H) float32; NaN without tokens."""
    return log_determinants(batch).flatten(1)[:, None]


ATTN_LOGDET = Probe(("attn_diag",), every_head)
