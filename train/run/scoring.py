"""Scores of any traces, and of their tokens, by what a finished run has trained."""

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import DETECTORS, METHODS, PROBES, REFERENCES, Detector, FittedProbe, find
from store import Trace, TraceStore
from store.errors import closest
from store.traces.layers import format_layers
from store.traces.origin import find_difference, origins_of
from train.config import Config, check_config, config_of_run
from train.data.batches import TrainingData, has_numbers, open_stores
from train.data.in_memory import ANSWER, DataInMemory, data_in_memory
from train.data.requirements import check_reader, columns_of, reader_of
from train.data.splits import all_as_test
from train.errors import CheckpointError, ConfigError, DataError
from train.evaluate.metrics import Scores
from train.evaluate.results import Results, StoreRecord
from train.fit.device import (
    build_fabric,
    cpu_arithmetic,
    default_threads,
    for_a_batch,
    memory_enough,
)
from train.fit.loop import predict
from train.fit.probes import AnyFitted, predict_probe, probe_margin, read_features
from train.fit.token_scores import detector_tokens, probe_tokens
from train.outside import LOADED, NOTHING, load_chosen
from train.run.checkpoint import Checkpoint, RunDirectory, load_weights
from train.run.detectors import (
    build_detector,
    hidden_size,
    numbers_of_layers,
    read_layers,
    settings_of_training,
)
from train.run.results import read_results

__all__ = [
    "Scorer",
    "TrainedModels",
    "check_comparable",
    "checkpoints_of",
    "choose_names",
    "keep_in_memory",
    "load_detector",
    "needed_by",
    "open_models",
    "read_data",
    "trained_models",
]

Loaded = TypeVar("Loaded")
Shapes = dict[str, tuple[int, ...]]  # column -> shape of one item
LOCK = RLock()  # the number of threads of arithmetic is one for the process


def begin_child() -> None:
    """In a forked process: OpenMP would wait for threads that are not there."""
    LOCK.release()
    torch.set_num_threads(1)


# a fork waits for scores: locks that another thread held would stay held in the child
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=begin_child)


