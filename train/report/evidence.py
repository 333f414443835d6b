"""What a report is made of: the results, and the scores, labels and trace ids of the rows that were
judged.

Nothing here trains; texts are read of the few traces that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from train.evaluate.metrics import confidence, youden_threshold
from train.run.results import best_on_validation, validation_aurocs

if TYPE_CHECKING:
    from train.data.batches import TrainingData
    from train.evaluate.judge import Scored
    from train.run.experiment import Experiment

__all__ = ["Evidence", "Mistake", "find_mistakes", "gather_evidence", "no_texts"]

# shown beside a mistake, where the store has them
TEXT_COLUMNS = ("question", "answer", "references")

Texts = Callable[[list[int]], dict[str, list[str]]]


class Mistake(NamedTuple):
    """A row of the test split that was judged wrong: its position in that split, its label and its
    score."""

    position: int
    label: int
    score: float


def no_texts(positions: list[int]) -> dict[str, list[str]]:
    """The texts of a store that has none."""
    return {}


@dataclass(frozen=True)
class Evidence:
    """Everything that a report shows or draws.

    Attributes
    ----------
    results : dict
        As results.json holds them.
    val_labels, test_labels : int64 (n_split,)
        1 and 0.
    scored : dict of Scored
        By name: `val` and `test`, float64 (n_seeds, n_split).
    trace_ids : list of str
        Of the test split.
    texts : callable
        (positions in the test split) -> column name -> the text of each.
    """

    results: dict[str, Any]
    val_labels: NDArray[np.int64]
    test_labels: NDArray[np.int64]
    scored: dict[str, Scored]
    trace_ids: list[str]
    texts: Texts = no_texts

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """What the results say of each detector and baseline."""
        return self.results["models"] | self.results["baselines"]

    @property
    def ranking(self) -> list[str]:
        """Names whose scores rank anything, by the AUROC on test, best first; the constant baseline
        does not."""
        names = [name for name, one in self.scored.items() if np.ptp(one.test, axis=1).any()]
        return sorted(names, key=lambda name: -self.entries[name]["test"]["auroc"])

    @property
    def best(self) -> str:
        """The best on validation."""
        return best_on_validation(validation_aurocs(self.results))

    def runs(self, name: str) -> Iterator[tuple[NDArray[np.float64], float]]:
        """Test scores (n_test,) and threshold, chosen on validation, of each run."""
        for val, test in zip(self.scored[name].val, self.scored[name].test, strict=True):
            yield test, youden_threshold(self.val_labels, val)


def gather_evidence(experiment: Experiment, data: TrainingData) -> Evidence:
    """The evidence of a run that has just ended."""
    splits, store = data.splits, data.store
    columns = [
        name
        for name in TEXT_COLUMNS
        if name in store.schema.columns and store.schema.columns[name].is_text
    ]

    def texts(positions: list[int]) -> dict[str, list[str]]:
        if not (columns and positions):
            return {}
        batch = store.read(splits.test[positions], columns=columns)
        return {name: list(batch[name]) for name in columns}

    labels = (splits.labels[rows] for rows in (splits.val, splits.test))
    trace_ids = [store.ids[row] for row in splits.test.tolist()]
    return Evidence(experiment.results, *labels, experiment.scored, trace_ids, texts)


def find_mistakes(evidence: Evidence, name: str, n: int = 20) -> list[Mistake]:
    """The `n` surest wrong predictions on test, the surest first; of several runs, those of the
    mean of the scores."""
    scores = evidence.scored[name].test.mean(0)
    threshold = evidence.entries[name]["test"]["threshold"]
    if not math.isfinite(threshold):
        return []
    wrong = np.flatnonzero((scores >= threshold) != evidence.test_labels)
    surest = wrong[np.argsort(-confidence(scores, threshold)[wrong], kind="stable")][:n]
    return [Mistake(int(i), int(evidence.test_labels[i]), float(scores[i])) for i in surest]
