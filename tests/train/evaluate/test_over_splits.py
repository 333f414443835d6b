"""Several splits: Nadeau and Bengio's test by hand, and means that have the form of one split."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from runs import make_results
from scipy.stats import t as student
from small import complaint

from train.evaluate.over_splits import corrected_t_test, summarise_splits
from train.evaluate.paired_tests import holm
from train.evaluate.results import (
    Counts,
    Entry,
    Explained,
    Metrics,
    PairedTest,
    Results,
    SplitCounts,
    StrataRecord,
    TrainingFacts,
)
from train.records import WrongValueError, as_json, from_json, json_text


def test_nadeau_and_bengio_by_hand():
    """Three differences with test a fifth of train: the variance of the mean is (1/3 + 1/5) times
    the sample variance."""
    values = [0.02, 0.05, 0.02]
    mean = 0.03
    variance = ((0.01**2) + (0.02**2) + (0.01**2)) / 2
    error = math.sqrt((1 / 3 + 0.2) * variance)
    found = corrected_t_test(values, 0.2)
    assert found.mean == pytest.approx(mean)
    assert found.p == pytest.approx(2 * (1 - student.cdf(mean / error, 2)))
    half = 4.302652729911275 * error
    assert found.ci == pytest.approx([mean - half, mean + half])


@pytest.mark.parametrize("value, p", [(0.0, 1.0), (0.25, 0.0)])
def test_equal_differences(value, p):
    found = corrected_t_test([value] * 3, 0.2)
    assert (found.mean, *found.ci, found.p) == (value, value, value, p)


def make_run(seed):
    """Results of one split with drawn numbers."""
    rng = np.random.default_rng(seed)

    def entry(**more):
        val, test = (
            Metrics(auroc=float(rng.random()), threshold=float(rng.random())) for _ in "vt"
        )
        test.auroc_ci, test.auroc_within = [0.1, 0.9], float(rng.random())
        return Entry(val=val, test=test, seconds=seed + 1.0, parameters=9, **more)

    counts = [Counts(rows, 1, 1) for rows in (70 + seed, 15, 14 + seed)]
    pairs = ("ab", "ac", "ad", "bc", "bd")
    return make_results(
        split=SplitCounts(seed, "question_id", 0, *counts, 0),
        models={
            "a": entry(runs=[TrainingFacts(0, "a.pt", [], 1.0, 0.0, 1, 0.1, layer=seed)]),
            "b": entry(),
        },
        baselines={"c": entry(C=1.0), "d": entry(control=True)},
        comparisons=[PairedTest(a=one, b=two, difference=0.0, ci=[0, 0]) for one, two in pairs],
        strata=StrataRecord("x", None, 3, 3, 10, 0.1 * (seed + 1)),
        explained=Explained("d", {"a": 0.1 * seed, "b": None}),
    )


RUNS = [make_run(seed) for seed in range(4)]


def test_entries_are_means_over_the_splits():
    found = summarise_splits(RUNS)
    for name, entry in found.entries.items():
        areas = [run.entries[name].test.auroc for run in RUNS]
        assert entry.test.auroc_splits == areas
        assert entry.test.auroc == pytest.approx(np.mean(areas))
        assert entry.test.auroc_sd == pytest.approx(np.std(areas, ddof=1))
        low, high = entry.test.auroc_ci
        assert 0 <= low <= entry.test.auroc <= high <= 1
        assert entry.seconds == 2.5
        assert entry.runs is entry.C is None
        assert entry.test.threshold is entry.val.threshold is None
    assert [entry.control for entry in map(found.baselines.get, "cd")] == [False, True]
    assert found.strata == StrataRecord("x", None, 3, 3, 10, pytest.approx(0.25))
    assert found.explained.rank_correlation == {"a": pytest.approx(0.15)}
    assert found.test_over_train == (14 + 15 + 16 + 17) / (70 + 71 + 72 + 73)
    assert found.seeds == [0, 1, 2, 3]
    assert found.runs == RUNS


def test_each_pair_is_one_hypothesis():
    """Its differences are within the splits, its p is that of their mean, Holm's over the pairs."""
    found = summarise_splits(RUNS)
    assert [one.a + one.b for one in found.comparisons] == ["ab", "ac", "ad", "bc", "bd"]
    for one in found.comparisons:
        entries = [run.entries for run in RUNS]
        expected = [e[one.a].test.auroc - e[one.b].test.auroc for e in entries]
        assert one.differences == pytest.approx(expected)
        test = corrected_t_test(expected, found.test_over_train)
        assert (one.difference, one.p) == pytest.approx((test.mean, test.p))
        # with half an answer, of one in each split
        half = student.ppf(0.975, 3) * math.hypot(test.error, 0.5 / 4)
        low, high = (max(-1, test.mean - half), min(1, test.mean + half))
        assert one.ci == pytest.approx([low, high])
    # d is a control: corrected apart, and marked
    for rivals in (("b", "c"), ("d",)):
        family = [one for one in found.comparisons if one.b in rivals]
        p_holm = holm(dict(enumerate(one.p for one in family)))
        assert [one.p_holm for one in family] == list(p_holm.values())
        assert all(one.control == (rivals == ("d",)) for one in family)
    # the verdict is on the best of validation over all splits
    best = [
        max(group, key=lambda name: np.mean([run.entries[name].val.auroc for run in RUNS]))
        for group in ("ab", "c")
    ]
    assert [found.verdict.detector, found.verdict.baseline.rival] == best


