"""How much the samples of one question agree, from their states and from their words. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALPHA", "eigen_score", "lexical_similarity", "rouge_l", "words_of"]

ALPHA = 1e-3  # the paper's
# a sign belongs to its number, and so do the signs within: -1,234.5
_WORD = re.compile(r"(?<!\w)-?\d+(?:[.,]\d+)*(?!\w)|\w+")


def eigen_score(states: NDArray[np.floating], alpha: float = ALPHA) -> float:
    """EigenScore: how far the samples' states are spread (INSIDE, Chen et al. 2024).

    arXiv:2402.03744, equation 6: 1/K log det(Z^T J Z + alpha I), where Z (d, K) are the states, and
    J subtracts from each state the mean over its d numbers. The authors' code divides the matrix by
    d - 1, and takes the logarithm to base 10.

    `states` are `(K, d)`, one sample a row. Returns nats; the higher, the less the samples agree.
    NaN if a state is not finite.
    """
    z = np.asarray(states, np.float64)
    if not np.isfinite(z).all():
        return float("nan")
    centred = z - z.mean(axis=1, keepdims=True)
    covariance = centred @ centred.T  # (K, K); J is idempotent
    n_samples = len(z)
    _, log_determinant = np.linalg.slogdet(covariance + alpha * np.eye(n_samples))
    return float(log_determinant) / n_samples


def lexical_similarity(texts: Sequence[str]) -> float:
    """Mean ROUGE-L F1 over all pairs of samples, 0 to 1 (a baseline of arXiv:2302.09664).

    Words are runs of letters and digits, in lower case, and numbers with their sign; they are not
    stemmed. Two answers without a word are alike, which the package rouge_score takes for 0.
    """
    counts = Counter(map(words_of, texts))
    n_pairs = len(texts) * (len(texts) - 1) // 2
    total = sum(n * (n - 1) / 2 for n in counts.values())  # of equal texts
    for one, other in combinations(counts, 2):
        total += counts[one] * counts[other] * rouge_l(one, other)
    return total / n_pairs


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, as `lexical_similarity` compares them."""
    plain = text.casefold().replace("−", "-")
    return tuple(_WORD.findall(plain))


def rouge_l(one: Sequence[str], other: Sequence[str]) -> float:
    """F1 of the longest common subsequence of two texts' words (Lin 2004); 1 if both are empty."""
    n_words = len(one) + len(other)
    if not n_words:
        return 1.0
    return 2 * _common_length(one, other) / n_words


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table at a time (Hyyrö 2004).

    Bit i of `row` is 0 where the length grows at word i of `one`.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(one)) - 1
    row = full
    for word in other:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(one) - row.bit_count()
