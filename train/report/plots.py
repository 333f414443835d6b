"""The pictures of a report, each a function of the evidence; a name has one colour in all of them.

They show at most as many names as can be told apart; the table has all. If a detector was trained
with several seeds, curves of scores are of the first seed, and the number of a name is the mean
over the seeds, as in the table. The constant baseline is not drawn.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from train.evaluate.metrics import (
    N_BINS,
    Areas,
    Curve,
    Labels,
    Scores,
    aurc,
    calibration_bins,
    pr_points,
    risk_coverage,
    roc_points,
)
from train.evaluate.results import Metrics
from train.report.evidence import COLOURS, Evidence, Style, Styles, find_styles
from train.report.numbers import short

__all__ = [
    "FAINT",
    "GAP",
    "INK",
    "Cell",
    "draw_calibration",
    "draw_forest",
    "draw_heat_map",
    "draw_histograms",
    "draw_layers",
    "draw_learning_curves",
    "draw_pr",
    "draw_risk_coverage",
    "draw_roc",
    "styled",
]

INK = "#24292f"  # text and axes; a page may replace it by its own colour
FAINT = "#8b949e"  # lines of reference
SETTINGS = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.labelsize": "medium",
    "font.size": 9,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # a name is no formula
    "xtick.color": INK,
    "ytick.color": INK,
}
N_POINTS = 500  # of a curve; more are not seen
N_COLUMNS = 4  # of small pictures
WIDE = (7.6, 3.6)  # inches of a picture of epochs or layers
FOREST_WIDTH = 5.4  # inches
ROW = 0.21  # inches of a method in the forest
MARKERS = {"detectors": "o", "probes": "D", "baselines": "s", "controls": "^"}
GAP = 0.9  # rows above each kind, for its name

styled = style.context(SETTINGS, after_reset=True)  # whatever the user's settings are


@styled
def draw_forest(evidence: Evidence) -> Figure:
    """AUROC on test and 95% interval of each method, by kind, the best first.

    A dashed line is the baseline that is best on validation, a dotted one the AUROC of random
    scores. With several splits, the numbers are those over the splits.
    """
    styles = find_styles(evidence.kinds)
    rows = place_rows(evidence)
    n_rows = max(rows.values(), default=0) + 1
    figure = Figure(figsize=(FOREST_WIDTH, ROW * n_rows + 0.75), layout="constrained")
    axes = figure.subplots()
    for kind, names in evidence.kinds.items():
        for name in names:
            if name in rows:
                draw_row(axes, rows[name], evidence.summary[name].test, kind, styles[name])
    axes.axvline(0.5, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
    verdict = evidence.results.shown.verdict
    if verdict:
        area = evidence.summary[verdict.baseline.rival].test.auroc
        axes.axvline(area, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
    axes.set(xlabel="AUROC on test", ylim=(n_rows - 0.4, -0.6))
    axes.set_yticks(list(rows.values()), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.spines.left.set_visible(False)
    for name, row in rows.items():
        write_beside(axes, short(evidence.summary[name].test.auroc), 1, row, 6)
    for kind, names in evidence.kinds.items():
        heights = [rows[name] for name in names if name in rows]
        if heights:
            gap = min(heights) - GAP
            write_beside(axes, kind, 0, gap, -6, ha="right", style="italic", color=FAINT)
    return figure


def place_rows(evidence: Evidence) -> dict[str, float]:
    """Name -> its height, from 0 downwards, with a gap between kinds."""
    rows: dict[str, float] = {}
    at = 0.0
    for names in evidence.kinds.values():
        ranked = [name for name in evidence.ranking if name in names]
        at += GAP if ranked else 0
        for name in ranked:
            rows[name] = at
            at += 1
    return rows


def draw_row(axes: Axes, row: float, test: Metrics, kind: str, style: Style) -> None:
    colour = style["color"]
    interval = test.auroc_ci or [test.auroc, test.auroc]
    axes.plot(interval, [row, row], color=colour, linewidth=1.4, solid_capstyle="butt")
    face = colour if kind in ("detectors", "probes") else "none"
    axes.plot(
        test.auroc,
        row,
        marker=MARKERS[kind],
        markersize=5,
        color=colour,
        markerfacecolor=face,
        linestyle="none",
    )


def write_beside(
    axes: Axes, text: str, side: float, row: float, points: float, **style: Any
) -> None:
    """Write at the left (0) or the right side (1) of a row, so many points away."""
    axes.annotate(
        text,
        (side, row),
        xytext=(points, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        **style,
    )


@styled
def draw_roc(evidence: Evidence) -> Figure:
    """True over false positive rate."""
    figure, axes = one_axes("false positive rate", "true positive rate")
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
    areas = evidence.measured("auroc")
    draw_curves(figure, evidence, "AUROC", areas, lambda y, scores, _: roc_points(y, scores))
    return figure


@styled
def draw_pr(evidence: Evidence) -> Figure:
    """Precision over recall, and the base rate, which is the precision of random scores."""
    figure, axes = one_axes("recall", "precision")
    axes.axhline(evidence.test_labels.mean(), color=FAINT, linewidth=0.8)
    areas = evidence.measured("auprc")
    draw_curves(figure, evidence, "AUPRC", areas, lambda y, scores, _: pr_points(y, scores))
    for line in axes.lines:
        line.set_drawstyle("steps-pre")
    return figure


@styled
def draw_risk_coverage(evidence: Evidence) -> Figure:
    """Error rate of the rows that remain when the least certain ones are left out."""
    figure, axes = one_axes("coverage", "errors among the covered")
    areas = {}
    for name in evidence.shown:
        runs = [aurc(evidence.test_labels, *run) for run in evidence.runs(name)]
        areas[name] = float(np.mean(runs))
    draw_curves(figure, evidence, "AURC", areas, risk_coverage, ascending=True)
    highest = 0.0
    for line in axes.lines:
        x, y = np.asarray(line.get_xydata()).T
        highest = max(highest, y[x >= 0.05].max(initial=0.0))
    axes.set_ylim(0, min(1, 1.05 * highest) or 1)
    return figure


def draw_curves(
    figure: Figure,
    evidence: Evidence,
    measure: str,
    areas: Areas,
    points: Callable[[Labels, Scores, float], Curve],
    ascending: bool = False,
) -> None:
    """Draw the points (labels, scores, threshold) -> (x, y) of each name, the best area first."""
    styles = find_styles(evidence.kinds)
    names = sorted(areas, key=areas.__getitem__, reverse=not ascending)
    (axes,) = figure.axes
    for name in reversed(names):  # the best are drawn last, above the others
        scores, threshold = next(evidence.runs(name))
        x, y = thin(*points(evidence.test_labels, scores, threshold))
        axes.plot(x, y, **styles[name])
    labels = {name: f"{short(areas[name])}  {name}" for name in names}
    add_legend(figure, styles, labels, measure)


def add_legend(
    figure: Figure, styles: Styles, labels: dict[str, str], title: str | None = None
) -> None:
    lines = [Line2D([], [], label=label, **styles[name]) for name, label in labels.items()]
    figure.legend(
        handles=lines, loc="outside right upper", title=title, alignment="left", handlelength=2.6
    )


@styled
def draw_calibration(evidence: Evidence) -> Figure:
    """Share of hallucinations over mean score of each bin, and below it the size of the bin."""
    errors = evidence.measured("ece")
    styles = find_styles(evidence.kinds)
    figure, (above, below) = small_axes(len(errors), (3, 1))
    for name, diagram, counts in zip(errors, above, below, strict=True):
        scores, _ = next(evidence.runs(name))
        mean_score, share, count = calibration_bins(evidence.test_labels, scores)
        colour = styles[name]["color"]
        diagram.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
        diagram.plot(mean_score, share, color=colour, marker="o", markersize=3, linewidth=1.3)
        diagram.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1))
        diagram.set_title(f"{name}\nECE {short(errors[name])}")
        lefts = np.minimum((mean_score * N_BINS).astype(int), N_BINS - 1) / N_BINS
        counts.bar(lefts, count, width=0.9 / N_BINS, align="edge", color=FAINT)
        counts.set(yticks=(0, int(count.max())))
    figure.supxlabel("mean score")
    figure.supylabel("share of hallucinations; traces in the bin")
    return figure


@styled
def draw_histograms(evidence: Evidence) -> Figure:
    """Histograms of the scores of both classes, label 0 and label 1, and the threshold."""
    names = [name for name in evidence.ranking if name in evidence.shown]
    figure, (panels,) = small_axes(len(names), (1,))
    edges = np.linspace(0, 1, 26).tolist()
    dashed: Style = {"color": INK, "linewidth": 1, "linestyle": (0, (3, 2))}
    for name, axes in zip(names, panels, strict=True):
        scores, threshold = next(evidence.runs(name))
        for label, colour in enumerate(COLOURS[:2]):
            axes.hist(scores[evidence.test_labels == label], edges, color=colour, alpha=0.65)
        axes.axvline(threshold, **dashed)
        axes.set_title(name)
        axes.locator_params(axis="y", nbins=3, integer=True)
    right, wrong = (Patch(color=colour, alpha=0.65) for colour in COLOURS[:2])
    handles: list[Artist] = [right, wrong, Line2D([], [], **dashed)]
    labels = ["right answers", "hallucinations", "threshold"]
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    figure.supxlabel("score")
    figure.supylabel("traces")
    return figure


@styled
def draw_learning_curves(evidence: Evidence) -> Figure:
    """Training loss and validation AUROC by epoch; a dot is the epoch of the kept weights."""
    histories = evidence.histories
    styles = find_styles(evidence.kinds)
    figure = Figure(figsize=WIDE, layout="constrained")
    loss_axes, auroc_axes = figure.subplots(1, 2)
    losses: list[float] = []
    for name, runs in histories.items():
        line = dict(styles[name])
        if len(runs) > 1:
            line["linewidth"] = 0.9
        for epochs, loss, val_auroc, is_best in runs:
            best = is_best == 1
            for axes, values in ((loss_axes, loss), (auroc_axes, val_auroc)):
                axes.plot(epochs, values, **line)
                axes.plot(epochs[best], values[best], "o", markersize=4, color=line["color"])
            losses.extend(loss[np.isfinite(loss)])
    for axes, title in ((loss_axes, "training loss"), (auroc_axes, "validation AUROC")):
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True)
    if losses and 0 < 10 * min(losses) < max(losses):
        loss_axes.set_yscale("log")
    add_legend(figure, styles, {name: name for name in histories})
    return figure


@styled
def draw_layers(evidence: Evidence) -> Figure:
    """Validation AUROC by layer."""
    styles = find_styles(evidence.kinds)
    figure = Figure(figsize=WIDE, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="layer", ylabel="validation AUROC")
    axes.axhline(0.5, color=FAINT, linewidth=0.8)
    for name, (layers, areas) in evidence.layers.items():
        axes.plot(layers, areas, marker="o", markersize=3, label=name, **styles[name])
    axes.locator_params(axis="x", integer=True)
    figure.legend(loc="outside right upper", alignment="left", handlelength=2.6)
    return figure


def thin(x: NDArray, y: NDArray) -> Curve:
    """At most 500 points of a curve, its ends among them."""
    places = np.linspace(0, len(x) - 1, min(len(x), N_POINTS))
    chosen = places.round().astype(int)  # at least 1 apart, so none twice
    return x[chosen], y[chosen]


def one_axes(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure of one picture whose axes are rates, about square without its legend."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    return figure, axes


def small_axes(n: int, heights: Sequence[int]) -> tuple[Figure, list[list[Axes]]]:
    """A figure of n small pictures, four in a row, each of parts of the given relative heights.

    Returns the axes by part, then picture. All x axes go from 0 to 1.
    """
    n_parts = len(heights)
    n_columns = max(1, min(n, N_COLUMNS))
    n_rows = max(1, math.ceil(n / n_columns))
    width = max(1.9 * n_columns + 0.4, 5)
    height = n_rows * (1.75 if n_parts == 1 else 2.5) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        n_parts * n_rows, n_columns, squeeze=False, height_ratios=list(heights) * n_rows
    )
    parts = [grid[part::n_parts].ravel() for part in range(n_parts)]
    for part in parts:
        for axes in part[:n]:
            axes.set(xlim=(-0.01, 1.01), xticks=(0, 0.5, 1))
            axes.tick_params(labelbottom=part is parts[-1])
        for axes in part[n:]:
            axes.remove()
    return figure, [list(part[:n]) for part in parts]


Cell = tuple[float, Sequence[float]]  # AUROC and its 95% interval
Cells = Mapping[tuple[str, str], Cell]  # (run, store) -> cell; one that is missing stays empty

HEAT = "cividis"  # colours of one order of lightness, also for colour-blind readers
DARK_BELOW = 0.8  # AUROC below which the cell is too dark for dark text
CELL_WIDTH, CELL_HEIGHT = 1.35, 0.65  # inches
N_CHARACTERS = 24  # of a name beside the cells


@styled
def draw_heat_map(
    cells: Cells, runs: Sequence[str], stores: Sequence[str], own: set[tuple[str, str]]
) -> Figure:
    """Draw AUROCs from .5 to 1, with the numbers in the cells: `runs` are rows, `stores` columns.

    (run, store) is marked if it is in `own`, where the store is the run's own.
    """
    size = 2.4 + CELL_WIDTH * len(stores), 1.1 + CELL_HEIGHT * len(runs)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    areas = np.full((len(runs), len(stores)), np.nan)
    for (run, store), (area, interval) in cells.items():
        row, column = runs.index(run), stores.index(store)
        areas[row, column] = area
        low, high = map(short, interval)
        text = f"{short(area)}\n[{low}, {high}]"
        if (run, store) in own:
            text += "\nown test split"
        colour = "white" if area < DARK_BELOW else "black"
        place = column + 0.5, row + 0.5
        axes.text(*place, text, ha="center", va="center", color=colour, fontsize=8)
    # not imshow, whose pixels a page without external resources would not show
    axes.pcolormesh(np.ma.masked_invalid(areas), cmap=HEAT, vmin=0.5, vmax=1)
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(stores)) + 0.5, [shorten(name) for name in stores])
    axes.set_yticks(np.arange(len(runs)) + 0.5, [shorten(name) for name in runs])
    axes.set_xlabel("tested on")
    axes.set_ylabel("trained on")
    axes.tick_params(length=0)
    return figure


def shorten(name: str) -> str:
    return name if len(name) <= N_CHARACTERS else name[: N_CHARACTERS - 1] + "…"
