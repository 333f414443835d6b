"""A run from its settings to its results: check everything, split once, train, score the test split
once.

Whatever the user could have got wrong is found before the first file is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from models import BASELINES, DETECTORS, PROBES, Detector, Probe, find
from models.losses import ClassificationLoss
from store import StoreError
from store.format.layers import choose_layers
from train.config import Arguments, Config, flag_of
from train.data.batches import TrainingData
from train.data.requirements import chosen, find_remarks, missing
from train.data.split import Splits
from train.errors import ConfigError, DataError
from train.evaluate.judge import (
    LABEL_THRESHOLDS,
    Scored,
    compare_all,
    judge,
    label_sensitivity,
    read_truth,
)
from train.fit.cpu import cpu_arithmetic, default_threads
from train.fit.device import for_a_batch, memory_enough
from train.fit.loop import Epoch, Hooks, Training, fit, predict
from train.fit.probes import fit_probe, read_split_features, score_probe, probe_margin
from train.run.checkpoint import load_weights, save_checkpoint
from train.run.directory import RunDirectory, begin_run, describe_store
from train.run.progress import TrainingProgress
from train.run.tensorboard import TensorBoardLog

__all__ = ["Experiment", "build_detector", "hidden_size", "run_experiment"]


@dataclass(frozen=True)
class Experiment:
    """What a run made: the results as they are written, and the scores behind them, by name."""

    results: dict[str, Any]
    scored: dict[str, Scored]


@dataclass(frozen=True)
class Run:
    """What all trainings of a run share; `config.seed` is the seed of the split and of the first
    training."""

    directory: RunDirectory
    config: Config
    data: TrainingData
    fabric: Fabric
    progress: TrainingProgress


class TrainingHooks(Hooks):
    """What the first process does beside training: it shows, logs and saves."""

    def __init__(self, run: Run, name: str, seed: int, log: TensorBoardLog) -> None:
        self.run, self.name, self.seed, self.log = run, name, seed, log

    def on_step(self, step: int, n_rows: int, loss: float, lr: float) -> None:
        self.run.progress.on_step(n_rows, loss)
        self.log.on_step(step - 1, loss, lr)

    def on_epoch(self, epoch: Epoch) -> None:
        self.run.progress.on_epoch(epoch)
        self.log.on_epoch(epoch)

    def on_save(self, training: Training) -> None:
        self.run.directory.save_state(self.name, self.seed, training.state_dict())


def run_experiment(
    arguments: Arguments, fabric: Fabric, data: TrainingData, output_dir: Path
) -> Experiment | None:
    """Train and score every detector and baseline; checkpoints go to `output_dir`, which exists.

    All processes train; then only the first one goes on, to the results. The others get None.
    """
    config = arguments.config
    if config.on_top_of is not None:
        data = on_top_of(config.on_top_of, config, data)
    names = chosen(config, data)
    detectors = [name for name in names if name in DETECTORS]
    for name in detectors:
        build_detector(name, data, config)  # raises what would stop it later
    directory = begin_together(fabric, arguments, data, output_dir, names)
    threads = config.threads or default_threads(
        max((hidden_size(name, data) for name in detectors), default=0)
    )
    with cpu_arithmetic(threads):
        with TrainingProgress(
            len(data.splits.train), config.epochs, visible=fabric.is_global_zero
        ) as progress:
            run = Run(directory, config, data, fabric, progress)
            for remark in find_remarks(data):
                progress.say(remark)
            fitted, baselines, left_out = (
                fit_probes(names, run) if fabric.is_global_zero else ({}, {}, {})
            )
            models = fitted | {name: train_detector(name, run) for name in detectors}
        if not fabric.is_global_zero:
            return None
    models = {name: models[name] for name in names}
    results = build_results(run, models, baselines)
    return Experiment(results | ({"left_out": left_out} if left_out else {}), models | baselines)


def fit_probes(
    names: list[str], run: Run
) -> tuple[dict[str, Scored], dict[str, Scored], dict[str, str]]:
    """Fit what takes seconds before what takes hours: the chosen probes, and every baseline that
    the store allows.

    Gives both, and why baselines were left out whose columns hold numbers that are not finite:
    nobody asked for them.
    """
    probes = {name: train_probe(name, PROBES[name], run) for name in names if name in PROBES}
    baselines, left_out = {}, {}
    for name, one in BASELINES.items():
        if missing(one.columns, run.data):
            continue
        try:
            baselines[name] = train_probe(name, one, run)
        except DataError as error:
            left_out[name] = str(error)
            run.progress.say(f"baseline {name} is left out: {error}")
    return probes, baselines, left_out


def on_top_of(name: str, config: Config, data: TrainingData) -> TrainingData:
    """The data, with the log-odds of a baseline for detectors to add to."""
    features = read_split_features(name, BASELINES[name], config, data)
    fitted = fit_probe(BASELINES[name], features, data.splits)
    return replace(data, base_margin=probe_margin(fitted, features, data))


def begin_together(
    fabric: Fabric, arguments: Arguments, data: TrainingData, output_dir: Path, names: list[str]
) -> RunDirectory:
    """Begin the run in the first process, or go on with it; the others learn its id."""
    directory = None
    if fabric.is_global_zero:
        directory = begin_run(
            output_dir,
            arguments.config,
            data.store,
            read_layers(names, data),
            resume=arguments.resume,
            overwrite=arguments.overwrite,
        )
    return fabric.broadcast(directory)


def build_results(
    run: Run, models: dict[str, Scored], baselines: dict[str, Scored]
) -> dict[str, Any]:
    """Everything that results.json holds."""
    data, scored = run.data, models | baselines
    results = {
        "run": run.directory.id,
        "split": data.splits.summary(),
        "models": {name: judge(one, data.splits) for name, one in models.items()},
        "baselines": {name: judge(one, data.splits) for name, one in baselines.items()},
        **compare_all(models, baselines, data.splits),
        "store": describe_store(data.store),
        "layers": read_layers([*models, *baselines], data),
        "config": asdict(run.config),
        "machine": describe_machine(run.fabric),
        "remarks": find_remarks(data),
    }
    truth = read_truth(data)
    if truth is not None:
        results["label_sensitivity"] = [
            label_sensitivity(scored, truth, threshold) for threshold in LABEL_THRESHOLDS
        ]
    return results


def describe_machine(fabric: Fabric) -> dict[str, Any]:
    """What the numbers were made with, as far as they may depend on it."""
    device = (
        torch.cuda.get_device_name(fabric.device)
        if fabric.device.type == "cuda"
        else fabric.device.type
    )
    return {
        "device": device,
        "processes": fabric.world_size,
        "precision": fabric.strategy.precision.precision,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def train_detector(name: str, run: Run) -> Scored:
    """Train a detector once per seed; score validation and test with the best epoch of each
    training."""
    seeds = range(run.config.seed, run.config.seed + run.config.seeds)
    with memory_enough(name, for_a_batch(run.config)):
        val, test, runs = zip(
            *(train_once(name, replace(run.config, seed=seed), run) for seed in seeds), strict=True
        )
    facts = {
        "parameters": max(one.pop("parameters") for one in runs),
        "seconds": round(sum(one["seconds"] for one in runs) / len(runs), 1),
        "runs": list(runs),
    }
    return Scored(np.stack(val), np.stack(test), facts)


def train_once(
    name: str, config: Config, run: Run
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Train a detector with `config.seed`, unless that is done; give validation scores, test scores
    and facts."""
    run.fabric.seed_everything(config.seed, verbose=False)
    detector = build_detector(name, run.data, config)
    detector.criterion = build_criterion(config, run.data.splits)
    finished = run.directory.load_finished(name, config.seed)
    if finished is None:
        finished = train_to_the_end(name, detector, config, run)
    load_weights(detector, finished["weights"], run.directory.checkpoint(name, config.seed))
    detector.to(run.fabric.device)
    val, test = (
        predict(run.fabric, detector, run.data, split, config) for split in ("val", "test")
    )
    facts = {
        key: value
        for key, value in finished.items()
        if key not in ("owner", "weights", "config", "shapes")
    }
    facts["parameters"] = detector.n_parameters()
    if detector.layer_read is not None:
        facts["layer"] = numbers_of_layers(type(detector), run.data)[detector.layer_read]
    return (
        val,
        test,
        {
            "seed": config.seed,
            "checkpoint": run.directory.checkpoint(name, config.seed).name,
            **facts,
        },
    )


