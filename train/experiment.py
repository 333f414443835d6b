"""A run from its settings to its results: check everything, split once, train, score the test side once.

Whatever the user could have got wrong is found before the first file is written.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import BASELINES, DETECTORS, Baseline, Detector
from models.losses import ClassificationLoss
from store import TraceStore
from train.checkpoint import load_checkpoint, save_checkpoint
from train.comparison import compare_pairs, find_verdict
from train.config import Config, off_flag
from train.cpu import cpu_arithmetic, default_threads
from train.data import (
    KINDS,
    UNLABELLED,
    Split,
    TrainingData,
    check_columns,
    check_pairs,
    check_threshold,
    kind_of,
    label_scores,
    missing_columns,
    read_split,
)
from train.errors import ConfigError, DataError
from train.loop import Epoch, fit, predict
from train.metrics import bootstrap_auroc, mean_auroc, ranking_metrics, threshold_metrics, youden_threshold
from train.progress import TrainingProgress

__all__ = ["Experiment", "Scored", "open_data", "run_experiment"]

CONSTANT = "majority"  # the baseline that ranks nothing: to differ from it is to differ from 0.5
LABEL_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)  # of the score, around the 0.5 that labels are made with


@dataclass(frozen=True)
class Scored:
    """Scores of one detector or baseline: probability of hallucination, in the order of the split.

    Attributes
    ----------
    val, test : float64 (n_seeds, n_side)
        One row per training run.
    facts : dict
        What the results say beside the metrics, JSON-able.
    """

    val: NDArray[np.float64]
    test: NDArray[np.float64]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """What a run made: the results as they are written, and the scores behind them, by name."""

    results: dict[str, Any]
    scored: dict[str, Scored]


@dataclass(frozen=True)
class Run:
    """What all trainings of a run share; `config.seed` is the seed of the split and of the first training."""

    id: str
    config: Config
    data: TrainingData
    output_dir: Path
    fabric: Fabric
    progress: TrainingProgress


def open_data(config: Config, path: Path) -> TrainingData:
    """Open the store and split it; raises StoreError or DataError before anything is written."""
    try:
        store = TraceStore.open(path, config.cache_size)
    except ValueError as error:
        raise ConfigError(f"--cache-size: {error}") from error
    for name in config.detectors:
        check_columns(store, name, DETECTORS[name].columns, f"or leave it out with {off_flag(name)}")
        if "attn_mean" in DETECTORS[name].columns:
            check_pairs(store)
            check_threshold(store, config.attn_threshold)
    return TrainingData(store, read_split(store, config))


def run_experiment(config: Config, data: TrainingData, output_dir: Path) -> Experiment:
    """Train and score every detector and baseline; checkpoints go to `output_dir`, which exists."""
    truth = read_truth(data)
    run_id = uuid.uuid4().hex
    fabric = Fabric(accelerator="cpu" if config.force_cpu else "auto", devices=1)
    threads = config.threads or default_threads(max(hidden_size(name, data.store) for name in config.detectors))
    with cpu_arithmetic(threads):
        with TrainingProgress(len(data.split.train), config.epochs) as progress:
            run = Run(run_id, config, data, output_dir, fabric, progress)
            models = {name: train_detector(name, run) for name in config.detectors}
        known = {name: one for name, one in BASELINES.items() if not missing_columns(data.store, one.columns)}
        baselines = {name: score_baseline(name, one, config, data) for name, one in known.items()}
    results = {
        "run": run_id,
        "split": data.split.summary(),
        "models": {name: judge(scored, data.split) for name, scored in models.items()},
        "baselines": {name: judge(scored, data.split) for name, scored in baselines.items()},
        **compare_all(models, baselines, data.split),
        "store": describe_store(data.store),
        "config": asdict(config),
    }
    scored = models | baselines
    if truth is not None:
        results["label_sensitivity"] = [label_sensitivity(scored, truth, threshold) for threshold in LABEL_THRESHOLDS]
    return Experiment(results, scored)


def describe_store(store: TraceStore) -> dict[str, Any]:
    """What tells a store, and its state, from others; JSON-able."""
    return {"path": str(store.path), "uuid": store.uuid, "generation": store.generation, "rows": len(store)}


def train_detector(name: str, run: Run) -> Scored:
    """Train a detector once per seed; score validation and test with the best epoch of each training."""
    start = time.perf_counter()
    seeds = range(run.config.seed, run.config.seed + run.config.seeds)
    val, test, facts = zip(*(train_once(name, replace(run.config, seed=seed), run) for seed in seeds), strict=True)
    seconds = (time.perf_counter() - start) / len(seeds)
    n_parameters = build_detector(name, run.data.store, run.config).n_parameters()
    facts = {"parameters": n_parameters, "seconds": round(seconds, 1), "runs": list(facts)}
    return Scored(np.stack(val), np.stack(test), facts)


def train_once(name: str, config: Config, run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64], dict]:
    """Train a detector with `config.seed`; give its validation scores, test scores and history."""
    run.fabric.seed_everything(config.seed, verbose=False)
    model = run.fabric.setup_module(build_detector(name, run.data.store, config))
    path = run.output_dir / f"{name}-seed{config.seed}.pt"
    owner = {"run": run.id, "detector": name, "seed": config.seed}

    def save(epoch: Epoch, weights: dict[str, torch.Tensor]) -> None:
        save_checkpoint(path, owner, weights, **asdict(epoch), config=asdict(config))

    run.progress.begin(name if config.seeds == 1 else f"{name} seed {config.seed}")
    history = fit(run.fabric, model, run.data, config, save, run.progress.on_step, run.progress.on_epoch)
    run.progress.end()
    model.load_state_dict(load_checkpoint(path, owner)["weights"])
    val, test = (predict(run.fabric, model, run.data, side, config) for side in ("val", "test"))
    return val, test, {"seed": config.seed, "checkpoint": path.name, "history": [asdict(epoch) for epoch in history]}


def build_detector(name: str, store: TraceStore, config: Config) -> Detector:
    """Build an untrained detector that fits the columns of the store."""
    detector = DETECTORS[name].build(item_shapes(name, store), asdict(config))
    detector.criterion = ClassificationLoss(config.focal_loss, config.label_smoothing)
    return detector


def hidden_size(name: str, store: TraceStore) -> int:
    """Width d of the states that a detector reads."""
    return item_shapes(name, store)[DETECTORS[name].columns[0]][-1]


def item_shapes(name: str, store: TraceStore) -> dict[str, tuple[int, ...]]:
    """Shape of one item of each column that a detector reads."""
    return {column: store.schema.columns[column].item_shape for column in DETECTORS[name].columns}


def score_baseline(name: str, baseline: Baseline, config: Config, data: TrainingData) -> Scored:
    """Fit a baseline on train, choose its layer on validation, and score validation and test."""
    start = time.perf_counter()
    train, val, test = (read_features(name, baseline, config, data, side) for side in ("train", "val", "test"))
    labels = data.split.labels
    fitted = baseline.fit(train, labels[data.split.train], val, labels[data.split.val])
    facts = {"layer": fitted.layer} if train.shape[1] > 1 else {}
    scores = fitted.predict(val)[None], fitted.predict(test)[None]
    return Scored(*scores, {**facts, "seconds": round(time.perf_counter() - start, 1)})


def read_features(name: str, baseline: Baseline, config: Config, data: TrainingData, side: str) -> torch.Tensor:
    """Features (n_side, A, k) of a baseline; raises DataError for infinite ones."""
    batches = data.loader(side, baseline.columns, config, shuffle=False)
    # A loader may fill the same memory again for its next batch, and features may be views of it.
    features = torch.cat([baseline.features(batch).clone() for batch in batches])
    infinite = torch.isinf(features).flatten(1).any(1).nonzero()
    if len(infinite):
        row = int(getattr(data.split, side)[int(infinite[0])])
        raise DataError(
            f"{data.store.path}: column {baseline.columns[0]!r}, trace {data.store.ids[row]!r}: expected finite "
            f"numbers for {name}, found infinity; mend that trace or leave it out"
        )
    return features


def judge(scored: Scored, split: Split) -> dict[str, Any]:
    """Metrics of both sides; each run's threshold is chosen on validation and applied, as chosen, to test."""
    thresholds = [youden_threshold(split.labels[split.val], scores) for scores in scored.val]
    labels, questions = split.labels[split.test], split.questions[split.test]
    test = mean_metrics(labels, scored.test, thresholds)
    test["auroc_ci"] = list(bootstrap_auroc(labels, scored.test, questions, split.seed))
    return {"val": mean_metrics(split.labels[split.val], scored.val, thresholds), "test": test, **scored.facts}


