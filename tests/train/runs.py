"""Runs for tests: the settings of small ones, and finished ones with drawn scores."""

from pathlib import Path

import numpy as np

from train.run.results import FinishedRun

SMALL = [
    "--epochs",
    "2",
    "--gnn-hidden",
    "8",
    "--latent-dim",
    "8",
    "--lstm-hidden",
    "8",
    "--force-cpu",
]

N = 120
LABELS = np.random.default_rng(0).integers(0, 2, N)
SPLITS = np.repeat(["train", "val", "test"], N // 3)


def as_texts(values):
    return np.array(list(values), dtype=object)


def make_run(
    models, best=None, splits=SPLITS, labels=LABELS, questions=None, ids=None, baselines=()
):
    """A run whose scores of each of `models` are drawn with that seed."""
    scores = {}
    for name, seed in models.items():
        values = np.clip(0.3 * labels + 0.7 * np.random.default_rng(seed).random(len(labels)), 0, 1)
        scores[name] = np.where(np.asarray(splits) == "train", np.nan, values)
    val_auroc = {name: 0.9 if name == best else 0.8 for name in models}
    return FinishedRun(
        Path("nowhere"),
        {
            "models": {name: area for name, area in val_auroc.items() if name not in baselines},
            "baselines": {name: area for name, area in val_auroc.items() if name in baselines},
        },
        0,
        as_texts([f"t{i}" for i in range(len(labels))] if ids is None else ids),
        as_texts([f"q{i // 2}" for i in range(len(labels))] if questions is None else questions),
        as_texts(splits),
        np.asarray(labels),
        scores,
    )


BASELINES = ("length", "entropy", "logreg")


def runs_with_equal_baselines():
    """Two runs on one store: other detectors, the same baselines; one baseline differs."""
    runs = {
        name: make_run(
            {"logreg": seed, "length": 7, "entropy": 8, "lstm": seed + 1},
            "lstm",
            baselines=BASELINES,
        )
        for name, seed in (("a", 1), ("b", 3))
    }
    return runs
