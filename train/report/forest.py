"""The first picture of a report: the AUROC of every method, with its interval."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.evaluate.results import Metrics
from train.report.evidence import Evidence
from train.report.methods import Style, find_styles
from train.report.numbers import short
from train.report.plots import FAINT, INK, styled

__all__ = ["GAP", "draw_forest"]

WIDTH = 5.4  # inches
ROW = 0.21  # inches of a method
MARKERS = {"detectors": "o", "probes": "D", "baselines": "s", "controls": "^"}
GAP = 0.9  # rows above each kind, for its name


@styled
def draw_forest(evidence: Evidence) -> Figure:
    """AUROC on test and 95% interval of each method, by kind, the best first.

    A dashed line is the baseline that is best on validation, a dotted one the AUROC of random
    scores. With several splits, the numbers are those over the splits.
    """
    styles = find_styles(evidence.kinds)
    rows = place_rows(evidence)
    n_rows = max(rows.values(), default=0) + 1
    figure = Figure(figsize=(WIDTH, ROW * n_rows + 0.75), layout="constrained")
    axes = figure.subplots()
    for kind, names in evidence.kinds.items():
        for name in names:
            if name in rows:
                draw_row(axes, rows[name], evidence.summary[name].test, kind, styles[name])
    axes.axvline(0.5, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
    draw_best_baseline(axes, evidence)
    axes.set(xlabel="AUROC on test", ylim=(n_rows - 0.4, -0.6))
    axes.set_yticks(list(rows.values()), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.spines.left.set_visible(False)
    draw_numbers(axes, rows, evidence)
    draw_kinds(axes, rows, evidence)
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


def draw_best_baseline(axes: Axes, evidence: Evidence) -> None:
    verdict = evidence.shown_results.verdict
    if verdict:
        area = evidence.summary[verdict.baseline].test.auroc
        axes.axvline(area, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)


def draw_kinds(axes: Axes, rows: dict[str, float], evidence: Evidence) -> None:
    """Write the name of each kind, and its marker, in the gap above its first row."""
    for kind, names in evidence.kinds.items():
        heights = [rows[name] for name in names if name in rows]
        if heights:
            axes.annotate(
                kind,
                (0, min(heights) - GAP),
                xytext=(-6, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                ha="right",
                style="italic",
                color=FAINT,
            )


def draw_numbers(axes: Axes, rows: dict[str, float], evidence: Evidence) -> None:
    """Write each AUROC at the right."""
    for name, row in rows.items():
        number = short(evidence.summary[name].test.auroc)
        axes.annotate(
            number,
            (1, row),
            xytext=(6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
        )
