"""Principal components of states: a few coordinates that show where each trace lies. Pure.

Everything is computed in float64, block by block, so that memory grows with the width of the states
and never with their number. The names take no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = [
    "METHODS",
    "Pca",
    "Projection",
    "fit_pca",
    "mask_finite",
    "sample_rows",
]

METHODS = ("pca", "umap")
# beyond, squares of float64 overflow, and coordinates of float32
LARGEST = float(np.finfo(np.float32).max) / 1024
DENSE_WIDTH = 1024  # LAPACK's eigenvectors take 0.7 s at this width, and 42 s at 4096
EXTRA_VECTORS = 16  # iterated beside those that are asked for: they make them converge sooner
MAX_ITERATIONS = 200
TOLERANCE = 1e-12  # of the eigenvalues, relative to the largest


@dataclass(frozen=True)
class Projection:
    """What is projected, and how."""

    column: str = "hs_last"  # a fixed column of floating numbers
    layer: int | None = None  # of a column with several, as the model numbers them; -1: the last
    method: str = "pca"  # one of `METHODS`
    dimensions: int = 2  # coordinates a row
    sample: int = 20_000  # rows that the map is fitted to, drawn at random
    seed: int = 0  # of that draw, and of UMAP


class Pca(NamedTuple):
    """A map from states to their principal components, in float64."""

    mean: np.ndarray  # (width,)
    components: np.ndarray  # (dimensions, width): orthonormal rows, the largest variance first
    explained: np.ndarray  # (dimensions,): the fraction of the whole variance along each, 0 to 1
    n_rows: int  # that it was fitted to

    def project(self, states: np.ndarray) -> np.ndarray:
        """The coordinates of states `(n, width)`: float64 `(n, dimensions)`."""
        return (states - self.mean) @ self.components.T


def fit_pca(blocks: Iterable[np.ndarray], width: int, dimensions: int) -> Pca:
    """Fit principal components, at most `width`, to blocks of finite rows, float64 `(n, width)`.

    Each block is centred on its own mean, and the distance of the means is one row more (Ross et
    al. 2008, "Incremental learning for robust visual tracking"), so nothing cancels where the mean
    is far from 0. The entry of a component that is largest in magnitude is positive, since either
    sign is as right. Without rows, or if all are equal, no variance is explained.
    """
    n_rows = 0
    mean = np.zeros(width)
    scatter = np.zeros((width, width))
    for block in blocks:
        if not len(block):
            continue
        n_before, n_rows = n_rows, n_rows + len(block)
        block_mean = block.mean(axis=0)
        distance = block_mean - mean
        between = np.sqrt(n_before * len(block) / n_rows) * distance
        centred = np.vstack([block - block_mean, between])
        scatter += centred.T @ centred
        mean += distance * (len(block) / n_rows)
    variances, vectors = _leading(scatter, dimensions)
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(dimensions)] < 0, -1.0, 1.0)
    whole = np.trace(scatter)
    explained = np.clip(variances, 0, None) / whole if whole > 0 else np.zeros(dimensions)
    return Pca(mean, (vectors * signs).T, explained, n_rows)


def _leading(matrix: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n largest eigenvalues of a symmetric matrix, falling, and their vectors `(width, n)`."""
    if len(matrix) <= max(DENSE_WIDTH, n + EXTRA_VECTORS):
        values, vectors = np.linalg.eigh(matrix)
    else:
        values, vectors = _iterate(matrix, n + EXTRA_VECTORS)
    return values[::-1][:n], vectors[:, ::-1][:, :n]


def _iterate(matrix: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """About the n largest eigenvalues, rising, and their vectors.

    This is subspace iteration (Halko, Martinsson and Tropp 2011, "Finding structure with
    randomness", algorithm 4.4). It converges fast where eigenvalues fall, as those of states do;
    where they hardly do, any vectors among their own are as good.
    """
    rng = np.random.default_rng([0, len(matrix)])
    basis = rng.standard_normal((len(matrix), n))
    before = np.full(n, np.inf)
    for _ in range(MAX_ITERATIONS):
        basis, _ = np.linalg.qr(matrix @ basis)
        values, rotation = np.linalg.eigh(basis.T @ (matrix @ basis))
        kept = slice(EXTRA_VECTORS, None)
        change = np.abs(values - before)[kept].max()
        if change <= TOLERANCE * np.abs(values).max():
            break
        before = values
    return values, basis @ rotation


def sample_rows(n_rows: int, size: int, seed: int) -> np.ndarray:
    """Rows drawn without replacement, rising as they lie on disk: int64 `(min(size, n_rows),)`."""
    rng = np.random.default_rng([seed, 0])
    drawn = rng.choice(n_rows, min(size, n_rows), replace=False, shuffle=False)
    return np.sort(drawn)


def mask_finite(states: np.ndarray) -> np.ndarray:
    """Which rows have numbers only that are neither NaN nor beyond `LARGEST`: bool `(n,)`."""
    return (np.abs(states) <= LARGEST).all(axis=1)
