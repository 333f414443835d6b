"""The pictures of a report, each a function of the evidence; one colour per name in all of them.

Where a detector was trained several times, curves of scores are the first seed's, and the number
beside a name is the mean over the seeds, as in the table. What ranks nothing, the constant
baseline, is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from train.evaluate.metrics import (
    N_BINS,
    aurc,
    calibration_bins,
    pr_points,
    risk_coverage,
    roc_points,
)
from train.report.evidence import Evidence
from train.report.table import short

__all__ = [
    "INK",
    "draw_calibration",
    "draw_histograms",
    "draw_layers",
    "draw_learning_curves",
    "draw_pr",
    "draw_risk_coverage",
    "draw_roc",
    "find_histories",
    "find_layers",
    "find_styles",
]

INK = "#24292f"  # text and axes; a page may put its own colour in its place
FAINT = "#8b949e"  # what is drawn to compare with
# Okabe and Ito's colours, told apart by colour-blind readers, without yellow, which white swallows;
# and grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ((4, 1.5), (1.6, 1.1), (6, 1.5, 1, 1.5))  # of the baselines' lines, in turn
RIGHT, WRONG = COLOURS[0], COLOURS[1]  # label 0 and label 1
SETTINGS = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # a name is no formula
    "xtick.color": INK,
    "ytick.color": INK,
}
N_POINTS = 500  # of a curve; more are not seen
N_COLUMNS = 4  # of small pictures

Style = dict[str, Any]
Draw = Callable[[Evidence], Figure]


class History(NamedTuple):
    """Epochs (n_epochs,) counted from 1, and the loss and validation AUROC of each."""

    epochs: NDArray[np.int64]
    loss: NDArray[np.float64]
    val_auroc: NDArray[np.float64]


def styled(draw: Draw) -> Draw:
    """Draw with the settings of this module, whatever the user's are."""

    @wraps(draw)
    def drawn(evidence: Evidence) -> Figure:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(SETTINGS)
            return draw(evidence)

    return drawn


def find_styles(evidence: Evidence) -> dict[str, Style]:
    """Name -> how its line looks: detectors thick, baselines thin and dashed, colours by their
    place in the results."""
    styles = {}
    for i, name in enumerate(evidence.entries):
        colour, turn = COLOURS[i % len(COLOURS)], i // len(COLOURS)
        if name in evidence.results["models"]:
            line = {"linewidth": 2.0, "linestyle": "-" if turn == 0 else (0, (8, 1))}
        else:
            line = {"linewidth": 1.3, "linestyle": (0, DASHES[turn % len(DASHES)])}
        styles[name] = {"color": colour, **line}
    return styles


@styled
def draw_roc(evidence: Evidence) -> Figure:
    """True over false positive rate."""
    figure, axes = one_axes("false positive rate", "true positive rate")
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
    return draw_curves(
        figure,
        axes,
        evidence,
        "AUROC",
        lambda scores, threshold: roc_points(evidence.test_labels, scores),
        lambda name: evidence.entries[name]["test"]["auroc"],
    )


@styled
def draw_pr(evidence: Evidence) -> Figure:
    """Precision over recall, and the base rate, which is the precision of a coin."""
    figure, axes = one_axes("recall", "precision")
    axes.axhline(evidence.test_labels.mean(), color=FAINT, linewidth=0.8)
    return draw_curves(
        figure,
        axes,
        evidence,
        "AUPRC",
        lambda scores, threshold: pr_points(evidence.test_labels, scores),
        lambda name: evidence.entries[name]["test"]["auprc"],
        drawstyle="steps-pre",
    )


@styled
def draw_risk_coverage(evidence: Evidence) -> Figure:
    """Share of errors among the rows that remain when the least certain ones are left out."""
    figure, axes = one_axes("coverage", "errors among the covered")
    areas = {
        name: float(np.mean([aurc(evidence.test_labels, *run) for run in evidence.runs(name)]))
        for name in evidence.ranking
    }
    draw_curves(
        figure,
        axes,
        evidence,
        "AURC",
        lambda *run: risk_coverage(evidence.test_labels, *run),
        areas.__getitem__,
        ascending=True,
    )
    shown = [line.get_ydata()[np.asarray(line.get_xdata()) >= 0.05] for line in axes.lines]
    axes.set_ylim(
        0, min(1, 1.05 * max((risk.max() for risk in shown if len(risk)), default=1)) or 1
    )
    return figure


