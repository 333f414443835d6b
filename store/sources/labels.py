"""Labels of question-answering traces: how well does the answer agree with a reference after
SQuAD's normalisation?

The positive class is 1 = hallucination (a wrong answer), 0 = right, -1 = unlabelled (nothing to
compare with). Pure functions of strings and floats; nothing here reads a file or knows a model.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = [
    "LABEL_RULES",
    "SCORE_THRESHOLD",
    "exact_match_score",
    "f1_score",
    "label_from_score",
    "normalize_answer",
    "one_class_warning",
]

SCORE_THRESHOLD = 0.5
ONE_CLASS = 0.9  # more of the labels than this of one class: the rule is likely to be the reason
ONE_CLASS_ROWS = 10  # of fewer labels nothing can be said

_JUDGE = "judge the answers (python -m store export, then python -m store label)"
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
    found = normalize_answer(answer)
    return float(any(found == normalize_answer(reference) for reference in references))


def f1_score(answer: str, references: Sequence[str]) -> float:
    """Token F1 of an answer and the reference most like it, as SQuAD's evaluation script has it.

    Parameters
    ----------
    answer : str
        The model's answer.
    references : sequence of str
        Right answers, any of which will do.

    Returns
    -------
    float
        0.0 to 1.0, the harmonic mean of precision and recall over words; two empty texts agree. NaN without references.
    """
    words = Counter(normalize_answer(answer).split())
    return max(
        (_f1(words, Counter(normalize_answer(text).split())) for text in references),
        default=math.nan,
    )


def _f1(found: Counter[str], expected: Counter[str]) -> float:
    n_words = found.total() + expected.total()
    return 2 * (found & expected).total() / n_words if n_words else 1.0


class LabelRule(NamedTuple):
    """How answers are scored, and how the provenance says it."""

    score: Callable[[str, Sequence[str]], float]
    text: str


LABEL_RULES = {
    "exact": LabelRule(
        exact_match_score,
        "score = 1 if the answer equals a reference after SQuAD's normalisation, else 0; "
        "label = 1 iff score < threshold",
    ),
    "f1": LabelRule(
        f1_score,
        "score = token F1 of the answer and the reference most like it after SQuAD's normalisation; "
        "label = 1 iff score < threshold",
    ),
    "none": LabelRule(lambda answer, references: math.nan, "unlabelled"),
}


def label_from_score(score: float, threshold: float = SCORE_THRESHOLD) -> int:
    """Turn a score into a label: 1 (hallucination) iff `score < threshold`.

    Parameters
    ----------
    score : float
        Agreement with the references, higher is better; NaN means that there is none.
    threshold : float
        Scores from here on count as right.

    Returns
    -------
    int
        1, 0, or -1 (unlabelled) if the score is NaN: a missing score is never taken for a right
        answer.
    """
    if math.isnan(score):
        return -1
    return int(score < threshold)


def one_class_warning(n_right: int, n_wrong: int, rule: str | None = None) -> str | None:
    """Say that nearly all labels are of one class, and what to do; None if they are not.

    Parameters
    ----------
    n_right, n_wrong
        Labels 0 and 1; unlabelled traces do not count.
    rule
        Name of the rule in `LABEL_RULES` that made them; None if it is not known, or they were
        given.

    Returns
    -------
    One line without an end, or None: at most 90% are of one class, or there are fewer than 10
    labels.
    """
    n_labels = n_right + n_wrong
    n_larger = max(n_right, n_wrong)
    if n_labels < ONE_CLASS_ROWS or n_larger <= ONE_CLASS * n_labels:
        return None
    name = "hallucinations" if n_wrong > n_right else "right"
    share = math.floor(100 * n_larger / n_labels)  # never "100%" unless it is all
    found = f"warning: {share}% of {n_labels:,} labels are {name}"
    if n_wrong > n_right and rule == "exact":
        reason = "exact match calls nearly every whole sentence of a chat model wrong"
        return f"{found}: {reason}; try --labels f1, or {_JUDGE}"
    if rule is None:
        check = "check that the right column was read, which way its scores run, and the threshold"
        return f"{found}: {check}"
    return f"{found}: a detector learns little from so few others; {_JUDGE}"
