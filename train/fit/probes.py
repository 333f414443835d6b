"""Fit probes and baselines: a regression on train, its alternative chosen on validation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import FittedProbe, Probe
from models.metadata import FittedFields
from models.probe import UnlearnableError
from models.question_only import FittedTextProbe, TextProbe
from models.tables import Table, TableProbe
from train.data.batches import TrainingData
from train.data.requirements import present_columns
from train.data.splits import Splits
from train.errors import ConfigError, DataError
from train.evaluate.findings import Scored
from train.evaluate.metrics import Scores, draw_folds
from train.evaluate.results import Facts

__all__ = [
    "Features",
    "fit_probe",
    "out_of_fold_margin",
    "predict_probe",
    "probe_margin",
    "read_features",
    "score_probe",
]

N_FOLDS = 5
AnyProbe = Probe | TextProbe | TableProbe
AnyFitted = FittedProbe | FittedTextProbe
Numbers = torch.Tensor | NDArray[np.object_] | Table  # (n, A, k), or texts (n,), or columns
Features = dict[str, Any]  # split -> the features that a probe is fitted on


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Features (n, A, k) of some rows by layer, of which one layer at a time is in memory.

    `features[:, i]`, (n, k), reads a layer of the store; `features[mask]` has some of the rows.
    """

    name: str
    probe: Probe
    data: TrainingData
    rows: NDArray[np.int64]  # (n,)
    shape: tuple[int, ...]
    # layer -> the numbers that some row of those first read has, bool (k,): those of train
    known: dict[int, torch.Tensor] = field(default_factory=dict)
    incomplete: set[int] = field(default_factory=set)  # rows that lacked such a number when read

    def __getitem__(self, index: NDArray | tuple[slice, int]) -> "LayerFeatures | torch.Tensor":
        if not isinstance(index, tuple):
            rows = self.rows[index]
            return replace(self, rows=rows, shape=(len(rows), *self.shape[1:]))
        _, layer = index
        data = self.data.reading(self.probe, [layer])
        numbers = compute_features(self.name, self.probe, data, self.rows)[:, 0]
        is_missing = without_targets(numbers, self.probe).isnan()
        known = self.known.setdefault(layer, ~is_missing.all(dim=0))
        self.incomplete.update(self.rows[(is_missing & known).any(1).numpy()].tolist())
        return numbers


def score_probe(name: str, probe: AnyProbe, data: TrainingData) -> tuple[Scored, AnyFitted]:
    """Fit a probe on train, choose its layer on validation, and score validation and test."""
    started_at = time.perf_counter()
    features: Features = {"train": read_features(name, probe, data, "train")}
    features["val"] = read_features(name, probe, data, "val", features["train"])
    fitted = fit_probe(probe, features, data.splits)
    val = predict_probe(name, fitted, features["val"], data, "val")[None]
    fitted_at, before = time.perf_counter(), data.store.reader.n_bytes_read
    features["test"] = read_features(name, probe, data, "test", features["train"])
    test = predict_probe(name, fitted, features["test"], data, "test")[None]
    ended_at = time.perf_counter()
    facts = describe_fit(probe, fitted, features, data)
    facts.seconds = round(ended_at - started_at, 1)
    facts.ms_per_trace = 1000 * (ended_at - fitted_at) / test.size
    facts.bytes_per_trace = (data.store.reader.n_bytes_read - before) / test.size
    return Scored(val, test, facts), fitted


def predict_probe(
    name: str, fitted: AnyFitted, features: object, data: TrainingData, split: str
) -> Scores:
    """Probability of hallucination (n_split,); raises DataError unless all are finite numbers."""
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, by trace
        scores = fitted.predict(features)
    for i in np.flatnonzero(~np.isfinite(scores))[:1]:
        row = int(data.splits.rows(split)[i])
        raise DataError(
            f"{data.store.location}: {name}: trace {data.store.ids[row]!r}: expected a finite "
            f"score, found {scores[i]}; mend the values of that trace or leave it out"
        )
    return scores


def describe_fit(
    probe: AnyProbe, fitted: AnyFitted, features: Features, data: TrainingData
) -> Facts:
    """What the results say of a fit: its size, and what validation chose."""
    facts = Facts(parameters=fitted.n_parameters(), seconds=0.0)
    if len(fitted.weight) > 1:
        facts.C = fitted.strength
    if isinstance(fitted, FittedFields):
        facts.fields = fitted.alone
    if not isinstance(probe, Probe) or not isinstance(fitted, FittedProbe):
        return facts
    # replaced by the mean over train
    facts.traces_with_missing_numbers = count_imputed(features, probe) or None
    n_alternatives = len(fitted.val_auroc)
    if probe.alternatives:
        facts.alternative = probe.alternatives[fitted.alternative]
    elif n_alternatives > 1:
        facts.layers = layers_of(probe, data, n_alternatives)
        facts.layer = facts.layers[fitted.alternative]
        facts.layer_val_auroc = list(fitted.val_auroc)
    return facts


def layers_of(probe: Probe, data: TrainingData, n: int) -> list[int]:
    """The layers that are the n alternatives of a probe, as the model numbers them; else 1 to n."""
    role = probe.columns[0]
    numbers = data.layers_or_count(role, n)
    if len(numbers) == n or probe.layers_read is None:
        return numbers
    return [numbers[position] for position in probe.layers_read]


def count_imputed(features: Features, probe: Probe) -> int:
    """Number of traces that lack a number which some trace of train has, of the numbers scored."""
    if isinstance(features["train"], LayerFeatures):
        return len(features["train"].incomplete)
    is_missing = {split: without_targets(one, probe).isnan() for split, one in features.items()}
    known = ~is_missing["train"].all(dim=0)  # (A, k)
    return sum(int((one & known).any((1, 2)).sum()) for one in is_missing.values())


