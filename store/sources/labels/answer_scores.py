"""Scores of answers to questions: how well an answer agrees with its references.

Texts are compared after SQuAD's normalisation. Higher is better; NaN means that there is no
reference. Pure functions of strings: nothing here reads a file, knows a model or imports numpy, so
that the help of a command does not wait for it.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

__all__ = ["SCORE_THRESHOLD", "exact_match_score", "f1_score", "normalize_answer"]

SCORE_THRESHOLD = 0.5  # scores of at least this much count as right, unless another is given

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIGNED_NUMBER = re.compile(r"\s*-(?=[\d.])")


def normalize_answer(text: str) -> str:
    """Lower-case `text`, drop punctuation and English articles, and join the words by one space.

    This is the normalisation of the SQuAD evaluation script (Rajpurkar et al. 2016,
    arXiv:1606.05250) but for one thing: a minus sign that leads a number stays, because without it
    "-12" would pass for "12".

    Parameters
    ----------
    text : str
        An answer or a reference.

    Returns
    -------
    str
        The normal form; two answers are the same iff their normal forms are equal.
    """
    sign = "-" if _SIGNED_NUMBER.match(text) else ""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return sign + " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match_score(answer: str, references: Sequence[str]) -> float:
    """Score an answer 1.0 if it matches a reference, else 0.0; NaN without references.

    Parameters
    ----------
    answer : str
        The model's answer.
    references : sequence of str
        Right answers, any of which will do.

    Returns
    -------
    float
        1.0, 0.0 or NaN.
    """
    if not references:
        return math.nan
    return float(normalize_answer(answer) in map(normalize_answer, references))


def f1_score(answer: str, references: Sequence[str]) -> float:
    """Token F1 of an answer and the reference most like it, as in SQuAD's evaluation script.

    Parameters
    ----------
    answer : str
        The model's answer.
    references : sequence of str
        Right answers, any of which will do.

    Returns
    -------
    float
        0.0 to 1.0, the harmonic mean of precision and recall over words; two empty texts agree.
        NaN without references.
    """
    return max((_f1(_words(answer), _words(text)) for text in references), default=math.nan)


def _words(text: str) -> Counter[str]:
    return Counter(normalize_answer(text).split())


def _f1(found: Counter[str], expected: Counter[str]) -> float:
    n_words = found.total() + expected.total()
    n_common = (found & expected).total()
    return 2 * n_common / n_words if n_words else 1.0
