"""Runs of several splits: the mean difference over them, tested as a run's own table is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from runs import LABELS, SPLITS, make_results, make_run

from train.commands.side_by_side import compare_across_splits, read_splits_of
from train.evaluate.metrics import auroc
from train.evaluate.over_splits import corrected_t_test
from train.evaluate.paired_tests import holm

TESTED = [np.roll(SPLITS, shift) for shift in (0, 40, 80)]  # each row is tested once


@pytest.fixture
def splits():
    """Two runs of three splits, with a detector and a baseline each; `y` is in two splits only."""
    return [
        {
            "a": make_run({"x": i, "base": i + 10, "y": i}, "x", tested, baselines=["base"]),
            "b": make_run({"z": i + 20, "base": i + 30} | ({"y": 3} if i else {}), "z", tested),
        }
        for i, tested in enumerate(TESTED)
    ]


def test_differences_are_those_of_each_split(splits):
    """Of the best of each run, and of what has one name in all splits of both."""
    found = compare_across_splits(splits)
    assert [(one.what, one.a, one.b) for one in found] == [
        ("best", ("a", "x"), ("b", "z")),
        ("same", ("a", "base"), ("b", "base")),
    ]
    p_values = {}
    for number, one in enumerate(found):
        (_, a), (_, b) = one.a, one.b
        expected = []
        for runs, tested in zip(splits, TESTED, strict=True):
            is_test = tested == "test"
            areas = [
                auroc(LABELS[is_test], runs[run].frame.scores[name][0, is_test])
                for run, name in (("a", a), ("b", b))
            ]
            expected.append(areas[0] - areas[1])
        assert one.differences == expected
        test = corrected_t_test(expected, 1.0)  # as many rows in test as in train
        assert (one.difference, one.ci, one.p) == (test.mean, test.ci, test.p)
        p_values[number] = test.p
    assert [one.p_holm for one in found] == list(holm(p_values).values())


def test_runs_of_other_splits_are_not_averaged(splits, tmp_path):
    """Nor runs of one split, nor those whose other splits are not there."""
    one = splits[0]["a"]

    def of_splits(seeds):
        summary = SimpleNamespace(seeds=seeds)
        return replace(one, results=make_results(splits=summary), directory=tmp_path)

    several = of_splits([0, 1, 2])
    assert read_splits_of({"a": one, "b": one}) == []
    assert read_splits_of({"a": several, "b": several}) == []
    for seed in (1, 2):
        (tmp_path / f"split-{seed}").mkdir()
    assert read_splits_of({"a": several, "b": of_splits([0, 1])}) == []