def draw_curves(
    figure: Figure,
    axes: Axes,
    evidence: Evidence,
    measure: str,
    points: Callable[[NDArray[np.float64], float], tuple[NDArray, NDArray]],
    area: Callable[[str], float],
    ascending: bool = False,
    **drawing: Any,
) -> Figure:
    """Draw the points (scores, threshold) -> (x, y) of every name; the legend has the best area
    first."""
    styles = find_styles(evidence)
    names = sorted(evidence.ranking, key=area, reverse=not ascending)
    for name in reversed(names):  # the best are drawn last, above the others
        x, y = thin(*points(*next(evidence.runs(name))))
        axes.plot(x, y, **styles[name], **drawing)
    lines = [Line2D([], [], label=f"{short(area(name))}  {name}", **styles[name]) for name in names]
    figure.legend(
        handles=lines, loc="outside right upper", title=measure, alignment="left", handlelength=2.6
    )
    return figure


@styled
def draw_calibration(evidence: Evidence) -> Figure:
    """Share of hallucinations over mean score of each bin, and how many rows are in it; a column of
    two per name."""
    names, styles = evidence.ranking, find_styles(evidence)
    figure, (above, below) = small_axes(len(names), (3, 1))
    for name, diagram, counts in zip(names, above, below, strict=True):
        scores, _ = next(evidence.runs(name))
        mean_score, share, count = calibration_bins(evidence.test_labels, scores)
        diagram.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
        diagram.plot(
            mean_score, share, color=styles[name]["color"], marker="o", markersize=3, linewidth=1.3
        )
        diagram.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1))
        diagram.set_title(f"{name}\nECE {short(evidence.entries[name]['test']['ece'])}")
        lefts = np.minimum((mean_score * N_BINS).astype(int), N_BINS - 1) / N_BINS
        counts.bar(lefts, count, width=0.9 / N_BINS, align="edge", color=FAINT)
        counts.set(yticks=(0, int(count.max())))
    figure.supxlabel("mean score", fontsize="medium")
    figure.supylabel("share of hallucinations; traces in the bin", fontsize="medium")
    return figure


@styled
def draw_histograms(evidence: Evidence) -> Figure:
    """How the scores of each class are spread, and the threshold."""
    names = evidence.ranking
    figure, (panels,) = small_axes(len(names), (1,))
    edges = np.linspace(0, 1, 26)
    for name, axes in zip(names, panels, strict=True):
        scores, threshold = next(evidence.runs(name))
        for label, colour in ((0, RIGHT), (1, WRONG)):
            axes.hist(scores[evidence.test_labels == label], edges, color=colour, alpha=0.65)
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=(0, (3, 2)))
        axes.set_title(name)
        axes.locator_params(axis="y", nbins=3, integer=True)
    handles = [Patch(color=colour, alpha=0.65) for colour in (RIGHT, WRONG)]
    handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=(0, (3, 2))))
    labels = ["right answers", "hallucinations", "threshold"]
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    figure.supxlabel("score", fontsize="medium")
    figure.supylabel("traces", fontsize="medium")
    return figure


@styled
def draw_learning_curves(evidence: Evidence) -> Figure:
    """Training loss and validation AUROC over the epochs; a dot is the epoch whose weights were
    kept."""
    histories, styles = find_histories(evidence), find_styles(evidence)
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    for axes, key in zip(figure.subplots(1, 2), ("loss", "val_auroc"), strict=True):
        for name, runs in histories.items():
            style = styles[name] | ({"linewidth": 0.9} if len(runs) > 1 else {})
            for run in runs:
                draw_history(axes, run, key, style)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("epoch")
    loss, val_auroc = figure.axes
    loss.set_title("training loss")
    val_auroc.set_title("validation AUROC")
    use_logarithm(
        loss, (value for runs in histories.values() for run in runs for value in run.loss)
    )
    lines = [Line2D([], [], label=name, **styles[name]) for name in histories]
    figure.legend(handles=lines, loc="outside right upper", alignment="left", handlelength=2.6)
    return figure


