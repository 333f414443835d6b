"""Scores of any traces by the detectors of a finished run, and where they are written."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import BASELINES, DETECTORS, PROBES, FittedProbe, find
from store import Column, StoreWriter, TraceStore
from store.errors import closest
from store.format.layers import format_layers
from store.format.origin import LAYERS, find_difference, origins_of
from store.sources.split import side_of_question as split_of_question
from store.write.build import unfinished
from train.config import Config, check_config, settings_of
from train.data.batches import TrainingData
from train.data.requirements import check_reader, has_numbers
from train.data.split import all_as_test
from train.errors import CheckpointError, ConfigError, DataError
from train.files import replace_file
from train.fit.cpu import cpu_arithmetic, default_threads
from train.fit.device import build_fabric, for_a_batch, memory_enough
from train.fit.loop import predict
from train.fit.probes import read_features, probe_margin
from train.run.checkpoint import load_checkpoint, load_weights
from train.run.directory import RunDirectory, read_json
from train.run.experiment import build_detector, hidden_size, read_layers

__all__ = [
    "TrainedRun",
    "choose_names",
    "find_mismatch",
    "is_recorded",
    "open_output",
    "open_run",
    "open_store",
    "score_store",
    "write_columns",
    "write_csv",
]


@dataclass(frozen=True)
class TrainedRun:
    """A run that has written its results.

    Attributes
    ----------
    directory : RunDirectory
        Where its files are.
    config : Config
        Its settings.
    names : list of str
        Its detectors, probes and baselines, as far as this process knows them.
    unknown : list of str
        Its detectors and probes that this process does not know: plug-ins that were not imported.
    store : dict
        What it was trained on, as `train.run.directory.describe_store` has it.
    layers : dict or None
        Column -> its layers that were read, as the model numbers them; None: not recorded.
    """

    directory: RunDirectory
    config: Config
    names: list[str]
    unknown: list[str]
    store: dict[str, Any]
    layers: dict[str, list[int]] | None


def open_run(path: Path) -> TrainedRun:
    """Read what a finished run says of itself; raises CheckpointError where there is none."""
    results = read_json(path / "results.json")
    if results is None:
        raise CheckpointError(
            f"{path}: expected the results.json of a finished run, found none; train, or --resume"
        )
    groups = [results.get(group) for group in ("models", "baselines")]
    if not all(isinstance(group, dict) for group in groups) or not isinstance(
        results.get("run"), str
    ):
        raise CheckpointError(
            f"{path / 'results.json'}: expected the results of a run, found something else; train again"
        )
    config = Config(**settings_of(results, str(path / "results.json")))
    check_config(config)
    if config.on_top_of is not None and config.on_top_of not in BASELINES:
        raise CheckpointError(
            f"{path}: expected a baseline to start from, found {config.on_top_of!r:.80}; train again"
        )
    every = [name for group in groups for name in group]
    known = [name for name in every if name in DETECTORS or name in PROBES or name in BASELINES]
    store, layers = results.get("store"), results.get("layers")
    if not is_record(store, layers):
        raise CheckpointError(
            f"{path / 'results.json'}: what it says of the store or the layers is damaged; train again"
        )
    return TrainedRun(
        directory=RunDirectory(path, results["run"], resumed=True),
        config=config,
        names=known,
        unknown=[name for name in groups[0] if name not in known],
        store=store if isinstance(store, dict) else {},
        layers=layers if isinstance(layers, dict) else None,
    )


def is_record(store: Any, layers: Any) -> bool:
    """Whether this is what a run writes of its store and its layers, or nothing, as older versions
    did."""
    origins = store.get("origins") if isinstance(store, dict) else None
    good_origins = origins is None or (
        isinstance(origins, list) and all(isinstance(origin, dict) for origin in origins)
    )
    good_layers = layers is None or (
        isinstance(layers, dict) and all(isinstance(numbers, list) for numbers in layers.values())
    )
    numbers = (
        [number for some in layers.values() for number in some] if layers and good_layers else []
    )
    return good_origins and good_layers and all(isinstance(number, int) for number in numbers)


def choose_names(run: TrainedRun, text: str | None) -> list[str]:
    """The names that a command line asks for; all detectors and probes of the run if it names none.

    Raises
    ------
    ConfigError
        A name is not of the run, or is one that this process does not know.
    """
    wanted = (
        text.split(",")
        if text
        else [*run.unknown, *(name for name in run.names if name not in BASELINES)]
    )
    for name in wanted:
        if name in run.unknown:
            raise ConfigError(
                f"--models: the run has a detector {name!r:.80} that this process does not know: its class is not in "
                "the registry of models/__init__.py; add it there, or register it before the command runs, or choose "
                f"from {', '.join(run.names)}"
            )
        if name not in run.names:
            raise ConfigError(
                f"--models: the run has no {name!r:.80}{closest(name, run.names)}; choose from {', '.join(run.names)}"
            )
    if not wanted:
        raise ConfigError(
            f"--models: the run has no detector; choose from its baselines, {', '.join(run.names)}"
        )
    return wanted


def open_store(path: Path, names: Sequence[str], config: Config) -> TrainingData:
    """The whole store as the test split; raises DataError where a column is missing."""
    begun = unfinished(path)
    if begun is not None:
        raise DataError(begun)
    store = TraceStore.open(path, config.cache_size)
    data = TrainingData(store, all_as_test(store, config.seed), config.replaced, config.layers)
    for name in [*names, *filter(None, [config.on_top_of])]:
        check_reader(name, data, "or leave it out with --models")
    return data


def find_mismatch(run: TrainedRun, names: Sequence[str], data: TrainingData) -> str | None:
    """Say why scores of these traces would mean nothing: the run was trained on those of another
    model; None if not.

    Layers are compared as they are read, other things as the stores record them; what one side does
    not record is not compared.
    """
    if run.store.get("uuid") == data.store.uuid:
        return None
    known = run.store.get("origins")
    if not isinstance(known, list) or run.layers is None:
        return "the run was made by an older version and does not record of which model and layers its traces were"
    is_known = has_numbers(data.store) or not run.store.get("layers_recorded")
    for role, numbers in read_layers(names, data).items():
        trained = run.layers.get(role, numbers)
        if not is_known:
            return (
                f"column {role!r}: the store does not record which layers it keeps, and the run was trained on layers "
                f"{format_layers(trained)} of its model"
            )
        if trained != numbers:
            read, wanted = format_layers(numbers), format_layers(trained)
            return f"column {role!r}: layers {read}, where the run was trained on layers {wanted}"
    for origin in origins_of(data.store.provenance):
        difference = find_difference(known, origin, without=[LAYERS])
        if difference:
            return f"{difference.key} {difference.found!r:.100}, where the run was trained on {difference.expected!r:.100}"
    return None


def is_recorded(run: TrainedRun, data: TrainingData) -> bool:
    """Whether both sides say of which model their traces are."""
    key = "weights_sha256"
    origins = [*run.store.get("origins", ()), *origins_of(data.store.provenance)]
    return run.store.get("uuid") == data.store.uuid or all(key in origin for origin in origins)


def score_store(
    run: TrainedRun, names: Sequence[str], data: TrainingData
) -> dict[str, NDArray[np.float64]]:
    """Probability of hallucination of every trace, (n_rows,) by name; the mean over the run's
    seeds."""
    if not len(data.store):
        return {name: np.zeros(0) for name in names}
    fabric = build_fabric(run.config)
    start = run.config.on_top_of
    if start is not None:
        features = {"test": read_features(start, BASELINES[start], run.config, data, "test")}
        data = replace(data, base_margin=probe_margin(load_probe(start, run), features, data))
    score = {name: score_detector if name in DETECTORS else score_probe for name in names}
    return {name: score[name](fabric, name, run, data) for name in names}


def score_detector(
    fabric: Fabric, name: str, run: TrainedRun, data: TrainingData
) -> NDArray[np.float64]:
    """Mean scores of a detector's trainings, (n_rows,)."""
    shapes = data.item_shapes(DETECTORS[name].columns)
    scores = []
    for seed in range(run.config.seed, run.config.seed + run.config.seeds):
        trained = run.directory.load_trained(name, seed)
        expected = {role: tuple(shape) for role, shape in trained["shapes"].items()}
        if expected != shapes:
            raise ConfigError(
                f"{data.store.path}: {name}: expected rows of shape {expected}, as in the run, found {shapes}; "
                "give traces of the same model, with the same layers"
            )
        detector = build_detector(name, data, run.config)
        load_weights(detector, trained["weights"], run.directory.checkpoint(name, seed))
        with (
            cpu_arithmetic(default_threads(hidden_size(name, data))),
            memory_enough(name, for_a_batch(run.config)),
        ):
            scores.append(predict(fabric, detector.to(fabric.device), data, "test", run.config))
    return np.mean(scores, axis=0)


