"""The input of a report: results, and the scores, labels and trace ids of validation and test.

Texts are read for the few traces that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from train.evaluate.metrics import Areas, Labels, Scores, confidence, youden_threshold
from train.evaluate.over_splits import over_all_splits
from train.files import Json
from train.report.methods import Kinds, choose_shown, find_kinds, ranks
from train.report.provenance import describe_traces
from train.run.results import best_on_validation, validation_aurocs

if TYPE_CHECKING:
    from train.data.batches import TrainingData
    from train.evaluate.judge import ScoredByName
    from train.run.experiment import Experiment

__all__ = ["Evidence", "Mistake", "find_mistakes", "gather_evidence"]

# shown with a mistake, if the store has them
TEXT_COLUMNS = ("question", "answer", "references")

Texts = Callable[[list[int]], dict[str, list[str]]]


class Mistake(NamedTuple):
    """A wrong prediction on test: its position in the split, its label and its score."""

    position: int
    label: int
    score: float


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
    traces : dict
        How the traces were made, in words, as the store records it.
    directory : Path or None
        Of the run.
    """

    results: Json
    val_labels: Labels
    test_labels: Labels
    scored: ScoredByName
    trace_ids: list[str]
    texts: Texts
    traces: dict[str, str] = field(default_factory=dict)
    directory: Path | None = None

    @property
    def kinds(self) -> Kinds:
        """Kind -> names, of several splits those that each of them has."""
        return find_kinds(self.results)

    @property
    def shown(self) -> list[str]:
        """The names that figures of curves show."""
        areas = {name: self.summary[name]["val"]["auroc"] for name in self.ranking}
        return choose_shown(self.kinds, areas)

    @property
    def shown_results(self) -> Json:
        """The results; of several splits their means."""
        return over_all_splits(self.results)

    @property
    def summary(self) -> Json:
        """Name -> entry; of several splits the means over them."""
        return self.shown_results["models"] | self.shown_results["baselines"]

    @property
    def verdict(self) -> Json | None:
        """The comparison of the best two; of several splits that over all of them."""
        return self.shown_results["verdict"]

    @property
    def entries(self) -> dict[str, Json]:
        """Name -> entry, of several splits that of the first one, whose curves are drawn."""
        entries = self.results["models"] | self.results["baselines"]
        return {name: entries[name] for name in self.summary}

    @property
    def ranking(self) -> list[str]:
        """Names by their AUROC on test, best first, without constant scores; as in `summary`."""
        names = [name for name, entry in self.summary.items() if ranks(entry)]
        return sorted(names, key=lambda name: -self.summary[name]["test"]["auroc"])

    def measured(self, metric: str) -> Areas:
        """A metric on test of each name, in the order of `ranking`."""
        return {name: self.entries[name]["test"][metric] for name in self.ranking}

    @property
    def best(self) -> str:
        """The detector with the best validation AUROC; without detectors, the best baseline."""
        return best_on_validation(validation_aurocs(self.shown_results))

    def runs(self, name: str) -> Iterator[tuple[Scores, float]]:
        """Test scores (n_test,) and threshold, chosen on validation, of each run."""
        scored = self.scored[name]
        for val, test in zip(scored.val, scored.test, strict=True):
            yield test, youden_threshold(self.val_labels, val)


def gather_evidence(experiment: Experiment, data: TrainingData) -> Evidence:
    """The evidence of a run that has just ended."""
    splits = data.splits
    store = data.store
    stored = store.schema.columns
    columns = [name for name in TEXT_COLUMNS if name in stored and stored[name].is_text]

    def read_texts(positions: list[int]) -> dict[str, list[str]]:
        if not (columns and positions):
            return {}
        batch = store.read(splits.test[positions], columns=columns)
        return {name: batch.texts(name) for name in columns}

    return Evidence(
        results=experiment.results,
        val_labels=splits.labels_of("val"),
        test_labels=splits.labels_of("test"),
        scored=experiment.scored,
        trace_ids=[store.ids[row] for row in splits.test.tolist()],
        texts=read_texts,
        traces=describe_traces(store.provenance),
        directory=experiment.directory.path,
    )


def find_mistakes(evidence: Evidence, name: str, n: int = 20) -> list[Mistake]:
    """The `n` most confident wrong predictions on test; of several runs, of their mean scores."""
    scores = evidence.scored[name].test.mean(0)
    threshold = evidence.entries[name]["test"]["threshold"]
    if not math.isfinite(threshold):
        return []
    labels = evidence.test_labels
    wrong = np.flatnonzero((scores >= threshold) != labels)
    order = np.argsort(-confidence(scores, threshold)[wrong], kind="stable")
    surest = wrong[order][:n].tolist()
    return [Mistake(i, int(labels[i]), float(scores[i])) for i in surest]