def mean_metrics(labels: NDArray[np.int64], scores: NDArray[np.float64], thresholds: list[float]) -> dict[str, Any]:
    """Mean of each metric over the runs (n_seeds, n); with several of them also `auroc_sd` and each one's AUROC."""
    runs = [
        {**ranking_metrics(labels, run), **threshold_metrics(labels, run, threshold), "threshold": threshold}
        for run, threshold in zip(scores, thresholds, strict=True)
    ]
    metrics: dict[str, Any] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    if len(runs) > 1:
        metrics["auroc_runs"] = [run["auroc"] for run in runs]
        metrics["auroc_sd"] = float(np.std(metrics["auroc_runs"], ddof=1))
    return metrics


def compare_all(models: dict[str, Scored], baselines: dict[str, Scored], split: Split) -> dict[str, Any]:
    """Compare the detectors with each other and with the baselines; the verdict is on the best of either."""
    rivals = {name: scored for name, scored in baselines.items() if name != CONSTANT}
    test = {name: scored.test for name, scored in (models | rivals).items()}
    pairs = [*combinations(models, 2), *product(models, rivals)]
    comparisons = compare_pairs(split.labels[split.test], test, pairs, split.questions[split.test], split.seed)
    val = [
        {name: mean_auroc(split.labels[split.val], scored.val) for name, scored in group.items()}
        for group in (models, rivals)
    ]
    return {"comparisons": comparisons, "verdict": find_verdict(comparisons, *val)}


def read_truth(data: TrainingData) -> NDArray[np.float32] | None:
    """Read the column `score` of the test side (n_test,), of which labels are made; None where the store has none."""
    column = data.store.schema.columns.get("score")
    if column is None or kind_of(column) != KINDS["score"]:
        return None
    return data.store.read(data.split.test, columns=["score"])["score"].float().numpy()


def label_sensitivity(scored: dict[str, Scored], truth: NDArray[np.float32], threshold: float) -> dict[str, Any]:
    """Test AUROCs, nothing trained again, if label = 1 iff `truth` (n_test,) < threshold.

    Rows whose truth is NaN are left out; an AUROC is None where one class remains.
    """
    labels = label_scores(truth, threshold)
    known = labels != UNLABELLED
    labels = labels[known]
    both = 0 < labels.sum() < len(labels)
    areas = {name: mean_auroc(labels, one.test[:, known]) if both else None for name, one in scored.items()}
    return {"threshold": threshold, "rows": len(labels), "hallucinations": int(labels.sum()), "auroc": areas}