def score_probe(
    fabric: Fabric, name: str, run: TrainedRun, data: TrainingData
) -> NDArray[np.float64]:
    """Scores of a probe or baseline, (n_rows,)."""
    features = read_features(name, find(name), run.config, data, "test")
    try:
        return load_probe(name, run).predict(features)
    except ValueError as error:
        raise ConfigError(
            f"{data.store.path}: {name}: {error}; give traces of the same model"
        ) from error


def load_probe(name: str, run: TrainedRun) -> FittedProbe:
    """Read what a run fitted."""
    path = run.directory.path / f"{name}.pt"
    saved = load_checkpoint(path, run.directory.owner(name, run.config.seed))
    try:
        return FittedProbe.from_dict(saved)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: expected a fitted probe, found a file without {error}; train again"
        ) from error


def write_columns(store: TraceStore, scores: dict[str, NDArray[np.float64]]) -> None:
    """Add the scores to the store, float32, or replace those of an earlier run; all of them or
    none."""
    columns = {f"score_{name}": Column("float32") for name in scores}
    values = zip(*(one.astype(np.float32) for one in scores.values()), strict=True)
    with StoreWriter.open(store.path) as writer:
        if len(writer) != len(store):
            raise ConfigError(
                f"{store.path}: expected the {len(store)} traces that were scored, found {len(writer)}: another writer "
                "appended meanwhile; run the command again"
            )
        writer.set_columns(columns, (dict(zip(columns, row, strict=True)) for row in values))


def write_csv(
    file: TextIO, store: TraceStore, scores: dict[str, NDArray[np.float64]], seed: int
) -> None:
    """A line per trace: trace_id, split, and a score for each name."""
    asked = "question_id" in store.schema.columns
    questions = store.column("question_id") if asked else []
    splits = [split_of_question(question, seed) for question in questions] or [""] * len(store)
    writer = csv.writer(file)
    writer.writerow(["trace_id", "split", *scores])
    for trace_id, split, *row in zip(
        store.ids, splits, *(one.tolist() for one in scores.values()), strict=True
    ):
        writer.writerow([trace_id, split, *row])


@contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """The terminal, or a file that is whole or not there."""
    if path is None:
        yield sys.stdout
        return
    with replace_file(Path(path)) as temporary, temporary.open("w", newline="") as file:
        yield file
