"""The input of a report: results, and the scores, labels and trace ids of validation and test.

Texts are read for the few traces that are shown. A method is of a kind; its style depends on its
name alone, so that it looks the same in every figure of every report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models import BASELINES, CONTROLS, DETECTORS, PROBES
from store.traces.origin import records_of
from train.evaluate.frame import Frame
from train.evaluate.metrics import Areas, Curve, Labels, Scores, confidence, youden_threshold
from train.evaluate.results import Entries, Results, TrainingFacts

if TYPE_CHECKING:
    from train.run.experiment import Experiment

__all__ = [
    "COLOURS",
    "KINDS",
    "Evidence",
    "Kinds",
    "Mistake",
    "Style",
    "Styles",
    "choose_shown",
    "describe_traces",
    "find_kinds",
    "find_mistakes",
    "find_styles",
    "gather_evidence",
]

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
    """Everything that a report shows or draws."""

    results: Results
    frame: Frame[str]
    texts: Texts  # (positions in the test split) -> column name -> the text of each
    # how the traces were made, in words, as the store records it
    traces: dict[str, str] = field(default_factory=dict)
    directory: Path | None = None  # of the run

    @property
    def kinds(self) -> Kinds:
        """Kind -> names, of several splits those that each of them has."""
        return find_kinds(self.results)

    @property
    def shown(self) -> list[str]:
        """The names that figures of curves show."""
        areas = {name: self.summary[name].val.auroc for name in self.ranking}
        return choose_shown(self.kinds, areas)

    @property
    def summary(self) -> Entries:
        """Name -> entry; of several splits the means over them."""
        return self.results.shown.entries

    @property
    def entries(self) -> Entries:
        """Name -> entry, of several splits that of the first one, whose curves are drawn."""
        return {name: self.results.entries[name] for name in self.summary}

    @property
    def ranking(self) -> list[str]:
        """Names by their AUROC on test, best first, without constant scores; as in `summary`."""
        names = [name for name, entry in self.summary.items() if entry.test.ranks]
        return sorted(names, key=lambda name: -self.summary[name].test.auroc)

    @property
    def has_seeds(self) -> bool:
        """Whether a detector was trained more than once on a split."""
        return any(len(runs) > 1 for runs in self.frame.scores.values())

    @property
    def test_labels(self) -> Labels:
        return self.frame.test.labels

    @property
    def histories(self) -> dict[str, list[NDArray]]:
        """Name -> (3, n_epochs) of each of its trainings: epoch from 1 on, loss, validation AUROC.

        Epoch 0 is the start of a training on top of other log-odds. NaN is a gap in a line.
        """
        return {
            name: [read_history(run) for run in entry.runs]
            for name, entry in self.entries.items()
            if entry.runs
        }

    @property
    def layers(self) -> dict[str, Curve]:
        """Name -> layers and the validation AUROC of each, both (n_layers,), of probes by layer."""
        return {
            name: (np.array(entry.layers), np.array(entry.layer_val_auroc, np.float64))
            for name, entry in self.entries.items()
            if entry.layers
        }

    def measured(self, metric: str) -> Areas:
        """A metric on test of each name that figures show, in the order of `ranking`."""
        names = [name for name in self.ranking if name in self.shown]
        return {name: getattr(self.entries[name].test, metric) for name in names}

    def runs(self, name: str) -> Iterator[tuple[Scores, float]]:
        """Test scores (n_test,) and threshold, chosen on validation, of each run."""
        val, test = self.frame.val, self.frame.test
        for of_val, of_test in zip(val.scores[name], test.scores[name], strict=True):
            yield of_test, youden_threshold(val.labels, of_val)


def read_history(run: TrainingFacts) -> NDArray:
    """By epoch: its number from 1, loss, AUROC on validation, and whether its weights were kept."""
    numbers = [
        (one.epoch + 1, one.loss, one.val_auroc, one.epoch == run.best_epoch) for one in run.history
    ]
    if run.start_val_auroc is not None:
        numbers.insert(0, (0, np.nan, run.start_val_auroc, run.kept_start))
    return np.array(numbers, np.float64).T


def gather_evidence(experiment: Experiment) -> Evidence:
    """The evidence of a run that has just ended."""
    store = experiment.data.store
    stored = store.schema.columns
    columns = [name for name in TEXT_COLUMNS if name in stored and stored[name].is_text]

    def read_texts(positions: list[int]) -> dict[str, list[str]]:
        if not (columns and positions):
            return {}
        batch = store.read(experiment.data.splits.test[positions], columns=columns)
        return {name: batch.texts(name) for name in columns}

    return Evidence(
        results=experiment.results,
        frame=experiment.frame,
        texts=read_texts,
        traces=describe_traces(store.provenance),
        directory=experiment.directory.path,
    )


def find_mistakes(evidence: Evidence, name: str, n: int = 20) -> list[Mistake]:
    """The `n` most confident wrong predictions on test; of several runs, of their mean scores."""
    scores = evidence.frame.test.mean(name)
    threshold = evidence.entries[name].test.threshold
    if threshold is None or not math.isfinite(threshold):
        return []
    labels = evidence.test_labels
    wrong = np.flatnonzero((scores >= threshold) != labels)
    order = np.argsort(-confidence(scores, threshold)[wrong], kind="stable")
    surest = wrong[order][:n].tolist()
    return [Mistake(i, int(labels[i]), float(scores[i])) for i in surest]


WORDS = {  # key of the provenance -> what it is called
    "source": "made by",
    "model": "model",
    "architecture": "architecture",
    "dtype": "precision of the model",
    "quantization": "quantization",
    "prompt_template": "prompt",
    "chat_prompt": "chat prompt",
    "decoding": "decoding",
    "label_rule": "labels",
    "label_rules": "labels of each rule",
    "judge": "judge",
    "score_threshold": "label threshold of the score",
    "questions": "questions",
    "layer_convention": "layers",
}
N_CHARACTERS = 600


def describe_traces(provenance: Mapping[str, object]) -> dict[str, str]:
    """What is recorded of the traces: name -> text, for a table.

    Of stores that were merged each is looked at, and different values of a key are joined. The
    result is in the order of `WORDS`, and empty where nothing is recorded.
    """
    records = list(records_of(provenance))
    described = {}
    for key, name in WORDS.items():
        values = [in_words(record[key]) for record in records if record.get(key) is not None]
        if values:
            described[name] = "; ".join(dict.fromkeys(values))[:N_CHARACTERS]
    return described


def in_words(value: object) -> str:
    """A text as it is, an object as NAME = VALUE without what is null, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} = {in_words(part)}" for name, part in value.items() if part is not None
        )
    return json.dumps(value, ensure_ascii=False)


