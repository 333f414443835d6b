"""Labels from scores: 1 = hallucination (a wrong answer), 0 = right, -1 = unlabelled.

This module owns the rule `label = 1 iff score < threshold`, and the scores or labels of traces and
questions from a file, with the label that each value makes: scores say how right an answer is,
higher is better, unless the caller says otherwise. Pure: nothing here reads a file or knows a
model.
"""

import hashlib
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from store.errors import SchemaError
from store.labels.answer_scores import SCORE_THRESHOLD
from store.reports import count, first_ids

__all__ = [
    "AS_GIVEN",
    "UNLABELLED",
    "Kind",
    "Labels",
    "ScoreTable",
    "check_agreement",
    "is_given",
    "label_scores",
]

UNLABELLED = -1
AS_GIVEN = "as given with the responses"  # begins the rule of labels that came with answers


def label_scores(scores: ArrayLike, threshold: float = SCORE_THRESHOLD) -> NDArray[np.int64]:
    """Turn scores `(...)`, higher is better, into labels: 1, hallucination, iff score < threshold.

    Returns int64 `(...)`: 1, 0, or -1 (unlabelled) where the score is not finite: no score is never
    a right answer.
    """
    scores = np.asarray(scores)
    return np.where(np.isfinite(scores), scores < threshold, UNLABELLED).astype(np.int64)


def is_given(rule: str) -> bool:
    """Whether a recorded rule is of labels that came with the answers."""
    return rule.startswith(AS_GIVEN)


def check_agreement(given: Iterable[tuple[str, object, object]], threshold: float) -> None:
    """Raise SchemaError for given labels that say another than the given scores.

    `given` has the name, score and label of each trace; only numbers are compared.
    """
    names, scores, labels = [], [], []
    for name, score, label in given:
        names.append(name)
        scores.append(_number(score))
        labels.append(_number(label))
    by_score = label_scores(np.array(scores, np.float32), threshold)
    both = (by_score != UNLABELLED) & np.isin(labels, (0, 1))
    apart = np.flatnonzero(both & (by_score != labels))
    if len(apart):
        n = count(int(both.sum()), "trace")
        raise SchemaError(
            f"label and score contradict each other in {len(apart):,} of {n} "
            f"({first_ids(names[row] for row in apart)}): label 1 is a hallucination, a score of "
            f"{threshold:g} or more is right; give the --score-threshold at which they agree, or "
            "one of the two alone, as a score where 1 is right"
        )


def _number(value: object) -> float:
    """One number, however it is wrapped; NaN for anything else."""
    array = np.asarray(math.nan if value is None else value).reshape(-1)
    return float(array[0]) if len(array) == 1 and array.dtype.kind in "biuf" else math.nan


class Labels(NamedTuple):
    """Scores and labels `(n_rows,)`, by row."""

    scores: NDArray[np.float64]  # NaN where there is none
    labels: NDArray[np.int64]  # 1 = hallucination, 0 = right, -1 = unlabelled

    def copy(self) -> "Labels":
        return Labels(self.scores.copy(), self.labels.copy())


LABEL_TEXTS = {1: "hallucination", 0: "right", -1: "unlabelled"}
N_EXAMPLES = 3  # values that are shown

Kind = Literal["score", "label"]


@dataclass(frozen=True)
class ScoreTable:
    """Scores or labels from a file."""

    source: str
    column: str = "score"
    kind: Kind = "score"
    lower_is_better: bool = False  # whether a low score means a right answer; False for labels
    # scores of at least this much count as right; of at most, if lower is better
    threshold: float = SCORE_THRESHOLD
    # id -> value; that of a question is of all its traces, a trace's own takes precedence
    by_trace: Mapping[str, float] = field(default_factory=dict)
    by_question: Mapping[str, float] = field(default_factory=dict)
    n_empty: int = 0  # lines without a value, which are ignored
    # trace id -> the question that its line names, where a line has both
    questions: Mapping[str, str] = field(default_factory=dict)
    rule_text: str | None = None  # the rule that made the scores, where no file has

    def __len__(self) -> int:
        """How many traces and questions have a value."""
        return len(self.by_trace) + len(self.by_question)

    def value_of(self, trace_id: str, question_id: str) -> float | None:
        """The value of a trace; None if the file has none."""
        return self.by_trace.get(trace_id, self.by_question.get(question_id))

    def label(self, values: Sequence[float]) -> Labels:
        """The scores and labels that values `(n,)` of the file make.

        A score that is better when lower is stored negated, so that higher is better in every
        store. A label comes without a score: NaN.
        """
        given = np.array(values, np.float64)
        if self.kind == "label":
            return Labels(np.full(len(given), math.nan), given.astype(np.int64))
        scores = 0.0 - given if self.lower_is_better else given
        return Labels(scores, label_scores(scores, self.stored_threshold))

    @property
    def stored_threshold(self) -> float:
        """The threshold of the scores as they are stored: label = 1 iff score < this."""
        return 0.0 - self.threshold if self.lower_is_better else self.threshold

    @property
    def rule(self) -> str:
        """The rule of the labels, for the provenance."""
        if self.rule_text is not None:
            return self.rule_text
        given = f"given in column {self.column!r}"
        if self.kind == "label":
            return f"labels {given}: 1 = hallucination, 0 = right"
        turned = ", lower is better: stored negated" if self.lower_is_better else ""
        return f"label = 1 iff score < threshold, scores {given}{turned}"

    @property
    def sha256(self) -> str:
        """A checksum of ids and values, independent of the order of the lines."""
        lines = _lines(self.by_question)
        if self.by_trace:
            lines += ["trace_id\n", *_lines(self.by_trace)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def understood(self) -> str:
        """How the file was read, for people."""
        if self.kind == "label":
            return f"column {self.column!r} read as labels, 1 = hallucination"
        if self.lower_is_better:
            sense = f"lower is better: hallucination above {self.threshold:g}; stored negated"
        else:
            sense = f"higher is better: hallucination below {self.threshold:g}"
        return f"column {self.column!r} read as scores, {sense}"

    @property
    def examples(self) -> list[str]:
        """What the first values of the file make, for people; a line each."""
        named = [(f"trace_id {name}", value) for name, value in self.by_trace.items()]
        named += [(f"question_id {name}", value) for name, value in self.by_question.items()]
        lines = []
        for name, value in named[:N_EXAMPLES]:
            [label] = self.label([value]).labels.tolist()
            score = f"score {value:g} -> " if self.kind == "score" else ""
            lines.append(f"{name}: {score}label {label} ({LABEL_TEXTS[label]})")
        return lines

    def restrict(self, trace_ids: Container[str], question_ids: Container[str]) -> "ScoreTable":
        """The same table with the values of these traces and questions only."""
        return replace(
            self,
            by_trace={name: x for name, x in self.by_trace.items() if name in trace_ids},
            by_question={name: x for name, x in self.by_question.items() if name in question_ids},
        )


def _lines(values: Mapping[str, float]) -> list[str]:
    return [f"{name}\t{value!r}\n" for name, value in sorted(values.items())]
