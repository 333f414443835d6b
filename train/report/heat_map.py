"""A table of AUROCs as a picture: trained on (rows), tested on (columns)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.report.numbers import short
from train.report.plots import styled

__all__ = ["Cell", "draw_heat_maps"]

Cell = tuple[float, Sequence[float]]  # AUROC and its 95% interval
Cells = Mapping[tuple[str, str], Cell]  # (run, store) -> cell; one that is missing stays empty

COLOURS = "cividis"  # one order of lightness, also for colour-blind readers
DARK_BELOW = 0.8  # AUROC below which the cell is too dark for dark text
CELL_WIDTH, CELL_HEIGHT = 1.35, 0.65  # inches
N_CHARACTERS = 24  # of a name beside the cells
N_ACROSS = 2  # pictures


@styled
def draw_heat_maps(
    titles: Sequence[str],
    cells: Sequence[Cells],
    runs: Sequence[str],
    stores: Sequence[str],
    own: set[tuple[str, str]],
) -> Figure:
    """Draw a heat map of AUROCs for each title, from .5 to 1, with the numbers in the cells.

    The rows are `runs` and the columns `stores`; (run, store) is marked if it is in `own`, where
    the store is the run's own.
    """
    n_across = min(N_ACROSS, len(titles))
    n_down = -(-len(titles) // n_across)
    width = n_across * (1.6 + CELL_WIDTH * len(stores)) + 0.8
    height = n_down * (1.1 + CELL_HEIGHT * len(runs))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(n_down, n_across, squeeze=False).flat
    for axes, title, one in zip(grid, titles, cells, strict=False):
        draw_one(axes, title, one, runs, stores, own)
    for axes in list(grid)[len(titles) :]:
        axes.set_axis_off()
    return figure


def draw_one(
    axes: Axes,
    title: str,
    cells: Cells,
    runs: Sequence[str],
    stores: Sequence[str],
    own: set[tuple[str, str]],
) -> None:
    empty = (np.nan, ())
    areas = [[cells.get((run, store), empty)[0] for store in stores] for run in runs]
    # not imshow, whose pixels a page without external resources would not show
    axes.pcolormesh(np.ma.masked_invalid(areas), cmap=COLOURS, vmin=0.5, vmax=1)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xticks(np.arange(len(stores)) + 0.5, [shorten(name) for name in stores])
    axes.set_yticks(np.arange(len(runs)) + 0.5, [shorten(name) for name in runs])
    axes.set_xlabel("tested on")
    axes.set_ylabel("trained on")
    axes.tick_params(length=0)
    for row, run in enumerate(runs):
        for column, store in enumerate(stores):
            if (run, store) in cells:
                is_own = (run, store) in own
                write_cell(axes, column, row, cells[run, store], is_own=is_own)


def write_cell(axes: Axes, column: int, row: int, cell: Cell, *, is_own: bool) -> None:
    area, interval = cell
    colour = "white" if area < DARK_BELOW else "black"
    low, high = map(short, interval)
    text = f"{short(area)}\n[{low}, {high}]"
    if is_own:
        text += "\nown test split"
    axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=8)


def shorten(name: str) -> str:
    return name if len(name) <= N_CHARACTERS else name[: N_CHARACTERS - 1] + "…"