def without_targets(numbers: torch.Tensor, probe: Probe) -> torch.Tensor:
    """Features (..., k) without those behind that are only learned from, which nothing imputes."""
    return numbers[..., : numbers.shape[-1] - len(probe.learns_from)]


def fit_probe(probe: AnyProbe, features: Features, splits: Splits) -> AnyFitted:
    """Fit on train, choose the alternative on validation."""
    labels, val_labels = splits.labels_of("train"), splits.labels_of("val")
    try:
        return probe.fit(features["train"], labels, features["val"], val_labels)
    except UnlearnableError as error:
        raise DataError(str(error)) from error


def read_features(
    name: str, probe: AnyProbe, data: TrainingData, split: str, train: object = None
) -> Any:
    """What a probe is fitted on or scores, of the rows of a split.

    Returns a tensor (n_split, A, k), or `LayerFeatures` that follow those of `train`; of a control
    that reads texts, an object array of them, (n_split,), and of one that reads several columns a
    `Table`. Raises DataError for infinite numbers, which `LayerFeatures` find as they read.
    """
    rows = data.splits.rows(split)
    if isinstance(probe, TextProbe):
        table = read_table(probe.columns, data, rows)
        texts = zip(*map(table.texts, probe.columns), strict=True)
        return np.array(["\n".join(of_row) for of_row in texts], dtype=object)
    if isinstance(probe, TableProbe):
        roles = [*probe.columns, *present_columns(data, probe.optional)]
        return read_table(roles, data, rows)
    if not probe.by_layer or not data.layer_numbers(probe.columns[0]):
        return compute_features(name, probe, data.reading(probe), rows)
    if isinstance(train, LayerFeatures):
        return replace(train, rows=rows, shape=(len(rows), *train.shape[1:]))
    shape = (len(rows), *data.item_shape(probe.columns[0]))
    return LayerFeatures(name, probe, data, rows, shape)


def compute_features(
    name: str, probe: Probe, data: TrainingData, rows: NDArray[np.int64]
) -> torch.Tensor:
    """Features (n, A, k) of some rows; raises DataError for infinite numbers.

    Raises ConfigError for features of another shape, as a probe from outside may have.
    """
    roles = [*probe.columns, *present_columns(data, probe.optional)]
    batches = data.loader(rows, roles)
    # A loader may reuse memory for its next batch, and features may be views of it.
    features = torch.cat(
        [
            check_features(name, probe, probe.features(batch), len(batch)).clone()
            for batch in batches
        ]
    )
    infinite = features.isinf().any((1, 2)).nonzero()
    if len(infinite):
        row = int(rows[int(infinite[0])])
        column = data.column(probe.columns[0])
        raise DataError(
            f"{data.store.location}: column {column!r}, trace {data.store.ids[row]!r}: "
            f"expected finite numbers for {name}, found infinity; mend that trace or leave it out"
        )
    return features


def check_features(name: str, probe: Probe, features: torch.Tensor, n_rows: int) -> torch.Tensor:
    """The features (n_rows, A, k) of a probe; raises ConfigError for another shape."""
    found: object = type(features).__name__
    if isinstance(features, torch.Tensor):
        found = shape = tuple(features.shape)
        n_named = len(probe.alternatives)
        if len(shape) == 3 and shape[0] == n_rows and n_named in (0, shape[1]):
            return features
    alternatives = len(probe.alternatives) or "alternatives"
    raise ConfigError(
        f"{name}: expected a tensor of features ({n_rows}, {alternatives}, numbers), traces first, "
        f"found {found}; correct the probe"
    )


def read_table(roles: Sequence[str], data: TrainingData, rows: NDArray[np.int64]) -> Table:
    """Columns of some rows by role, one text or number each; a loader packs no texts."""
    names = data.names(roles)
    batch = data.store.read(rows, columns=list(names.values()))
    is_text = {name: data.store.schema.columns[name].is_text for name in names.values()}
    columns = {
        role: np.array(batch.texts(name), dtype=object)
        if is_text[name]
        else batch.fixed(name).numpy()
        for role, name in names.items()
    }
    return Table(len(rows), columns)


def probe_margin(fitted: AnyFitted, features: Features, data: TrainingData) -> Scores:
    """Log-odds of a fitted probe for the rows of some splits, (n_rows,); 0 for the others."""
    margin = np.zeros(len(data.store))
    for split, numbers in features.items():
        margin[data.splits.rows(split)] = fitted.logits(numbers)
    return margin


def out_of_fold_margin(probe: Any, fitted: AnyFitted, train: Numbers, splits: Splits) -> Scores:
    """Log-odds of the training rows (n_train,), each by a fit that did not see its question.

    In-sample log-odds of many features are nearly perfect on train, so that nothing would be left
    for a detector to learn; those of unseen questions are as good as on test (stacking: Wolpert,
    1992). The fits are of four fifths of the questions, with the fitted probe's alternative and
    penalty. A fold whose other rows are of one class gets the log-odds of the base rate.
    """
    labels = splits.labels_of("train")
    base_rate = labels.mean()
    margin = np.full(len(labels), np.log(base_rate / (1 - base_rate)))
    folds = draw_folds(splits.questions[splits.train], N_FOLDS, splits.seed)
    for fold in range(N_FOLDS):
        inside = folds == fold
        others = labels[~inside]
        if inside.any() and 0 < others.sum() < len(others):
            refitted = probe.refit(fitted, train[~inside], others)
            margin[inside] = refitted.logits(train[inside])
    return margin
