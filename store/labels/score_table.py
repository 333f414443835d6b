"""Scores or labels of traces and questions from a file, and the label that each value makes.

Scores say how right an answer is (higher is better, unless the caller says otherwise); labels are
1 = hallucination, 0 = right and -1 = unlabelled. Nothing here opens a file or a store.
"""

import hashlib
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from store.labels.rule import Labels, label_scores

__all__ = ["Kind", "ScoreTable"]

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

    def label(self, values: Sequence[float], threshold: float) -> Labels:
        """The scores and labels that values `(n,)` of the file make.

        A score that is better when lower is stored negated, so that higher is better in every
        store. A label comes without a score: NaN.
        """
        given = np.array(values, np.float64)
        if self.kind == "label":
            return Labels(np.full(len(given), math.nan), given.astype(np.int64))
        scores = 0.0 - given if self.lower_is_better else given
        return Labels(scores, label_scores(scores, self.stored_threshold(threshold)))

    def stored_threshold(self, threshold: float) -> float:
        """The threshold of the scores as they are stored: label = 1 iff score < this."""
        return 0.0 - threshold if self.lower_is_better else threshold

    @property
    def rule(self) -> str:
        """The rule of the labels, for the provenance."""
        if self.rule_text is not None:
            return self.rule_text
        if self.kind == "label":
            return f"labels given in column {self.column!r}: 1 = hallucination, 0 = right"
        if self.lower_is_better:
            return "label = 1 iff score < threshold, scores given, lower is better: stored negated"
        return "label = 1 iff score < threshold, scores given"

    @property
    def sha256(self) -> str:
        """A checksum of ids and values, independent of the order of the lines."""
        lines = _lines(self.by_question)
        if self.by_trace:
            lines += ["trace_id\n", *_lines(self.by_trace)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def understood(self, threshold: float) -> str:
        """How the file was read, for people."""
        if self.kind == "label":
            return f"column {self.column!r} read as labels, 1 = hallucination"
        if self.lower_is_better:
            sense = f"lower is better: hallucination above {threshold:g}; stored negated"
        else:
            sense = f"higher is better: hallucination below {threshold:g}"
        return f"column {self.column!r} read as scores, {sense}"

    def examples(self, threshold: float) -> list[str]:
        """What the first values of the file make, for people; a line each."""
        named = [(f"trace_id {name}", value) for name, value in self.by_trace.items()]
        named += [(f"question_id {name}", value) for name, value in self.by_question.items()]
        lines = []
        for name, value in named[:N_EXAMPLES]:
            [label] = self.label([value], threshold).labels.tolist()
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
