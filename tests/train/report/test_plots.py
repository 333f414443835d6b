"""What is drawn: every name, in a style of its own, also where numbers are missing."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from train.evaluate.metrics import aurc, auroc, risk_coverage, roc_points
from train.evaluate.results import Epoch
from train.report import PICTURES, plots
from train.report.numbers import short


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
    assert len(found) == 500
    assert (found[0], found[-1]) == (0, 9999)
    assert plots.thin(x[:7], x[:7])[0].tolist() == list(range(7))


def test_histories_with_gaps(make_evidence):
    """A loss of NaN, and no AUROC at all, leave gaps."""
    evidence = make_evidence()
    (run,) = evidence.results.models["model_0"].runs
    run.history = [Epoch(i, math.nan, math.nan) for i in range(4)]
    plots.draw_learning_curves(evidence).draw_without_rendering()


def test_a_wide_range_of_losses_is_logarithmic(make_evidence):
    evidence = make_evidence()
    assert plots.draw_learning_curves(evidence).axes[0].get_yscale() == "linear"
    (run,) = evidence.results.models["model_0"].runs
    run.history[0] = dataclasses.replace(run.history[0], loss=90.0)
    assert plots.draw_learning_curves(evidence).axes[0].get_yscale() == "log"
