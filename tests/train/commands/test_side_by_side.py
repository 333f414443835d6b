"""Runs side by side: the numbers are those of the metrics and the tests on the common rows."""

from pathlib import Path

import numpy as np
import pytest
from runs import LABELS, SPLITS, N, make_run, paired_bootstrap
from small import complaint

from train.commands.side_by_side import build_areas, compare_runs, find_common, name_runs
from train.errors import DataError
from train.evaluate.intervals import auroc_interval
from train.evaluate.metrics import auroc
from train.evaluate.paired_tests import delong_test, holm
from train.evaluate.results import StoreRecord
from train.report.render import in_words


def test_numbers_are_those_of_the_metrics():
    """AUROC, interval, and both tests of each pair, corrected over all pairs."""
    runs = {"a": make_run({"x": 1, "y": 2}, best="y"), "b": make_run({"x": 3, "y": 4}, best="x")}
    found = compare_runs(runs)
    test = SPLITS == "test"
    labels, questions = LABELS[test], np.arange(N)[test] // 2
    for name, run in runs.items():
        for model, area in found.runs[name].auroc.items():
            scores = run.frame.scores[model][0, test]
            assert area.auroc == auroc(labels, scores)
            assert area.ci == auroc_interval(labels, scores, questions)
    pairs = [(one.what, one.a, one.b) for one in found.comparisons]
    assert pairs == [
        ("best", ("a", "y"), ("b", "x")),
        ("same", ("a", "x"), ("b", "x")),
        ("same", ("a", "y"), ("b", "y")),
    ]
    for one in found.comparisons:
        scores = [runs[run].frame.scores[model][0, test] for run, model in (one.a, one.b)]
        expected = paired_bootstrap(labels, *scores, questions, seed=0)
        assert (one.difference, *one.ci, one.p_bootstrap) == expected
        assert one.p_delong == delong_test(labels, *scores, questions).p
    p_holm = holm(dict(enumerate(one.p_delong for one in found.comparisons)))
    assert [one.p_holm for one in found.comparisons] == list(p_holm.values())


def test_the_best_is_a_detector_if_there_is_one():
    """A baseline that does better on validation is not; without detectors it is."""
    runs = {
        "a": make_run({"x": 1, "y": 2}, "y", baselines=["y"]),
        "b": make_run({"y": 3}, baselines=["y"]),
    }
    assert [run.best for run in compare_runs(runs).runs.values()] == ["x", "y"]


def test_only_rows_that_all_runs_were_tested_on_count():
    """In any order; the others are counted, and those that another run was trained on."""
    other = SPLITS.copy()
    other[80:90], other[90:94], other[:6] = "train", "val", "test"
    order = np.random.default_rng(1).permutation(N)
    a = make_run({"x": 1})
    shuffled = make_run(
        {"x": 2},
        splits=other[order],
        labels=LABELS[order],
        questions=[f"q{i // 2}" for i in order],
        ids=[f"t{i}" for i in order],
    )
    common = find_common({"a": a, "b": shuffled})
    assert common.frame.labels.tolist() == LABELS[94:].tolist()
    assert (common.n_left_out, common.n_trained) == (20, 16)
    where = {trace_id: i for i, trace_id in enumerate(shuffled.frame.trace_ids)}
    expected = [shuffled.frame.scores["x"][0, where[f"t{i}"]] for i in range(94, N)]
    assert common.frame.mean(("b", "x")).tolist() == expected
    assert common.frame.mean(("a", "x")).tolist() == a.frame.scores["x"][0, 94:].tolist()


def flipped(values, place):
    changed = np.array(values)
    changed[place] = 1 - changed[place]
    return changed


@pytest.mark.parametrize(
    "other, message",
    [
        ({"labels": flipped(LABELS, 100)}, "trace 't100': expected one label in all runs, found"),
        (
            {"questions": [f"p{i}" for i in range(N)]},
            "trace 't80': expected one question in all runs, found q40 in a",
        ),
        ({"ids": [f"u{i}" for i in range(N)]}, "a, b: no trace is in the test split of every run"),
        ({"splits": SPLITS[::-1]}, "80 were tested in one run and trained on in another"),
        (
            {"splits": np.where(np.arange(N) == 100, "test", "val")},
            "both classes among the 1 common test traces",
        ),
        (
            {"splits": np.where(np.arange(N) == 80, "train", SPLITS)},
            "b: expected the questions of the common test",
        ),
    ],
    ids=["label", "question", "ids", "splits", "class", "leak"],
)
def test_runs_that_contradict_each_other_are_refused(other, message):
    """Other labels, other traces, no common rows, one class, a question that one was trained on."""
    runs = {"a": make_run({"x": 1}), "b": make_run({"x": 1}, **other)}
    assert message in complaint(DataError, find_common, runs)


@pytest.mark.parametrize(
    "paths, names",
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["one/out", "two/out", "b"], ["one/out", "two/out", "b"]),
        (["x/a", "x/a", "b"], ["1: x/a", "2: x/a", "3: b"]),
    ],
)
def test_names_of_runs_differ(paths, names):
    assert name_runs([Path(path) for path in paths]) == names


def test_one_hypothesis_is_tested_once():
    """Scores that rank alike ask the same on any scale; so do two names for one ranking."""
    runs = {"a": make_run({"x": 1, "logprob": 2}, "x"), "b": make_run({"x": 3, "logprob": 4}, "x")}
    for run in runs.values():
        run.frame.scores["perplexity"] = np.exp(run.frame.scores["logprob"])
        run.results.models["perplexity"] = run.results.models["logprob"]
    assert [one.a[1] for one in compare_runs(runs).comparisons] == ["x", "logprob"]
    runs["b"].frame.scores["logprob"] = runs["a"].frame.scores["logprob"] ** 3
    assert [one.a[1] for one in compare_runs(runs).comparisons] == ["x", "perplexity"]


def test_a_run_beside_its_own_copy():
    """Everything is equal: nothing is tested, and both are shown."""
    run = make_run({"x": 1, "y": 2}, "y")
    found = compare_runs({"a": run, "b": run})
    assert found.comparisons == []
    rows = [("a", "x"), ("", "y *"), ("b", "x"), ("", "y *")]
    assert [row[:2] for row in build_areas(found).rows] == rows


def store_of(origins):
    return StoreRecord("traces.zarr", "ab", 1, 0, origins, False)


def test_runs_on_traces_of_different_models_are_said_to_be():
    """Their rows are paired by trace id all the same; a run that records none says nothing."""
    found = []
    for origins in ([{"weights_sha256": "a"}], [{"weights_sha256": "b"}], []):
        first = make_run({"x": 0}, store=store_of([{"weights_sha256": "a"}]))
        compared = compare_runs({"a": first, "b": make_run({"x": 1}, store=store_of(origins))})
        is_said = "different models" in in_words("compared_rows", compared)
        assert is_said == compared.different_models
        found.append(compared.different_models)
    assert found == [False, True, False]
