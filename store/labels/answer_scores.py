"""The rules that label answers: each scores how well an answer agrees with its references.

Texts are compared in the normal form of `normalization`. Higher is better; NaN means that there is
no reference. Pure functions of strings: nothing here reads a file, knows a model or imports numpy,
so that the help of a command does not wait for it.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from store.labels.containment import contains_score
from store.labels.normalization import normalize_answer

__all__ = ["NORMALIZATION", "RULES", "SCORE_THRESHOLD", "exact_match_score", "f1_score"]

SCORE_THRESHOLD = 0.5  # scores of at least this much count as right, unless another is given
# what the rules call SQuAD's normalisation; a key of its own, which stores of earlier versions lack
NORMALIZATION = (
    "SQuAD's, and: numbers keep sign and decimal point, 1,000 = 1000; hyphens part words; accents "
    "and kinds of quotes do not count; no text becomes empty"
)


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


class LabelRule(NamedTuple):
    """The text of a rule in the provenance, and how it scores answers; a judge is asked instead."""

    text: str
    score: Callable[[str, Sequence[str]], float] = lambda answer, references: math.nan


RULES = {
    "exact": LabelRule(
        "score = 1 if the answer equals a reference after SQuAD's normalisation, else 0; "
        "label = 1 iff score < threshold",
        exact_match_score,
    ),
    "contains": LabelRule(
        "score = 1 if the answer's first statement has the words of a reference after SQuAD's "
        "normalisation, not denied directly (yes, no, true, false: begins with it; scripts without "
        "spaces: its characters), else 0; label = 1 iff score < threshold",
        contains_score,
    ),
    "f1": LabelRule(
        "score = token F1 of the answer and the reference most like it "
        "after SQuAD's normalisation; label = 1 iff score < threshold",
        f1_score,
    ),
    "judge": LabelRule(
        "score = probability of the judge's word for right, of its words for right and wrong; "
        "unlabelled where it says neither, or calls an exact match wrong; "
        "label = 1 iff score < threshold"
    ),
    "none": LabelRule("unlabelled"),
}
