"""What a run leaves to look at: the table on the terminal, results.json, scores.csv and curves.png."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from store.split import SIDES
from train.data import TrainingData
from train.experiment import Experiment
from train.files import replace_file
from train.metrics import auroc, calibration_bins, roc_points

__all__ = ["draw_curves", "print_table", "write_report", "write_results", "write_scores"]

METRICS = {
    "AUPRC": "auprc",
    "F1": "f1",
    "MCC": "mcc",
    "acc": "accuracy",
    "ECE": "ece",
    "Brier": "brier",
}  # header -> key


def write_report(experiment: Experiment, data: TrainingData, output_dir: Path) -> None:
    """Write the files of a run; each is whole or not there."""
    write_results(output_dir / "results.json", experiment.results)
    write_scores(output_dir / "scores.csv", experiment, data)
    draw_curves(output_dir / "curves.png", experiment, data)


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the results as JSON."""
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


def write_scores(path: Path, experiment: Experiment, data: TrainingData) -> None:
    """Write the split and the scores: a line per labelled row, a column per detector and baseline (mean over seeds)."""
    split, names = data.split, list(experiment.scored)
    with replace_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trace_id", "side", "label", *names])
        for side in SIDES:
            rows = getattr(split, side)
            columns = [
                [""] * len(rows) if side == "train" else getattr(one, side).mean(0).tolist()
                for one in experiment.scored.values()
            ]
            for row, *scores in zip(rows.tolist(), *columns, strict=True):
                writer.writerow([data.store.ids[row], side, split.labels[row], *scores])


def print_table(results: dict[str, Any], console: Console) -> None:
    """Print test metrics, a line per detector and baseline, and the verdict, in 80 columns."""
    test = results["split"]["test"]
    title = (
        f"test side: {test['rows']} traces of {test['questions']} questions, {test['hallucinations']} hallucinations"
    )
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    headers = list(_cells(next(iter(results["models"].values()))))
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for group in ("models", "baselines"):
        for name, entry in results[group].items():
            cells = _cells(entry)
            table.add_row(name, *(cells.get(header, "") for header in headers))
        table.add_row()
    console.print(table)
    if results["verdict"]:
        console.print(_verdict_in_words(results["verdict"]), highlight=False, markup=False)


def _verdict_in_words(verdict: dict[str, Any]) -> str:
    """Who was chosen on validation, and how they compare on test; each line fits 80 columns."""
    low, high = verdict["ci"]
    if low > 0:
        found = "the detector is better"
    elif high < 0:
        found = "the detector is worse"
    else:
        found = "they cannot be told apart"
    difference = f"{_short(verdict['difference'])} [{_short(low)}, {_short(high)}]"
    return (
        f"Best on validation: detector {verdict['detector']}, baseline {verdict['baseline']}.\n"
        f"On test {found}: difference {difference}, p = {_short(verdict['p_bootstrap'])}\n"
        "(of AUROC, with 95% interval; paired bootstrap over questions)."
    )


def _cells(entry: dict[str, Any]) -> dict[str, str]:
    """One line of the table: header -> text."""
    test = entry["test"]
    low, high = test["auroc_ci"]
    cells = {"AUROC [95%]": f"{_short(test['auroc'])} [{_short(low)}, {_short(high)}]"}
    if "auroc_sd" in test:
        cells["sd"] = _short(test["auroc_sd"])
    for header, key in METRICS.items():
        cells[header] = _short(test[key])
    cells["params"] = f"{entry['parameters'] / 1e6:.2f}M" if "parameters" in entry else ""
    cells["s"] = f"{entry['seconds']:.0f}"
    return cells


def _short(number: float) -> str:
    """Three decimals without the leading zero: .917, -.036, 1.000."""
    return f"{number:.3f}".replace("0.", ".", 1) if abs(number) < 0.9995 else f"{number:.3f}"


def draw_curves(path: Path, experiment: Experiment, data: TrainingData) -> None:
    """Draw ROC and calibration curves of the test side; the first seed's where there are several."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    roc, calibration = figure.subplots(1, 2)
    labels = data.split.labels[data.split.test]
    for axes in (roc, calibration):
        axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    for name, scored in experiment.scored.items():
        style = {"linewidth": 2} if name in experiment.results["models"] else {"linewidth": 1, "linestyle": "--"}
        _draw_one(roc, calibration, labels, scored.test[0], f"{name}", style)
    _name_axes(roc, "ROC, test side", "false positive rate", "true positive rate")
    _name_axes(calibration, "Calibration, test side", "mean score", "share of hallucinations")
    roc.legend(loc="lower right", frameon=False, fontsize=9)
    with replace_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _draw_one(
    roc: Axes, calibration: Axes, labels: NDArray[np.int64], scores: NDArray[np.float64], name: str, style: dict
) -> None:
    (line,) = roc.plot(*roc_points(labels, scores), label=f"{name} {auroc(labels, scores):.3f}", **style)
    mean_score, share, _ = calibration_bins(labels, scores)
    calibration.plot(mean_score, share, marker="o", markersize=3, color=line.get_color(), **style)


def _name_axes(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y, xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)
