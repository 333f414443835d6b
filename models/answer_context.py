"""The control that lays the answer beside the question and the context.

Of either: the share of the answer's words, and of its pairs of words, that the other text has; the
cosine of their TF-IDF; how many numbers and names (words with a capital within a sentence) it
lacks; and the ratio of the lengths. Then the answer's own words, numbers and names. Where it ranks
as well as a detector, it is enough to compare texts.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np

from models.question_only import SINGLE, WORD, Vocabulary
from models.tables import Floats, Table, TableProbe

__all__ = ["ANSWER_CONTEXT", "TextEncoding"]

WORDS = re.compile(WORD)
NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
NAMES = re.compile(r"(?<=[\w,;:'\"()-] )(?=[^\W\d_a-z])\w+")  # not after the end of a sentence
OTHERS = ("question", "context")


@dataclass(frozen=True, eq=False)
class Text:
    """What a text has that others may lack."""

    text: str

    @cached_property
    def words(self) -> list[str]:
        return WORDS.findall(self.text.lower())

    @cached_property
    def distinct(self) -> set[str]:
        return set(self.words)

    @cached_property
    def pairs(self) -> set[tuple[str, str]]:
        return set(pairwise(self.words))

    @cached_property
    def numbers(self) -> set[str]:
        return {number.replace(",", "") for number in NUMBERS.findall(self.text)}

    @cached_property
    def names(self) -> set[str]:
        return {name.lower() for name in NAMES.findall(self.text) if name[0].isupper()}


@dataclass(frozen=True, eq=False)
class TextEncoding:
    """How rare the words of all training texts are."""

    vocabulary: Vocabulary

    @classmethod
    def of_table(cls, train: Table) -> Self:
        texts = {text for name in ("answer", *OTHERS) for text in train.texts(name)}
        return cls(Vocabulary.of_texts(SINGLE, sorted(texts))[0])

    def numbers(self, table: Table) -> Floats:
        """Three numbers of the answer and six of each other text, (n, 15); NaN without a text."""
        known: dict[str, Text] = {}
        of_answer = table.texts("answer")
        answers = [known.setdefault(text, Text(text)) for text in of_answer]
        parts = [np.array([own(one) for one in answers]).reshape(-1, 3)]
        weighted = self.vocabulary.transform(of_answer)
        for name in OTHERS:
            of_other = table.texts(name)
            others = [known.setdefault(text, Text(text)) for text in of_other]
            pairs = zip(answers, others, strict=True)
            parts.append(np.array([compare(*pair) for pair in pairs]).reshape(-1, 5))
            distinct, place = np.unique(np.array(of_other, dtype=object), return_inverse=True)
            cosine = weighted.multiply(self.vocabulary.transform(distinct)[place]).sum(axis=1)
            is_missing = np.array([not text for text in of_other])
            parts.append(np.where(is_missing, np.nan, np.asarray(cosine).ravel())[:, None])
        return np.hstack(parts)

    def to_dict(self) -> dict[str, Any]:
        return self.vocabulary.to_dict()

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        vocabulary = Vocabulary.from_dict(SINGLE, saved)
        vocabulary.check()
        return cls(vocabulary)


def own(answer: Text) -> tuple[float, ...]:
    return np.log1p(len(answer.words)), len(answer.numbers), len(answer.names)


def compare(answer: Text, other: Text) -> tuple[float, ...]:
    """Shares of the answer's words and pairs in the other text, what that lacks, log of lengths."""
    if not other.text:
        return (np.nan,) * 5
    return (
        share_in(answer.distinct, other.distinct),
        share_in(answer.pairs, other.pairs),
        len(answer.numbers - other.numbers),
        len(answer.names - other.distinct),
        np.log1p(len(answer.words)) - np.log1p(len(other.words)),
    )


def share_in(some: Set[object], others: Set[object]) -> float:
    return len(some & others) / len(some) if some else np.nan


ANSWER_CONTEXT = TableProbe(("question", "answer"), "texts", TextEncoding, optional=("context",))
