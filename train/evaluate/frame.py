"""The frame of scores: a row a trace, a column a method; what scores.csv holds.

Metrics, comparisons and reports are all computed from it.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from train.evaluate.metrics import Labels, QuestionNumbers, Scores

__all__ = ["Frame", "Key", "Texts"]

Texts = NDArray[np.object_]
Key = TypeVar("Key", bound=Hashable)  # a method, or a run and its method


@dataclass(frozen=True)
class Frame(Generic[Key]):
    """Scores of labelled traces, and what is known of each trace."""

    # texts (n,): the splits are "train", "val" and "test"
    trace_ids: Texts
    splits: Texts
    labels: Labels  # int64 (n,): 1 and 0
    question_ids: Texts  # texts (n,)
    # method -> float64 (n_runs, n), of each of its trainings; NaN where it was trained on
    scores: Mapping[Key, Scores]
    seed: int = 0  # of the split, and of the resamples of a bootstrap

    def __len__(self) -> int:
        return len(self.trace_ids)

    @cached_property
    def questions(self) -> QuestionNumbers:
        """Equal for rows of the same question, in the order of their ids."""
        return np.unique(self.question_ids, return_inverse=True)[1]

    @cached_property
    def val(self) -> Self:
        return self.take(np.flatnonzero(self.splits == "val"))

    @cached_property
    def test(self) -> Self:
        return self.take(np.flatnonzero(self.splits == "test"))

    def take(self, rows: NDArray) -> Self:
        """Some of the rows, by their numbers."""
        return replace(
            self,
            trace_ids=self.trace_ids[rows],
            splits=self.splits[rows],
            labels=self.labels[rows],
            question_ids=self.question_ids[rows],
            scores={name: scores[:, rows] for name, scores in self.scores.items()},
        )

    def rows_of(self, trace_ids: Iterable[str]) -> NDArray[np.int64]:
        """The numbers of the rows of these traces."""
        row_by_id = {trace_id: row for row, trace_id in enumerate(self.trace_ids)}
        return np.array([row_by_id[trace_id] for trace_id in trace_ids], np.int64)

    def mean(self, method: Key) -> Scores:
        """The mean score of each trace over the trainings of a method, (n,)."""
        return self.scores[method].mean(0)
