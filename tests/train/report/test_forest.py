"""The first picture: every method once, its interval, and the best baseline as a line."""

from dataclasses import replace

import pytest
from rich.console import Console

from train.evaluate.results import Entry, SplitsSummary
from train.report import write_pages
from train.report.console import print_results
from train.report.evidence import KINDS
from train.report.numbers import short
from train.report.plots import GAP, draw_forest
from train.report.tables import build_metrics


def of_splits(evidence, areas):
    """Evidence of two splits that have these names, with these means."""
    results = evidence.results

    def mean(name):
        entry = results.entries[name]
        around = [areas[name] - 0.1, areas[name] + 0.1] if name != "majority" else [0.5, 0.5]
        test = replace(entry.test, auroc=areas[name], auroc_ci=around, auroc_sd=0.01)
        return Entry(val=entry.val, test=test, seconds=entry.seconds, parameters=entry.parameters)

    groups = [
        {name: mean(name) for name in group if name in areas}
        for group in (results.models, results.baselines)
    ]
    results.splits = SplitsSummary(
        *groups,
        comparisons=[],
        verdict=None,
        strata=None,
        explained=None,
        remarks=["split of seed 1: warning: model_0 has not left chance"],
        seeds=[0, 1],
        test_over_train=0.2,
        runs=[replace(results)] * 2,
    )
    return evidence


def test_every_method_has_its_row(make_evidence):
    """With its number at the right; the constant one has none."""
    evidence = make_evidence(models=3, baselines=2)
    (axes,) = draw_forest(evidence).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(names) == sorted(evidence.ranking)
    assert "majority" not in names
    numbers = [text.get_text() for text in axes.texts if text.get_text() not in KINDS]
    assert numbers == [short(evidence.entries[name].test.auroc) for name in names]


def test_the_best_baseline_is_a_line(make_evidence):
    evidence = make_evidence()
    (axes,) = draw_forest(evidence).axes
    best = evidence.results.verdict.baseline.rival
    at = {line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1}
    assert evidence.entries[best].test.auroc in at


def test_intervals_are_those_of_all_splits(make_evidence):
    """Where there are several."""
    evidence = make_evidence(models=1, baselines=1)
    areas = dict.fromkeys(evidence.entries, 0.7) | {"majority": 0.5}
    of_splits(evidence, areas)
    (axes,) = draw_forest(evidence).axes
    spans = [list(line.get_xdata()) for line in axes.lines if len(set(line.get_xdata())) == 2]
    assert spans == [pytest.approx([0.6, 0.8])] * 2


@pytest.mark.parametrize("models, baselines", [(0, 1), (1, 0)])
def test_what_is_missing_leaves_no_room(make_evidence, models, baselines):
    """One method, one row at the top."""
    (axes,) = draw_forest(make_evidence(models, baselines)).axes
    assert list(axes.get_yticks()) == [GAP]


@pytest.mark.usefixtures("undrawn")
def test_a_method_that_a_split_lacks_is_shown_nowhere(make_evidence, tmp_path, capsys):
    """It has no mean: a report without it, not a KeyError after hours of training."""
    evidence = of_splits(make_evidence(), {"model_0": 0.8, "model_1": 0.7, "base_1": 0.6})
    evidence.results.baselines["base_0"].layers = [1, 2]
    evidence.results.baselines["base_0"].layer_val_auroc = [0.6, 0.7]
    write_pages(evidence, tmp_path)
    names = [label.get_text() for label in draw_forest(evidence).axes[0].get_yticklabels()]
    assert names == ["model_0", "model_1", "base_1"]
    table = build_metrics(evidence.results)
    assert [row[0] for row in table.rows] == ["model_0", "model_1", "base_1"]
    assert "base_0" not in evidence.shown
    report = (tmp_path / "report.md").read_text()
    assert "base_0" not in report
    assert "Split of seed 1: warning: model_0 has not left chance." in report.replace("\\", "")
    print_results(evidence.results, Console(width=100))
    assert "split of seed 1: warning: model_0 has not left chance" in capsys.readouterr().out


@pytest.mark.parametrize("first, second", [(0.9, 0.6), (0.6, 0.9)])
def test_the_best_of_all_splits_comes_first(make_evidence, first, second):
    """Whatever the first split says: rows are in the order of the numbers beside them."""
    areas = {"model_0": first, "model_1": second, "base_0": 0.7}
    (axes,) = draw_forest(of_splits(make_evidence(), areas)).axes
    texts = [text.get_text() for text in axes.texts]
    numbers = [float(text) for text in texts if text not in KINDS]
    assert numbers[:2] == [0.9, 0.6]