Style = dict[str, Any]
Styles = dict[str, Style]  # by name
Kinds = dict[str, list[str]]  # kind -> names

KINDS = ("detectors", "probes", "baselines", "controls")
# Okabe and Ito's colours for colour-blind readers, without yellow, which is invisible on white; and
# grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
REGISTERED: dict[str, list[str]] = {
    "detectors": list(DETECTORS),
    "probes": list(PROBES),
    "baselines": list(BASELINES),
    "controls": list(CONTROLS),
}
WIDTHS = {"detectors": 2.0, "probes": 1.7, "baselines": 1.3, "controls": 1.1}
PATTERNS: dict[str, tuple[Any, ...]] = {  # of lines, in turn, once all colours are taken
    "detectors": ("-", (0, (8, 1)), (0, (12, 1.5, 2, 1.5)), (0, (3, 1, 3, 1, 1, 1))),
    "probes": ((0, (5, 1, 1, 1)), (0, (7, 1, 1, 1, 1, 1)), (0, (2, 0.6)), (0, (9, 2))),
    "baselines": ((0, (4, 1.5)), (0, (1.6, 1.1)), (0, (6, 1.5, 1, 1.5)), (0, (10, 3))),
    "controls": ((0, (1, 1.6)), (0, (1, 3)), (0, (2, 3)), (0, (1, 1, 3, 1))),
}
N_SHOWN = 8  # curves in a figure: more cannot be told apart
PLACES = {"detectors": 4, "probes": 1, "baselines": 2, "controls": 1}  # among them


def find_kinds(results: Results) -> Kinds:
    """Kind -> names of that kind in the order of the results; kinds without a name are left out.

    Of several splits the names that each of them has: the others have no mean to be shown.
    """
    kinds: Kinds = {kind: [] for kind in KINDS}
    for name in results.shown.models:  # means have no runs
        kinds["detectors" if results.models[name].runs is not None else "probes"].append(name)
    for name, entry in results.shown.baselines.items():
        kinds["controls" if entry.control else "baselines"].append(name)
    return {kind: names for kind, names in kinds.items() if names}


def choose_shown(kinds: Kinds, areas: Areas) -> list[str]:
    """Choose the names that a figure shows: the best of each kind, and then the best of the others.

    `kinds` is kind -> names, `areas` name -> AUROC on validation; names without one are not shown.
    Returns at most `N_SHOWN` names, in the order of `kinds`.
    """
    ranked = sorted(areas, key=areas.__getitem__, reverse=True)
    chosen: set[str] = set()
    for kind, names in kinds.items():
        chosen |= set([name for name in ranked if name in names][: PLACES[kind]])
    chosen = set([name for name in ranked if name in chosen][:N_SHOWN])
    chosen |= set([name for name in ranked if name not in chosen][: N_SHOWN - len(chosen)])
    return [name for names in kinds.values() for name in names if name in chosen]


def find_styles(kinds: Kinds) -> Styles:
    """Name -> style of its line, by its place among those of its kind in this package or after."""
    styles: Styles = {}
    for kind, names in kinds.items():
        ordered = list(dict.fromkeys([*REGISTERED[kind], *names]))
        styles |= {name: find_style(kind, ordered.index(name)) for name in names}
    return styles


def find_style(kind: str, place: int) -> Style:
    turn, colour = divmod(place, len(COLOURS))
    patterns = PATTERNS[kind]
    return {
        "color": COLOURS[colour],
        "linewidth": WIDTHS[kind],
        "linestyle": patterns[turn % len(patterns)],
    }
