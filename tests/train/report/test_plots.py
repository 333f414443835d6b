"""What is drawn: every name, in a style of its own, also where numbers are missing."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from train.evaluate.metrics import aurc, auroc, risk_coverage, roc_points
from train.evaluate.over_splits import summarise_splits
from train.evaluate.results import Epoch
from train.report import PICTURES, plots
from train.report.evidence import KINDS
from train.report.numbers import short
from train.report.render import Picture, draw_svg


def add_layers(evidence):
    evidence = dataclasses.replace(evidence, results=copy.deepcopy(evidence.results))
    evidence.results.baselines["base_0"].layers = [1, 2, 3, 4]
    evidence.results.baselines["base_0"].layer_val_auroc = [0.5, None, float("nan"), 0.8]
    return evidence


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize(
    "models, baselines, n_runs",
    [(3, 2, 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((9, 6, 2), (1, 1, 3)))],
)
def test_everything_is_drawn(make_evidence, draw, models, baselines, n_runs):
    """Of few and of many, without a warning."""
    draw(add_layers(make_evidence(models, baselines, n_runs))).draw_without_rendering()


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_legends_have_the_numbers(make_evidence):
    """AUROC of the results, AURC the mean of the seeds'; the best first, and no constant."""
    evidence = make_evidence(n_runs=2)
    entries = evidence.entries
    names = sorted(evidence.ranking, key=lambda name: -entries[name].test.auroc)
    expected = [f"{short(entries[name].test.auroc)}  {name}" for name in names]
    assert texts(plots.draw_roc(evidence)) == expected
    areas = {
        name: np.mean([aurc(evidence.test_labels, *run) for run in evidence.runs(name)])
        for name in evidence.ranking
    }
    expected = [f"{short(areas[name])}  {name}" for name in sorted(areas, key=areas.__getitem__)]
    assert texts(plots.draw_risk_coverage(evidence)) == expected


def test_lines_are_those_of_the_metrics(make_evidence):
    """Of the first seed, points as `train.evaluate.metrics` gives them."""
    evidence = make_evidence(models=1, baselines=0, n_runs=2)
    scores, threshold = next(evidence.runs("model_0"))
    drawn = plots.draw_roc(evidence), plots.draw_risk_coverage(evidence)
    roc, risk = (figure.axes[0].lines[-1].get_xydata().T for figure in drawn)
    np.testing.assert_array_equal(roc, roc_points(evidence.test_labels, scores))
    np.testing.assert_array_equal(risk, risk_coverage(evidence.test_labels, scores, threshold))
    assert np.trapezoid(roc[1], roc[0]) == pytest.approx(auroc(evidence.test_labels, scores))


def test_long_curves_are_thinned():
    """To points of their own, the ends among them."""
    x = np.arange(10_000)
    found, _ = plots.thin(x, x)
    assert (len(found), found[0], found[-1]) == (500, 0, 9999)
    assert plots.thin(x[:7], x[:7])[0].tolist() == list(range(7))


def test_losses_with_gaps_or_a_wide_range(make_evidence):
    """A loss of NaN, and no AUROC at all, leave gaps; a wide range is logarithmic."""
    evidence = make_evidence()
    (run,) = evidence.results.models["model_0"].runs
    assert plots.draw_learning_curves(evidence).axes[0].get_yscale() == "linear"
    run.history[0] = dataclasses.replace(run.history[0], loss=90.0)
    assert plots.draw_learning_curves(evidence).axes[0].get_yscale() == "log"
    run.history = [Epoch(i, math.nan, math.nan) for i in range(4)]
    plots.draw_learning_curves(evidence).draw_without_rendering()


def rows_of(figure):
    """The names and the numbers of a forest, from the top."""
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    return names, [text.get_text() for text in axes.texts if text.get_text() not in KINDS]


def test_the_forest_has_a_row_for_every_method(make_evidence):
    """With its number at the right; the constant one has none. The best baseline is a line."""
    evidence = make_evidence(models=3, baselines=2)
    figure = plots.draw_forest(evidence)
    names, numbers = rows_of(figure)
    assert sorted(names) == sorted(evidence.ranking)
    assert "majority" not in names
    assert numbers == [short(evidence.entries[name].test.auroc) for name in names]
    best = evidence.results.verdict.baseline.rival
    (axes,) = figure.axes
    at = {line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1}
    assert evidence.entries[best].test.auroc in at


@pytest.mark.parametrize("models, baselines", [(0, 1), (1, 0)])
def test_what_is_missing_leaves_no_room(make_evidence, models, baselines):
    """One method, one row at the top."""
    (axes,) = plots.draw_forest(make_evidence(models, baselines)).axes
    assert list(axes.get_yticks()) == [plots.GAP]


def test_a_forest_of_several_splits_is_of_their_means(make_evidence):
    """Numbers, intervals and order, whatever the first split says; a method that a split lacks has
    no row."""
    evidence = make_evidence()
    results = evidence.results
    results.comparisons = []
    others = {name: one for name, one in results.baselines.items() if name != "base_0"}
    second = dataclasses.replace(copy.deepcopy(results), baselines=others)
    second.models["model_0"].test.auroc = 0.5
    results.splits = summarise_splits([dataclasses.replace(results), second])
    results.splits.models["model_0"].test.auroc_ci = [0.6, 0.8]
    figure = plots.draw_forest(evidence)
    shown = results.shown.entries
    means = {name: shown[name].test for name in ("model_1", "model_0", "base_1")}
    assert means["model_1"].auroc > means["model_0"].auroc
    numbers = [short(one.auroc) for one in means.values()]
    assert rows_of(figure) == ([*means], numbers)
    spans = [line.get_xdata() for line in figure.axes[0].lines]
    assert (0.6, 0.8) in {tuple(one) for one in spans}


CELLS = {("a", "x"): (0.91, [0.88, 0.94]), ("b", "x"): (0.4, [0.3, 0.5])}


def test_a_heat_map_of_runs_and_stores():
    """Every number, the run's own store marked, a cell without a number empty; and no pixel, as the
    page loads nothing."""
    stores = ["x", "a store of a long name " * 3]
    figure = plots.draw_heat_map(CELLS, ["a", "b"], stores, own={("a", "x")})
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == [".910\n[.880, .940]\nown test split", ".400\n[.300, .500]"]
    svg = draw_svg(Picture("heat_map", figure, "AUROC"))
    assert "<image" not in svg
    assert "data:" not in svg
