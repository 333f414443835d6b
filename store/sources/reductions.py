"""Reductions of full attention maps to columns that are small enough to keep.

Full maps grow with T * T * L * H; what the detectors of the literature read from them does not.
Every function takes the maps of one trace as float32 `(L, H, T, T)`, where row i attends to column
j <= i, and returns a new tensor. It computes in float32 and leaves the cast to float16 to the
caller: sums of float16 values would lose digits before they are stored.

Axes: L layers, H heads, T tokens. Pure functions; the maps are never changed.
"""

import torch
from torch import Tensor

__all__ = ["column_sums", "diagonal", "mean_triangle", "prompt_mass"]


def mean_triangle(attention: Tensor) -> Tensor:
    """Average over heads and keep the lower triangle, row by row: (0,0), (1,0), (1,1), (2,0), ...

    float32 (T * (T + 1) / 2, L). Entry `i * (i + 1) // 2 + j` is the head mean of A[i, j]; the
    graphs of any threshold or top-k are built from it.
    """
    mean = attention.mean(dim=1)  # (L, T, T)
    rows, columns = torch.tril_indices(*mean.shape[1:], device=mean.device)
    return mean[:, rows, columns].T.contiguous()


def diagonal(attention: Tensor) -> Tensor:
    """Take the attention of every token to itself, A[t, t]; float32 (T, L, H).

    LLM-Check (Sriramanan et al. 2024) reads it.
    """
    return _tokens_first(attention.diagonal(dim1=2, dim2=3))


def column_sums(attention: Tensor) -> Tensor:
    """Sum the attention that every token receives, sum over i >= t of A[i, t]; float32 (T, L, H).

    With the diagonal this gives the Laplacian's eigenvalues (LapEigvals, Binkowski et al. 2025,
    arXiv:2502.17598: divide by the number of attending rows, T - t) and the sink scores of
    SinkProbe.
    """
    return _tokens_first(attention.tril().sum(dim=2))


def prompt_mass(attention: Tensor, prompt_len: int) -> Tensor:
    """Sum the attention of every token to the prompt, sum over j < prompt_len of A[t, j].

    float32 (T, L, H); 1 for the tokens of the prompt itself, up to rounding. Lookback Lens (Chuang
    et al. 2024, arXiv:2407.07071) is built on it.
    """
    return _tokens_first(attention[..., :prompt_len].sum(dim=3))


def _tokens_first(per_head: Tensor) -> Tensor:
    """(L, H, T) -> (T, L, H)."""
    return per_head.permute(2, 0, 1).contiguous()
