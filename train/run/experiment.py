"""A run from its settings to its results: check everything, train, score the test split once.

Mistakes of the user are reported before the first file is written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import DETECTORS
from train.config import Arguments, Config
from train.data.batches import TrainingData
from train.data.own_split import read_values
from train.data.requirements import find_remarks, names_to_train, reader_of
from train.data.splits import read_splits
from train.evaluate.judge import (
    LABEL_THRESHOLDS,
    ScoredByName,
    compare_all,
    correlate,
    count_splits,
    judge,
    label_sensitivity,
    read_truth,
)
from train.evaluate.over_splits import summarise_splits
from train.evaluate.results import Results
from train.evaluate.strata import Strata, cut_by, strata_of
from train.evaluate.tokens import TokenTruth, describe_tokens, judge_tokens, read_token_truth
from train.files import Json, make_directory
from train.fit.device import cpu_arithmetic, default_threads
from train.fit.probes import fit_probe, out_of_fold_margin, probe_margin, read_split_features
from train.run.detectors import (
    build_detector,
    hidden_size,
    read_layers,
    with_chosen_layers,
    with_layer_of_tokens,
)
from train.run.directory import RunDirectory, begin_run, check_agreement, describe_store
from train.run.progress import TrainingProgress
from train.run.trainer import Trainer

__all__ = ["Experiment", "run_experiment"]

# the control whose score makes the strata, unless a column is named
STRATIFIER = "question_only"


@dataclass(frozen=True)
class Experiment:
    """The results of a split as they are written, and its scores by name.

    Attributes
    ----------
    results : Results
        Of the first of several splits with the summary of all.
    data : TrainingData
        The store, split as these results are.
    scored : dict of Scored
    directory : RunDirectory
        Where the files of this split are.
    further : tuple of Experiment
        The other splits.
    """

    results: Results
    data: TrainingData
    scored: ScoredByName
    directory: RunDirectory
    further: tuple[Experiment, ...] = ()


def run_experiment(
    arguments: Arguments, fabric: Fabric, data: TrainingData, output_dir: Path
) -> Experiment | None:
    """Train and score every detector and baseline; checkpoints go to `output_dir`, which exists.

    Of several splits the first one has its files there, each other one in a directory of its own
    below, and each is what a run with its seed would be. All processes train, and get None; only
    the first one judges the scores and gets the results.
    """
    config = arguments.config
    check_agreement(fabric, config, data)
    is_first = fabric.is_global_zero
    names = names_to_train(config, data)
    for name in names:
        if name in DETECTORS:
            build_detector(name, data, config)  # raises what would stop it later
    configs = configs_of_splits(config)
    parts = [split_again(config, one, data) for one in configs]
    directory = RunDirectory(output_dir, id="")
    if is_first:
        directory = begin_run(output_dir, arguments, data, read_layers(names, config, data))
    directory = fabric.broadcast(directory)
    experiments = []
    for one, part in zip(configs, parts, strict=True):
        place = directory if one.seed == config.seed else directory.split(one.seed)
        if is_first:
            make_directory(place.path)
        experiments.append(run_split(one, fabric, part, place, names))
    first, *further = experiments
    if first is None:
        return None
    others = tuple(experiment for experiment in further if experiment is not None)
    results = replace(first.results, config=asdict(config))
    if others:
        results.splits = summarise_splits([one.results for one in (first, *others)])
    return replace(first, results=results, further=others)


def configs_of_splits(config: Config) -> list[Config]:
    """The settings of each split: those of a run of one split with its seed."""
    return [replace(config, seed=config.seed + i, splits=1) for i in range(config.splits)]


def split_again(config: Config, one: Config, data: TrainingData) -> TrainingData:
    """The data, split as the settings of one of the splits say."""
    if one.seed != config.seed:
        data = replace(data, splits=read_splits(data.store, one))
    if one.on_top_of is not None:
        data = add_base_margin(one.on_top_of, one, data)
    return data


def run_split(
    config: Config, fabric: Fabric, data: TrainingData, directory: RunDirectory, names: list[str]
) -> Experiment | None:
    """Train and score everything on one split; None for all processes but the first."""
    is_first = fabric.is_global_zero
    detectors = [name for name in names if name in DETECTORS]
    widest = max((hidden_size(name, data) for name in detectors), default=0)
    progress = TrainingProgress(len(data.splits.train), config.epochs, visible=is_first)
    with cpu_arithmetic(config.threads or default_threads(widest)), progress:
        truth = read_token_truth(data)
        trainer = Trainer(directory, config, data, fabric, progress, truth is not None)
        for remark in find_remarks(data):
            progress.say(remark)
        scored: ScoredByName = {}
        if is_first:  # what takes seconds before what takes hours
            probes = [name for name in names if name not in DETECTORS]
            scored |= {name: trainer.fit_probe(name, reader_of(name, data)) for name in probes}
            baselines, left_out = trainer.fit_baselines()
            config = with_chosen_layers(config, detectors, baselines)
            config = with_layer_of_tokens(config, detectors, data)
        tuned = replace(trainer, config=fabric.broadcast(config))
        scored |= {name: tuned.train_detector(name) for name in detectors}
    if not is_first:
        return None
    models = {name: scored[name] for name in names}
    results = build_results(trainer, models, baselines)
    if truth is not None:
        judge_all_tokens(results, models | baselines, truth, data.splits.seed)
    results.left_out = left_out or None
    return Experiment(results, data, models | baselines, directory)


def judge_all_tokens(
    results: Results, scored: ScoredByName, truth: dict[str, TokenTruth], seed: int
) -> None:
    """Write into the results what is found of tokens, by each method that has scores of them."""
    for name, one in scored.items():
        if one.tokens:
            results.entries[name].tokens = judge_tokens(
                one.tokens["val"], one.tokens["test"], truth, seed
            )
    results.tokens = {split: describe_tokens(of_split) for split, of_split in truth.items()}


def add_base_margin(name: str, config: Config, data: TrainingData) -> TrainingData:
    """The data, with the log-odds of a baseline that detectors learn to add to."""
    probe = reader_of(name, data)
    features = read_split_features(name, probe, config, data)
    fitted = fit_probe(probe, features, data.splits)
    margin = probe_margin(fitted, features, data)
    margin[data.splits.train] = out_of_fold_margin(probe, fitted, features["train"], data.splits)
    return replace(data, base_margin=margin)


def build_results(trainer: Trainer, models: ScoredByName, baselines: ScoredByName) -> Results:
    data = trainer.data
    splits = data.splits
    scored = models | baselines
    strata = find_strata(trainer.config, data, baselines)
    comparisons, verdict = compare_all(models, baselines, splits)
    results = Results(
        run=trainer.directory.id,
        split=count_splits(splits),
        models={name: judge(scores, splits, strata) for name, scores in models.items()},
        baselines={name: judge(scores, splits, strata) for name, scores in baselines.items()},
        comparisons=comparisons,
        verdict=verdict,
        strata=None if strata is None else strata.summary(splits.labels_of("test")),
        explained=correlate(models, baselines, splits),
        store=describe_store(data.store),
        layers=read_layers(scored, trainer.config, data),
        config=asdict(trainer.config),
        machine=describe_machine(trainer.fabric),
        remarks=[*find_remarks(data), *warnings_of(models)],
    )
    truth = read_truth(data)
    if truth is not None and count_values(truth) > 2:  # of 0 and 1 every cut gives the same labels
        results.label_sensitivity = [
            label_sensitivity(scored, truth, threshold) for threshold in LABEL_THRESHOLDS
        ]
    return results


def count_values(numbers: NDArray) -> int:
    return len(np.unique(numbers[~np.isnan(numbers)]))


def find_strata(config: Config, data: TrainingData, baselines: ScoredByName) -> Strata | None:
    """The strata of the test rows: by a column, else by the score of the question alone."""
    if config.strata is not None:
        values = read_values(data.store, config.strata, "--strata", data.splits.test)
        return strata_of(f"values of {config.strata}", values)
    control = baselines.get(STRATIFIER)
    if control is None:
        return None
    return cut_by(STRATIFIER, control.val[0], control.test[0])


def warnings_of(models: ScoredByName) -> list[str]:
    """What is to be known of single trainings."""
    runs = [run for scored in models.values() for run in scored.facts.runs or []]
    return [run.warning for run in runs if run.warning is not None]


def describe_machine(fabric: Fabric) -> Json:
    device = fabric.device.type
    if device == "cuda":
        device = torch.cuda.get_device_name(fabric.device)
    return {
        "device": device,
        "processes": fabric.world_size,
        "precision": fabric.strategy.precision.precision,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