def train_to_the_end(name: str, detector: Detector, config: Config, run: Run) -> dict[str, Any]:
    """Train a detector, from where an earlier process left off if one did; give what its checkpoint
    holds."""
    state = run.directory.load_state(name, config.seed)
    if state is None:
        check_scoring(detector, config, run)
    with tell(name, config, run, state) as hooks:
        training = fit(run.fabric, detector, run.data, config, hooks, state)
    content = {
        "weights": training.best.weights,
        "shapes": {
            role: list(shape) for role, shape in run.data.item_shapes(detector.columns).items()
        },
        "config": asdict(config),
        "history": [asdict(epoch) for epoch in training.history],
        "seconds": round(training.elapsed(), 1),
        "wait_seconds": round(training.wait_seconds, 3),
        "processes": run.fabric.world_size,
    }
    if run.fabric.is_global_zero:
        run.directory.finish(name, config.seed, content)
    return content


def check_scoring(detector: Detector, config: Config, run: Run) -> None:
    """Raise, before hours of training, what would stop the scoring after them: values that are not
    finite, memory."""
    detector.to(run.fabric.device)
    for split in ("val", "test"):
        predict(run.fabric, detector, run.data, split, config)


@contextmanager
def tell(name: str, config: Config, run: Run, state: dict[str, Any] | None) -> Iterator[Hooks]:
    """The hooks of a training, which may go on from a state: its bar and its log, in the first
    process."""
    if not run.fabric.is_global_zero:
        yield Hooks()
        return
    n_rows = len(run.data.splits.train)
    epochs, position = (len(state["history"]), state["batches"]["position"]) if state else (0, 0)
    run.progress.begin(
        name if run.config.seeds == 1 else f"{name} seed {config.seed}", epochs * n_rows + position
    )
    steps = epochs * -(-n_rows // config.batch_size) + position // config.batch_size
    path = run.directory.path / "tensorboard" / f"{name}-seed{config.seed}"
    with TensorBoardLog(path, purge_step=steps or None) as log:
        yield TrainingHooks(run, name, config.seed, log)
    run.progress.end()


def build_detector(name: str, data: TrainingData, config: Config) -> Detector:
    """Build an untrained detector for what is read of a store; raises ConfigError for settings that
    it cannot take."""
    kind = DETECTORS[name]
    settings = asdict(config)
    unknown = [option for option in kind.options if option not in settings]
    if unknown:
        raise ConfigError(
            f"{name}: there is no setting {unknown[0]!r:.80} for its option of that name; add a field to Config in "
            "train/config.py, or give the argument a default and take it out of `options`"
        )
    settings |= layer_positions(name, data, config)
    try:
        detector = kind.build(data.item_shapes(kind.columns), settings)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    detector.recompute = config.use_gradient_checkpointing
    return detector


def layer_positions(name: str, data: TrainingData, config: Config) -> dict[str, int]:
    """Setting that names a layer -> where that layer is among those that a detector reads; only
    what is set."""
    kind = DETECTORS[name]
    positions = {}
    for setting in fields(config):
        number = getattr(config, setting.name)
        if number is None or not setting.metadata["layer"] or setting.name not in kind.options:
            continue
        numbers = numbers_of_layers(kind, data)
        try:
            (positions[setting.name],) = choose_layers(str(number), numbers, flag_of(setting.name))
        except StoreError as error:
            raise ConfigError(f"{name}: {error}") from error
    return positions


def numbers_of_layers(kind: type[Detector], data: TrainingData) -> list[int]:
    """The layers that a detector is given, in the order of its first column."""
    role = kind.columns[0]
    n_layers = data.item_shapes([role])[role][0]
    return data.layers_or_count(role, n_layers)


def read_layers(names: Iterable[str], data: TrainingData) -> dict[str, list[int]]:
    """Column, as detectors call it -> its layers that are read, as the model numbers them."""
    roles = dict.fromkeys(role for name in names for role in find(name).columns)
    return {role: numbers for role in roles if (numbers := data.layer_numbers(role))}


def build_criterion(config: Config, splits: Splits) -> ClassificationLoss:
    """The loss that the settings ask for; class weights make both classes of train add up to half
    of its rows."""
    weights = None
    if config.class_weights:
        share = float(splits.labels[splits.train].mean())
        weights = 0.5 / (1 - share), 0.5 / share
    return ClassificationLoss(config.focal_loss, config.label_smoothing, weights)


def hidden_size(name: str, data: TrainingData) -> int:
    """Width d of the states that a detector reads."""
    roles = DETECTORS[name].columns
    return data.item_shapes(roles)[roles[0]][-1]


def train_probe(name: str, probe: Probe, run: Run) -> Scored:
    """Fit and score a probe, and keep what was fitted."""
    with memory_enough(
        name, "the features of all rows; lower --max-traces, or read fewer --layers"
    ):
        scored, fitted = score_probe(name, probe, run.config, run.data)
    owner = run.directory.owner(name, run.config.seed)
    save_checkpoint(run.directory.path / f"{name}.pt", owner, fitted.to_dict())
    return scored
