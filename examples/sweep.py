"""Search a detector's settings with Optuna; baselines are fitted once, beside the best.

Run it in the checkout, where `make train` has built the example store:

    python -m pip install optuna
    python examples/sweep.py data/example.zarr runs/sweep 20
"""

import sys

import optuna

from store import TraceStore
from train import fit_detectors

FIXED = {"models": "saplma", "tune": "none", "epochs": 3}


def main(path: str, directory: str, n_trials: str = "20") -> None:
    """Try so many settings at one seed, then train the best at three."""
    layers = TraceStore.open(path).layers("hs_last")

    def objective(trial: optuna.Trial) -> float:
        settings = {
            "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.5),
            "saplma_layer": trial.suggest_categorical("saplma_layer", layers),
        }
        run = fit_detectors(path, baselines=False, seeds=1, **FIXED, **settings)
        return run.results["saplma"].val.auroc  # never of test

    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(objective, n_trials=int(n_trials))
    print(f"{len(study.trials)} trials, AUROC on validation at best {study.best_value:.2f}")
    best = fit_detectors(path, seeds=3, output_dir=directory, **FIXED, **study.best_params)
    for name, result in best.results.entries.items():
        print(f"{name:20} {result.test.auroc:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
