"""Scores of answers to questions: how well an answer agrees with its references.

Texts are compared in the normal form of `normalization`. Higher is better; NaN means that there is
no reference. Pure functions of strings: nothing here reads a file, knows a model or imports numpy,
so that the help of a command does not wait for it.
"""

import math
from collections import Counter
from collections.abc import Sequence

from store.labels.normalization import normalize_answer

__all__ = ["RULES", "SCORE_THRESHOLD", "exact_match_score", "f1_score"]

SCORE_THRESHOLD = 0.5  # scores of at least this much count as right, unless another is given
RULES = ("exact", "contains", "f1", "judge", "none")  # the names of the rules that label answers


def exact_match_score(answer: str, references: Sequence[str]) -> float:
    """Score an answer 1.0 if it matches one of its references, else 0.0; NaN without any."""
    if not references:
        return math.nan
    return float(normalize_answer(answer) in map(normalize_answer, references))


def f1_score(answer: str, references: Sequence[str]) -> float:
    """Token F1 of an answer and the reference most like it, as in SQuAD's evaluation script.

    The words are those of the normal form. The harmonic mean of precision and recall over them is
    0.0 to 1.0; two empty texts agree. NaN without references.
    """
    return max((_f1(_words(answer), _words(text)) for text in references), default=math.nan)


def _words(text: str) -> Counter[str]:
    return Counter(normalize_answer(text).split())


def _f1(found: Counter[str], expected: Counter[str]) -> float:
    n_words = found.total() + expected.total()
    n_common = (found & expected).total()
    return 2 * n_common / n_words if n_words else 1.0
