"""SinkProbe: how much attention the strongest sinks receive (Binkowski et al. 2026).

arXiv:2604.10697 (ICML). The sink score of token t in a head's map A over T tokens is the mean
attention that the T - t tokens from t on pay to it, so the column `attn_colsum` suffices. The
`TOP_K` largest of every layer and head, in falling order, are the features of a logistic regression
with an L1 penalty, which keeps a few of them: the authors find 1 to 4% enough.

Their scores are LapEigvals' (`models.lapeigvals`, the same authors) with the attention of a token
to itself left in, and `TOP_K` is the one used there. Unlike theirs, the penalty is chosen on
validation and not by cross-validation, features are scaled to unit variance first, and classes have
no weights, as for all probes here.
"""

import torch
from torch import Tensor

from models.probe import Probe
from models.tokens import largest_by_trace, positions
from store import Batch

__all__ = ["SINK_PROBE", "largest_sinks", "sink_scores"]

TOP_K = 10


def sink_scores(batch: Batch) -> Tensor:
    """Mean attention that each token receives, (n_tokens, L, H) float32 in [0, 1]."""
    colsum = batch.ragged("attn_colsum")  # (n_tokens, L, H), (B + 1,)
    n_tokens = torch.repeat_interleave(colsum.lengths, colsum.lengths)  # T of each token's trace
    n_attending = n_tokens - positions(colsum.offsets)  # T - t
    return colsum.values.float() / n_attending[:, None, None]


def largest_sinks(batch: Batch, top_k: int = TOP_K) -> Tensor:
    """The largest sink scores by layer and head, (B, 1, L * H * top_k) float32, padded with 0."""
    column = batch.ragged("attn_colsum")._replace(values=sink_scores(batch))
    return largest_by_trace(column, top_k).flatten(1)[:, None]


SINK_PROBE = Probe(("attn_colsum",), largest_sinks, penalty="l1")