@dataclass(frozen=True)
class TrainedModels:
    """The detectors, probes and baselines that a finished run has trained."""

    directory: RunDirectory  # where their weights are
    config: Config
    results: Results
    names: list[str]  # those whose classes this process knows
    # detectors and probes that this process does not know: plug-ins that were not imported
    unknown: list[str]
    loaded: dict[Hashable, object] | None = None  # what is built already, where it is kept
    exported: list[str] | None = None  # what a file was made of, by name

    @property
    def store(self) -> StoreRecord:
        """What they were trained on."""
        return self.results.store

    def once(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """What is loaded, which is kept where `loaded` is."""
        if self.loaded is None:
            return load()
        if key not in self.loaded:
            self.loaded[key] = load()
        return cast(Loaded, self.loaded[key])


def open_models(directory: Path) -> TrainedModels:
    """Read what a finished run has trained; raises TrainError where there is no such run."""
    path = directory / "results.json"
    results = read_results(path)
    return trained_models(results, RunDirectory(directory, results.run, resumed=True), path)


def trained_models(results: Results, directory: RunDirectory, path: Path) -> TrainedModels:
    """What a run has trained, by its results, read from `path`; raises TrainError for wrong ones"""
    config = config_of_run(results.config, str(path))
    check_config(config)
    if config.on_top_of is not None and config.on_top_of not in REFERENCES:
        raise CheckpointError(
            f"{path}: on_top_of: expected a baseline, found {config.on_top_of!r:.80}; train again"
        )
    return TrainedModels(
        directory=directory,
        config=config,
        results=results,
        names=[name for name in results.entries if name in METHODS],
        unknown=[name for name in results.models if name not in METHODS],
    )


def choose_names(models: TrainedModels, text: str | None) -> list[str]:
    """The names in a comma-separated text; without it all detectors and probes, or all exported.

    Raises ConfigError if a name is not of the run, or is one that this process does not know.
    """
    choices = ", ".join(models.names)
    if text:
        names = text.split(",")
    elif models.exported:
        names = models.exported
    else:
        names = [*models.unknown, *(name for name in models.names if name in DETECTORS | PROBES)]
    for name in names:
        if name in models.unknown:
            place = models.config.outside.get(name, NOTHING).place
            trained = "" if place is None else f" (the run had it from {place!r:.200})"
            raise ConfigError(
                f"--models: the run has a detector {name!r:.80} that this process does not know"
                f"{trained}: give --models FILE.py:CLASS, which runs that file, or choose from "
                f"{choices}"
            )
        if name not in models.names:
            raise ConfigError(
                f"--models: the run has no {name!r:.80}{closest(name, models.names)}; "
                f"choose from {choices}"
            )
    load_chosen(names)
    if not names:
        raise ConfigError(
            f"--models: the run has no detector; choose from its baselines, {choices}"
        )
    return names


def read_data(traces: object, names: Sequence[str], models: TrainedModels) -> TrainingData:
    """Traces as the test split; raises DataError where a column is missing.

    They are a store, its path, those of several, some traces of one, or in memory
    (`data_in_memory`).
    """
    config = models.config
    some = [traces] if isinstance(traces, Trace) else traces
    if isinstance(some, str | Path):
        some = [some]
    if isinstance(some, list) and some and all(isinstance(one, str | Path) for one in some):
        some = open_stores(list(map(Path, some)), config)
    if isinstance(some, TraceStore):
        data = TrainingData(some, all_as_test(some, config.seed), config)
    elif isinstance(some, Sequence) and some and all(isinstance(one, Trace) for one in some):
        data = data_of(some, config)
    else:
        data = data_in_memory(some, models.results.layers, config)
    for name in needed_by(names, models):
        check_reader(name, data, "or leave it out with --models")
        if isinstance(data, DataInMemory) and {*ANSWER}.issubset(columns_of(name, data)):
            data.check_answers()
    return data


def data_of(traces: Sequence[Trace], config: Config) -> TrainingData:
    """Some traces of one store as the test split."""
    store = traces[0].store
    if any(one.store is not store for one in traces) or not isinstance(store, TraceStore):
        raise DataError("traces: expected those of one store, found several; score each by itself")
    splits = all_as_test(store, config.seed)
    rows = np.array([one.row for one in traces], np.int64)
    return TrainingData(store, replace(splits, test=rows), config)


def check_comparable(
    models: TrainedModels, names: Sequence[str], data: TrainingData, *, force: bool
) -> list[str]:
    """Check that the traces are of the model that the run was trained on.

    Returns remarks for the user. Raises DataError if they are not, unless forced.
    Of traces in memory only the shapes are known, which are checked where they are read.
    """
    if models.store.uuid == data.store.uuid or isinstance(data, DataInMemory):
        return []
    mismatch = find_mismatch(models, names, data)
    if mismatch and not force:
        raise DataError(
            f"{data.store.location}: {mismatch}; scores would mean nothing: give traces of the "
            "same model and layers (--force scores these all the same)"
        )
    if mismatch:
        return [f"forced, although {mismatch}"]
    origins = [*models.store.origins, *origins_of(data.store.provenance)]
    if all("weights_sha256" in origin for origin in origins):
        return []
    return [
        "not checked whether the traces are of the run's model: "
        "the run or the store does not record it"
    ]


def find_mismatch(models: TrainedModels, names: Sequence[str], data: TrainingData) -> str | None:
    """Say how the traces differ from those that the run was trained on; None if they do not.

    Layers are compared as they are read, other things as the stores record them. What either of
    them does not record is not compared.
    """
    for name in needed_by(names, models):
        mismatch = find_other_layers(name, models, data)
        if mismatch is not None:
            return mismatch
    read = [number for numbers in models.results.layers.values() for number in numbers]
    for origin in origins_of(data.store.provenance):
        difference = find_difference(models.store.origins, origin, read)
        if difference:
            return (
                f"{difference.key} {difference.found!r:.100}, "
                f"where the run was trained on {difference.expected!r:.100}"
            )
    return None


def find_other_layers(name: str, models: TrainedModels, data: TrainingData) -> str | None:
    """Say where a method would read other layers than those that were trained on, if it would."""
    trained = models.results.layers
    has_record = models.store.layers_recorded
    for role, numbers in read_layers([name], data).items():
        known = trained.get(role)
        if known is None and has_record:
            return (
                f"{name}: column {role!r}: layers {format_layers(numbers)}, where the run does not "
                "record which ones it read"
            )
        if known is None:
            continue
        wanted = f"the run was trained on layers {format_layers(known)}"
        if has_record and not has_numbers(data.store):
            return (
                f"column {role!r}: the store does not record which layers it keeps, "
                f"and {wanted} of its model"
            )
        if known != numbers:
            return f"column {role!r}: layers {format_layers(numbers)}, where {wanted}"
    return None


def needed_by(names: Sequence[str], models: TrainedModels) -> list[str]:
    """The names, and the baseline that detectors among them were trained on top of."""
    base = models.config.on_top_of
    if base is None or DETECTORS.keys().isdisjoint(names):
        return list(names)
    return list(dict.fromkeys([*names, base]))


def checkpoints_of(names: Sequence[str], models: TrainedModels) -> dict[Path, Checkpoint]:
    """Everything that scores by these names need; raises CheckpointError."""
    config = models.config
    found = {}
    for name in needed_by(names, models):
        n_seeds = config.seeds if name in DETECTORS else 1
        for seed in range(config.seed, config.seed + n_seeds):
            files = models.directory.training(name, seed)
            path = files.checkpoint if name in DETECTORS else models.directory.probe(name)
            found[path] = models.directory.load(path, files.owner)
    return found


def keep_in_memory(models: TrainedModels, names: Sequence[str]) -> TrainedModels:
    """The same, that reads no file any more, and builds each method once."""
    directory = replace(models.directory, memory=checkpoints_of(names, models))
    return replace(models, directory=directory, loaded={})


@dataclass(frozen=True)
class Scorer:
    """Scores of a store's rows, which are the test split of `data`, by what a run has trained.

    Those of a detector are the mean over the run's seeds, on top of what it was trained on top of.
    """

    models: TrainedModels
    data: TrainingData
    remarks: Sequence[str] = ()  # on the methods, and on what could not be checked of the traces

    def scores(self, names: Iterable[str]) -> dict[str, Scores]:
        """As `score`, by name."""
        return {name: self.score(name) for name in names}

    @cached_property
    def fabric(self) -> Fabric:
        return build_fabric(self.data.config)

    @cached_property
    def of_detectors(self) -> TrainingData:
        """The data with the log-odds that the detectors add to."""
        name = self.data.config.on_top_of
        if name is None:
            return self.data
        probe = load_probe(name, self.models)
        margin = probe_margin(probe, {"test": self.features(name)}, self.data)
        return replace(self.data, base_margin=margin)

    def features(self, name: str) -> Any:
        return read_features(name, reader_of(name, self.data), self.data, "test")

    def score(self, name: str) -> Scores:
        """Probability of hallucination of each row, (n_rows,); one thread at a time."""
        if not len(self.data.splits.test):
            return np.zeros(0)
        with LOCK:
            if name in DETECTORS:
                return self.mean_over_seeds(
                    name, lambda one: predict(self.fabric, one, self.of_detectors, "test")
                )
            fitted = load_probe(name, self.models)
            try:
                return predict_probe(name, fitted, self.features(name), self.data, "test")
            except ValueError as error:
                raise ConfigError(
                    f"{self.data.store.location}: {name}: {error}; give traces of the same model"
                ) from error

    def score_tokens(self, name: str) -> NDArray[np.float32]:
        """Scores of the tokens of all rows, (n_tokens,), by a method of `names_with_tokens`."""
        if not len(self.data.splits.test):
            return np.zeros(0, np.float32)
        with LOCK:
            if name in DETECTORS:
                return self.mean_over_seeds(
                    name, lambda one: detector_tokens(one, self.data, "test", self.fabric.device)
                )
            fitted = load_probe(name, self.models)
            assert isinstance(fitted, FittedProbe)  # of texts it has no columns for tokens
            return probe_tokens(reader_of(name, self.data), fitted, self.data, "test")

    def mean_over_seeds(self, name: str, score: Callable[[Detector], NDArray]) -> NDArray:
        config = self.data.config
        threads = config.threads or default_threads(hidden_size(name, self.data))
        scores = []
        for seed in range(config.seed, config.seed + config.seeds):
            detector = load_detector(name, seed, self.models, self.data)
            with cpu_arithmetic(threads), memory_enough(name, for_a_batch(config)):
                detector.to(self.fabric.device)
                scores.append(score(detector))
        return np.mean(scores, axis=0)


def load_detector(name: str, seed: int, models: TrainedModels, data: TrainingData) -> Detector:
    """A detector with the weights of one training; raises ConfigError if the store does not fit."""
    shapes = data.item_shapes(columns_of(name, data))
    key = name, seed, *shapes.items(), *numbers_of_layers(DETECTORS[name], data)
    return models.once(key, lambda: read_detector(name, seed, models, data, shapes))


def read_detector(
    name: str, seed: int, models: TrainedModels, data: TrainingData, shapes: Shapes
) -> Detector:
    files = models.directory.training(name, seed)
    trained = files.load_trained()
    expected = {role: tuple(shape) for role, shape in trained.shapes.items()}
    if expected != shapes:
        raise ConfigError(
            f"{data.store.location}: {name}: expected rows of shape {expected}, as in the run, "
            f"found {shapes}; give traces of the same model, with the same layers"
        )
    data = data.with_settings(**settings_of_training(trained.config))
    if name not in LOADED:  # in a file from anywhere, settings may ask for any size: that is free
        with torch.device("meta"):
            unfilled = build_detector(name, data)
        load_weights(unfilled, trained.weights, files.checkpoint, assign=True)
    detector = build_detector(name, data)
    load_weights(detector, trained.weights, files.checkpoint)
    return detector


def load_probe(name: str, models: TrainedModels) -> AnyFitted:
    """What was fitted of a probe, a baseline or a control."""
    return models.once(name, lambda: read_probe(name, models))


def read_probe(name: str, models: TrainedModels) -> AnyFitted:
    path = models.directory.probe(name)
    owner = models.directory.training(name, models.config.seed).owner
    saved = models.directory.load(path, owner)
    probe: Any = find(name)
    try:
        return probe.load(saved)
    except KeyError as error:
        raise CheckpointError(
            f"{path}: expected a fitted probe, found a file without {error}; train again"
        ) from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path}: expected a fitted probe; {error}; train again") from error
