"""A run from its settings to its results: check everything, split once, train, score the test side once.

Whatever the user could have got wrong is found before the first file is written.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from models import BASELINES, DETECTORS, Baseline, Detector
from store import TraceStore
from train.checkpoint import load_checkpoint, save_checkpoint
from train.config import Config, off_flag
from train.cpu import cpu_arithmetic, default_threads
from train.data import Split, TrainingData, check_columns, missing_columns, read_split
from train.errors import DataError
from train.loop import Epoch, fit, predict
from train.metrics import bootstrap_auroc, ranking_metrics, threshold_metrics, youden_threshold
from train.progress import TrainingProgress

__all__ = ["Experiment", "Scored", "open_data", "run_experiment"]

FEATURE_BATCH = 256  # rows read at once for the baselines


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


def open_data(config: Config, path: Path) -> TrainingData:
    """Open the store and split it; raises StoreError or DataError before anything is written."""
    store = TraceStore.open(path)
    for name in config.detectors:
        check_columns(store, name, DETECTORS[name].columns, f"or leave it out with {off_flag(name)}")
    return TrainingData(store, read_split(store, config.seed, config.score_threshold, config.max_traces))


def run_experiment(config: Config, data: TrainingData, output_dir: Path) -> Experiment:
    """Train and score every detector and baseline; checkpoints go to `output_dir`, which exists."""
    run_id = uuid.uuid4().hex
    fabric = Fabric(accelerator="cpu" if config.force_cpu else "auto", devices=1)
    threads = config.threads or default_threads(max(hidden_size(name, data.store) for name in config.detectors))
    with cpu_arithmetic(threads):
        with TrainingProgress(len(data.split.train), config.epochs) as progress:
            arguments = run_id, fabric, config, data, output_dir, progress
            models = {name: train_detector(name, *arguments) for name in config.detectors}
        known = {name: one for name, one in BASELINES.items() if not missing_columns(data.store, one.columns)}
        baselines = {name: score_baseline(name, one, data) for name, one in known.items()}
    results = {
        "run": run_id,
        "split": data.split.summary(),
        "models": {name: judge(scored, data.split) for name, scored in models.items()},
        "baselines": {name: judge(scored, data.split) for name, scored in baselines.items()},
        "store": {
            "path": str(data.store.path),
            "uuid": data.store.uuid,
            "generation": data.store.generation,
            "rows": len(data.store),
        },
        "config": asdict(config),
    }
    return Experiment(results, models | baselines)


def train_detector(
    name: str,
    run_id: str,
    fabric: Fabric,
    config: Config,
    data: TrainingData,
    output_dir: Path,
    progress: TrainingProgress,
) -> Scored:
    """Train a detector once per seed, and score validation and test with the best epoch of each."""
    start = time.perf_counter()
    val, test, runs = [], [], []
    for seed in range(config.seed, config.seed + config.seeds):
        fabric.seed_everything(seed, verbose=False)
        detector = build_detector(name, data.store, config)
        path = output_dir / f"{name}-seed{seed}.pt"
        owner = {"run": run_id, "detector": name, "seed": seed}

        def save(epoch: Epoch, weights: dict, path: Path = path, owner: dict = owner) -> None:
            save_checkpoint(path, owner, weights, **asdict(epoch), config=asdict(config))

        progress.begin(name if config.seeds == 1 else f"{name} seed {seed}")
        history = fit(fabric, detector, data, config, seed, save, progress.on_step, progress.on_epoch)
        progress.end()
        detector.load_state_dict(load_checkpoint(path, owner)["weights"])
        val.append(predict(fabric, detector, data, "val", config))
        test.append(predict(fabric, detector, data, "test", config))
        runs.append({"seed": seed, "checkpoint": path.name, "history": [asdict(epoch) for epoch in history]})
    seconds = (time.perf_counter() - start) / config.seeds
    facts = {"parameters": detector.n_parameters(), "seconds": round(seconds, 1), "runs": runs}
    return Scored(np.stack(val), np.stack(test), facts)


def build_detector(name: str, store: TraceStore, config: Config) -> Detector:
    """Build an untrained detector that fits the columns of the store."""
    return DETECTORS[name].build(item_shapes(name, store), asdict(config))


def hidden_size(name: str, store: TraceStore) -> int:
    """Width d of the states that a detector reads."""
    return item_shapes(name, store)[DETECTORS[name].columns[0]][-1]


def item_shapes(name: str, store: TraceStore) -> dict[str, tuple[int, ...]]:
    """Shape of one item of each column that a detector reads."""
    return {column: store.schema.columns[column].item_shape for column in DETECTORS[name].columns}


def score_baseline(name: str, baseline: Baseline, data: TrainingData) -> Scored:
    """Fit a baseline on train, choose its layer on validation, and score validation and test."""
    start = time.perf_counter()
    train, val, test = (read_features(name, baseline, data, side) for side in ("train", "val", "test"))
    labels = data.split.labels
    fitted = baseline.fit(train, labels[data.split.train], val, labels[data.split.val])
    facts = {"layer": fitted.layer} if train.shape[1] > 1 else {}
    scores = fitted.predict(val)[None], fitted.predict(test)[None]
    return Scored(*scores, {**facts, "seconds": round(time.perf_counter() - start, 1)})


def read_features(name: str, baseline: Baseline, data: TrainingData, side: str) -> torch.Tensor:
    """Features (n_side, A, k) of a baseline; raises DataError for infinite ones."""
    batches = data.loader(side, baseline.columns, FEATURE_BATCH, shuffle=False)
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
