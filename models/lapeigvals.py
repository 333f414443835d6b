"""LapEigvals: the largest eigenvalues of attention maps as graphs (Binkowski et al. 2025).

arXiv:2502.17598. A head's map A over T tokens (row i attends to column j <= i) has the Laplacian L
= D - A, with the degree d_tt = sum over i >= t of A[i, t], divided by the number T - t of tokens
that can attend to token t (their equation 2). L is lower triangular, so its eigenvalues are its
diagonal d_tt - A[t, t], and the columns `attn_colsum` and `attn_diag` suffice. The `TOP_K` largest
of every layer and head, in falling order, are the features, reduced to 512 components as in the
paper. Unlike in https://github.com/graphml-lab-pwr/lapeigvals, whose eigenvalues these are,
features are scaled to unit variance first, and classes have no weights, as for all probes here.
"""

from torch import Tensor

from models.probe import Probe
from models.sink_probe import sink_scores
from models.tokens import largest_by_trace
from store import Batch

__all__ = ["LAPEIGVALS", "eigenvalues", "largest_eigenvalues"]

TOP_K = 10  # they try 5 to 100 and find nearly the same AUROC with each, so few numbers do
N_COMPONENTS = 512


def eigenvalues(batch: Batch) -> Tensor:
    """The diagonals of the Laplacians, (n_tokens, L, H) float32, in the order of the tokens."""
    return sink_scores(batch) - batch.ragged("attn_diag").values.float()


def largest_eigenvalues(batch: Batch, top_k: int = TOP_K) -> Tensor:
    """The largest eigenvalues by layer and head, (B, 1, L * H * top_k) float32, padded with 0."""
    column = batch.ragged("attn_colsum")._replace(values=eigenvalues(batch))
    return largest_by_trace(column, top_k).flatten(1)[:, None]


LAPEIGVALS = Probe(("attn_diag", "attn_colsum"), largest_eigenvalues, n_components=N_COMPONENTS)