def draw_history(axes: Axes, run: History, key: str, style: Style) -> None:
    """Draw one training's curve, with a dot at its best epoch."""
    values = getattr(run, key)
    axes.plot(run.epochs, values, **style)
    if np.isfinite(run.val_auroc).any():
        best = np.nanargmax(run.val_auroc)
        axes.plot(run.epochs[best], values[best], marker="o", markersize=4, color=style["color"])


def use_logarithm(axes: Axes, values: Iterable[float]) -> None:
    """Make the axis logarithmic where positive values spread over more than a factor of 10."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and 0 < 10 * min(finite) < max(finite):
        axes.set_yscale("log")


@styled
def draw_layers(evidence: Evidence) -> Figure:
    """Validation AUROC by layer."""
    styles = find_styles(evidence)
    figure, axes = one_axes("layer", "validation AUROC", rates=False)
    axes.axhline(0.5, color=FAINT, linewidth=0.8)
    for name, (layers, areas) in find_layers(evidence).items():
        axes.plot(layers, areas, marker="o", markersize=3, label=name, **styles[name])
    axes.locator_params(axis="x", integer=True)
    figure.legend(loc="outside right upper", alignment="left", handlelength=2.6)
    return figure


def find_histories(evidence: Evidence) -> dict[str, list[History]]:
    """Name -> the history of each of its trainings; only of those that have one."""
    found = {}
    for name, entry in evidence.entries.items():
        epochs = [run["history"] for run in entry.get("runs", []) if run.get("history")]
        if epochs:
            found[name] = [
                History(
                    np.array([epoch["epoch"] + 1 for epoch in history]),
                    *(as_numbers(epoch[key] for epoch in history) for key in ("loss", "val_auroc")),
                )
                for history in epochs
            ]
    return found


def find_layers(evidence: Evidence) -> dict[str, tuple[list[int], NDArray[np.float64]]]:
    """Name -> layers and the validation AUROC of each, both (n_layers,); only of those that tell
    it."""
    found = {}
    for name, entry in evidence.entries.items():
        if entry.get("layer_val_auroc"):
            areas = as_numbers(entry["layer_val_auroc"])
            found[name] = entry.get("layers") or list(range(1, len(areas) + 1)), areas
    return found


def as_numbers(values: Iterable[float | None]) -> NDArray[np.float64]:
    """Floats, NaN for None: a gap in a line."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def thin(x: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
    """At most 500 points of a curve, its ends among them."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), N_POINTS)).round().astype(int))
    return x[chosen], y[chosen]


def one_axes(x: str, y: str, rates: bool = True) -> tuple[Figure, Axes]:
    """A figure of one picture, about square beside its legend if both axes are rates."""
    figure = Figure(figsize=(6.4, 4.2) if rates else (7.6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    if rates:
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    return figure, axes


def small_axes(n: int, heights: Sequence[int]) -> tuple[Figure, list[list[Axes]]]:
    """A figure of n columns of small pictures, four in a row, each column divided by `heights`; by
    height, then column.

    All x axes go from 0 to 1.
    """
    n_columns, parts = max(1, min(n, N_COLUMNS)), len(heights)
    n_rows = max(1, math.ceil(n / n_columns))
    height = n_rows * (1.75 if parts == 1 else 2.5) + 0.6
    figure = Figure(figsize=(max(1.9 * n_columns + 0.4, 5), height), layout="constrained")
    grid = figure.subplots(
        parts * n_rows, n_columns, squeeze=False, height_ratios=list(heights) * n_rows
    )
    parted = [[axes for row in grid[part::parts] for axes in row] for part in range(parts)]
    for part, all_axes in enumerate(parted):
        for axes in all_axes[:n]:
            axes.set(xlim=(-0.01, 1.01), xticks=(0, 0.5, 1))
            axes.tick_params(labelbottom=part == parts - 1)
        for axes in all_axes[n:]:
            axes.remove()
    return figure, [all_axes[:n] for all_axes in parted]
