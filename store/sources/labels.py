"""Labels of question-answering traces: does the answer equal a reference after SQuAD's normalisation?

The positive class is 1 = hallucination (a wrong answer), 0 = right, -1 = unlabelled (nothing to compare with). Pure
functions of strings and floats, but for `set_labels`, which puts them into a store that is there.
"""

import math
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from store.reader import TraceStore
from store.schema import TRACE_ID, Column
from store.writer import StoreWriter

__all__ = [
    "SCORE_THRESHOLD",
    "LabelReport",
    "exact_match_score",
    "label_from_score",
    "normalize_answer",
    "set_labels",
]

SCORE_THRESHOLD = 0.5

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIGNED_NUMBER = re.compile(r"\s*-(?=[\d.])")


def normalize_answer(text: str) -> str:
    """Lower-case `text`, drop punctuation and English articles, and join the words by one space.

    This is the normalisation of the SQuAD evaluation script (Rajpurkar et al. 2016, arXiv:1606.05250) but for one
    thing: a minus sign that leads a number stays, because without it "-12" would pass for "12".

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
        1, 0, or -1 (unlabelled) if the score is NaN: a missing score is never taken for a right answer.
    """
    if math.isnan(score):
        return -1
    return int(score < threshold)


class LabelReport(NamedTuple):
    """What `set_labels` did: traces, hallucinations and unlabelled ones among them, scores that fitted none."""

    rows: int
    positive: int
    unlabelled: int
    unused: int


def set_labels(path: str | Path, scores: Mapping[str, float], threshold: float = SCORE_THRESHOLD) -> LabelReport:
    """Add or replace the columns `score` and `label` of a store, in one commit that touches nothing else.

    Parameters
    ----------
    path
        The store.
    scores
        Question id -> score (trace id -> score, if the store has no column `question_id`).
    threshold : float
        Scores from here on count as right.
    """
    with StoreWriter.open(path) as writer:
        store = TraceStore.open(path)
        key = "question_id" if "question_id" in store.schema.columns else TRACE_ID
        ids = store.read(range(len(store)), [key])[key]
        found = [scores.get(i, math.nan) for i in ids]
        labels = [label_from_score(score, threshold) for score in found]
        rows = ({"score": score, "label": label} for score, label in zip(found, labels, strict=True))
        writer.set_columns({"score": Column("float32"), "label": Column("int8")}, rows)
    return LabelReport(len(ids), labels.count(1), labels.count(-1), len(scores.keys() - set(ids)))