def test_equality_is_not_claimed_of_few_answers():
    """Splits that all have the same difference leave the doubt of half an answer of all of them."""
    runs = [make_run(seed) for seed in range(3)]
    for run in runs:
        for entry in run.entries.values():
            entry.test.auroc = 0.75
    found = summarise_splits(runs)
    assert {test.error for test in found.comparisons} == {0.5 / 3}
    assert found.verdict.baseline.finding == "undecided"


def test_what_splits_do_not_share():
    """Strata of different controls name none; a baseline that one split could not fit, and strata
    that one split does not have, are left out."""
    runs = [make_run(0), make_run(1)]
    for run, control in zip(runs, ("question_only", "prompt_state"), strict=True):
        run.strata.by = run.strata.control = control
    found = summarise_splits(runs).strata
    assert found.by == "groups of the score of the hardest control of each split"
    assert found.control is None
    assert found.share_of_pairs == pytest.approx(0.15)
    del runs[1].baselines["c"]
    runs[0].strata = runs[1].explained = None
    found = summarise_splits(runs)
    assert list(found.baselines) == ["d"]
    assert [one.b for one in found.comparisons] == ["b", "d", "d"]
    assert found.strata is found.explained is None


def test_remarks_of_every_split_are_kept():
    """Once if all have it, else with the seeds; and why a table lacks what other splits have."""
    runs = [make_run(seed) for seed in range(3)]
    for run in runs:
        run.remarks = ["layers are counted from 1"]
        run.left_out = {"question_only": "no column 'question'"}
    runs[1].remarks += ["warning: a has not left chance"]
    runs[2].remarks += ["warning: a has not left chance"]
    del runs[2].baselines["c"]
    runs[2].left_out["c"] = "infinity"
    expected = [
        "layers are counted from 1",
        "split of seed 1, 2: warning: a has not left chance",
        "split of seed 2: c could not be fitted, and is in no table: infinity",
    ]
    found = summarise_splits(runs)
    assert found.remarks == expected
    assert replace(runs[0], splits=found).shown.remarks == expected


def test_results_are_read_as_they_were_written():
    """Through JSON; what has its default is not in the file, and a number that is not finite is
    null."""
    results = replace(make_run(0), splits=summarise_splits(RUNS))
    written = json.loads(json.dumps(as_json(results)))
    assert from_json(Results, written) == results
    assert "tokens" not in written
    assert written["baselines"]["d"]["control"] is True
    assert "control" not in written["baselines"]["c"]
    for number in (np.nan, np.inf, np.float64(-np.inf)):
        results.models["a"].test.prr = number
        written = json.loads(json_text(results))
        assert written["models"]["a"]["test"]["prr"] is None
    results.models["a"].test.prr = None
    assert from_json(Results, written) == results


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda r: r["models"]["a"]["test"].update(auroc=2), "models.a.test.auroc: a number from"),
        (lambda r: r["models"]["a"]["runs"][0].update(seed="x"), "models.a.runs[0].seed: an int"),
        (lambda r: r["explained"].update(rank_correlation=[]), "rank_correlation: an object"),
        (lambda r: r["split"].pop("seed"), "split.seed: an integer of at least 0, found None"),
    ],
)
def test_a_wrong_value_is_named(change, message):
    written = json.loads(json.dumps(as_json(make_run(0))))
    change(written)
    assert message in complaint(WrongValueError, from_json, Results, written)
