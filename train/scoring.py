"""Scores of any traces by the detectors of a finished run, and where they are written."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import BASELINES, DETECTORS, PROBES, FittedProbe
from store import Column, StoreWriter, TraceStore
from store.split import side_of_question
from train.checkpoint import load_checkpoint, load_weights
from train.checks import check_reader
from train.config import Config, check_config, settings_of
from train.cpu import cpu_arithmetic, default_threads
from train.data import TrainingData
from train.device import build_fabric, for_a_batch, memory_enough
from train.errors import CheckpointError, ConfigError
from train.experiment import build_detector, hidden_size
from train.files import replace_file
from train.loop import predict
from train.probes import read_features, start_logits
from train.run import RunDirectory, read_json
from train.split import no_split

__all__ = ["TrainedRun", "open_output", "open_run", "open_store", "score_store", "write_columns", "write_csv"]


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
        Its detectors, probes and baselines.
    """

    directory: RunDirectory
    config: Config
    names: list[str]


def open_run(path: Path) -> TrainedRun:
    """Read what a finished run says of itself; raises CheckpointError where there is none."""
    results = read_json(path / "results.json")
    if results is None:
        raise CheckpointError(f"{path}: expected the results.json of a finished run, found none; train, or --resume")
    groups = [results.get(group) for group in ("models", "baselines")]
    if not all(isinstance(group, dict) for group in groups) or not isinstance(results.get("run"), str):
        raise CheckpointError(
            f"{path / 'results.json'}: expected the results of a run, found something else; train again"
        )
    config = Config(**settings_of(results, str(path / "results.json")))
    check_config(config)
    if config.on_top_of is not None and config.on_top_of not in BASELINES:
        raise CheckpointError(f"{path}: expected a baseline to start from, found {config.on_top_of!r:.80}; train again")
    known = {**DETECTORS, **PROBES, **BASELINES}
    names = [name for group in groups for name in group if name in known]
    return TrainedRun(RunDirectory(path, results["run"], resumed=True), config, names)


def open_store(path: Path, names: Sequence[str], config: Config) -> TrainingData:
    """The whole store as the test side; raises DataError where a column is missing."""
    store = TraceStore.open(path, config.cache_size)
    data = TrainingData(store, no_split(store, config.seed), config.replaced, config.layer_slice)
    for name in [*names, *filter(None, [config.on_top_of])]:
        check_reader(name, data, "or leave it out with --models")
    return data


def score_store(run: TrainedRun, names: Sequence[str], data: TrainingData) -> dict[str, NDArray[np.float64]]:
    """Probability of hallucination of every trace, (n_rows,) by name; the mean over the run's seeds."""
    if not len(data.store):
        return {name: np.zeros(0) for name in names}
    fabric = build_fabric(run.config)
    start = run.config.on_top_of
    if start is not None:
        features = {"test": read_features(start, BASELINES[start], run.config, data, "test")}
        data = replace(data, start=start_logits(load_probe(start, run), features, data))
    score = {name: score_detector if name in DETECTORS else score_probe for name in names}
    return {name: score[name](fabric, name, run, data) for name in names}


def score_detector(fabric: Fabric, name: str, run: TrainedRun, data: TrainingData) -> NDArray[np.float64]:
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
        detector = build_detector(name, shapes, run.config)
        load_weights(detector, trained["weights"], run.directory.checkpoint(name, seed))
        with (
            cpu_arithmetic(default_threads(hidden_size(name, data))),
            memory_enough(name, for_a_batch(run.config)),
        ):
            scores.append(predict(fabric, detector.to(fabric.device), data, "test", run.config))
    return np.mean(scores, axis=0)


def score_probe(fabric: Fabric, name: str, run: TrainedRun, data: TrainingData) -> NDArray[np.float64]:
    """Scores of a probe or baseline, (n_rows,)."""
    features = read_features(name, {**PROBES, **BASELINES}[name], run.config, data, "test")
    return load_probe(name, run).predict(features)


def load_probe(name: str, run: TrainedRun) -> FittedProbe:
    """Read what a run fitted."""
    path = run.directory.path / f"{name}.pt"
    saved = load_checkpoint(path, run.directory.owner(name, run.config.seed))
    try:
        return FittedProbe.from_dict(saved)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: expected a fitted probe, found a file without {error}; train again") from error


def write_columns(store: TraceStore, scores: dict[str, NDArray[np.float64]]) -> None:
    """Add the scores to the store, float32, or replace those of an earlier run; all of them or none."""
    columns = {f"score_{name}": Column("float32") for name in scores}
    values = zip(*(one.astype(np.float32) for one in scores.values()), strict=True)
    with StoreWriter.open(store.path) as writer:
        if len(writer) != len(store):
            raise ConfigError(
                f"{store.path}: expected the {len(store)} traces that were scored, found {len(writer)}: another writer "
                "appended meanwhile; run the command again"
            )
        writer.set_columns(columns, (dict(zip(columns, row, strict=True)) for row in values))


def write_csv(file: TextIO, store: TraceStore, scores: dict[str, NDArray[np.float64]], seed: int) -> None:
    """A line per trace: trace_id, side, and a score for each name."""
    asked = "question_id" in store.schema.columns
    questions = store.read(np.arange(len(store)), columns=["question_id"])["question_id"] if asked else []
    sides = [side_of_question(question, seed) for question in questions] or [""] * len(store)
    writer = csv.writer(file)
    writer.writerow(["trace_id", "side", *scores])
    for trace_id, side, *row in zip(store.ids, sides, *(one.tolist() for one in scores.values()), strict=True):
        writer.writerow([trace_id, side, *row])


@contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """The terminal, or a file that is whole or not there."""
    if path is None:
        yield sys.stdout
        return
    with replace_file(Path(path)) as temporary, temporary.open("w", newline="") as file:
        yield file
