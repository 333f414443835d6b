"""The verdict: of the mean over trainings, against a margin, corrected, and with the controls."""

import math
from dataclasses import replace

import numpy as np
import pytest
from runs import make_entries
from scipy.stats import norm
from scipy.stats import t as student

from models import CONTROLS
from train.evaluate.metrics import auroc
from train.evaluate.paired_tests import (
    compare_pairs,
    delong_test,
    error_of_trainings,
    find_verdict,
    hardest_control,
    t_interval,
)
from train.evaluate.results import PairedTest


def make_pair(a, b, difference, error=0.01, df=100):
    control = b in CONTROLS
    ci = t_interval(difference, error, df)
    return PairedTest(a=a, b=b, difference=difference, ci=ci, control=control, error=error, df=df)


def judged(*tests, margin=0.01):
    """The verdict on detectors and baselines, the first of which are the best on validation."""
    named = [dict.fromkeys(getattr(test, side) for test in tests) for side in "ab"]
    entries = [
        make_entries({name: 0.9 - i / 100 for i, name in enumerate(names)}) for names in named
    ]
    return find_verdict(tests, *entries, margin)


def test_the_verdict_is_chosen_on_validation():
    """The best of either kind on validation, whatever the test split says of them."""
    pairs = [make_pair(a, b, -0.1) for a in ("y", "x") for b in ("u", "v")]
    verdict = judged(*pairs)
    assert (verdict.detector, verdict.baseline.rival) == ("y", "u")
    assert find_verdict(pairs, make_entries({"x": 0.7}), {}, 0.01) is None


@pytest.mark.parametrize(
    "difference, error, finding",
    [
        (0.05, 0.01, "better"),
        (-0.05, 0.01, "worse"),
        (-0.003, 0.001, "equal"),  # not 0, but of no interest
        (0.015, 0.001, "better"),
        (0.015, 0.004, "undecided"),
        (0.002, 0.02, "undecided"),
        (0.3, None, "undecided"),
    ],
)
def test_a_finding_needs_an_interval_on_one_side_of_the_margin(difference, error, finding):
    found = judged(make_pair("x", "u", difference, error)).baseline
    assert found.finding == finding
    low, high = found.ci
    sides = {"better": low > 0.01, "worse": high < -0.01, "equal": -0.01 < low < high < 0.01}
    assert [side for side in sides if sides[side]] == [finding] * (finding != "undecided")


def test_it_is_corrected_for_the_pairs_that_it_is_chosen_from():
    """A difference that is clear alone is undecided among many that are as clear."""
    alone = judged(make_pair("x", "u0", 0.035))
    among = judged(*(make_pair("x", f"u{i}", 0.035) for i in range(10)))
    assert (alone.baseline.finding, among.baseline.finding) == ("better", "undecided")
    assert among.baseline.p == pytest.approx(10 * alone.baseline.p)


def test_the_detectable_difference_has_an_interval_without_0_in_four_of_five():
    """Of the interval that is printed, so with the variance of the trainings: a difference that is
    called detectable is not within the doubt."""
    pair = make_pair("x", "u", 0.0, error=0.02, df=12)
    found = judged(pair).baseline
    draws = found.detectable + 0.02 * student.rvs(12, size=4000, random_state=0)
    assert np.mean(draws > found.ci[1]) == pytest.approx(0.8, abs=0.02)
    assert judged(replace(pair, error=None)).baseline.detectable is None


def test_a_control_is_no_rival_but_is_judged():
    """The one that is hardest to beat: not the one of the least difference, if that is surer; by
    tests of the best detector."""
    for difference, finding in ((-0.01, "undecided"), (0.3, "better")):
        verdict = judged(make_pair("x", "question_only", difference), make_pair("x", "u", 0.1))
        assert verdict.baseline.rival == "u"
        assert (verdict.control.rival, verdict.control.finding) == ("question_only", finding)
    tests = [
        make_pair("x", "question_only", 0.1, error=0.01),
        make_pair("x", "prompt_state", 0.12, error=0.1),
        make_pair("x", "u", 0.0),
        make_pair("y", "answer_length", -0.1),
    ]
    assert hardest_control(tests, "x", 0.01).b == judged(*tests).control.rival == "prompt_state"
    assert judged(*tests).control.finding == "undecided"
    assert hardest_control(tests, "z", 0.01) is None


def test_a_control_that_sees_no_answer_comes_first():
    """Of those that are not beaten, though another is harder to beat; not one that is beaten."""
    tests = [make_pair("x", "question_answer", -0.2), make_pair("x", "question_only", -0.1)]
    assert hardest_control(tests, "x", 0.01).b == "question_only"
    tests[1] = make_pair("x", "question_only", 0.1)
    assert hardest_control(tests, "x", 0.01).b == "question_answer"


def error_of(labels, a, b, questions):
    variance = delong_test(labels, a, b, questions).variance
    return error_of_trainings(variance, labels, a, b, questions)


def draw(rng, labels, noise):
    """A function that draws scores (n_runs, n) of trainings, which find the same signal with errors
    of their own."""
    signal = 2.2 * labels + rng.normal(size=len(labels))
    return lambda rng, n_runs=3: signal + noise * rng.normal(size=(n_runs, len(labels)))


def test_the_error_adds_the_variance_of_the_trainings():
    """By hand, in the table as in the verdict; trainings that agree add nothing: the variance is
    that of the questions."""
    rng = np.random.default_rng(0)
    labels, questions = rng.integers(0, 2, 400), np.arange(400)
    runs, base = (draw(rng, labels, 0.5)(rng, n) for n in (3, 1))
    test = delong_test(labels, runs, base)
    n = min(labels.sum(), 400 - labels.sum())
    of_questions = (test.difference / test.z) ** 2 + 1 / (2 * n) ** 2
    of_runs = np.var([auroc(labels, run) for run in runs], ddof=1) / 3
    found = error_of(labels, runs, base, questions)
    (pair,) = compare_pairs(labels, {"x": runs, "u": base}, [("x", "u")], questions, seed=0)
    assert judged(pair).baseline.ci == pair.ci == t_interval(pair.difference, *found)
    assert found[0] == pytest.approx(math.sqrt(of_questions + of_runs))
    df = (of_questions + of_runs) ** 2 / (of_questions**2 / (n - 1) + of_runs**2 / 2)
    assert found[1] == pytest.approx(df)
    same = error_of(labels, runs[[0, 0, 0]], base, questions)
    assert same == pytest.approx(error_of(labels, runs[:1], base, questions))
    # two perfect scores leave a doubt of half an answer of the smaller class
    labels = np.repeat([0, 1], [150, 50])
    found = error_of(labels, labels[None] * 1.0, labels[None] * 2.0, np.arange(200))
    assert found == (pytest.approx(1 / 100), pytest.approx(49))


@pytest.mark.slow
def test_intervals_hold_for_new_questions_and_new_trainings():
    """Of trainings that differ much the variance of the questions alone covers too little."""
    rng = np.random.default_rng(3)
    truth = norm.cdf(0.8 / math.sqrt(2.25)) - norm.cdf(0.8 / math.sqrt(2))
    covered = np.zeros(2)
    for _ in range(200):
        labels, questions = rng.integers(0, 2, 200), np.arange(200) // 2
        skills = rng.normal(0.8, 0.5, (3, 1))
        runs = skills * labels + rng.normal(size=(3, 200))
        base = 0.8 * labels + rng.normal(size=(1, 200))
        test = delong_test(labels, runs, base, questions)
        error, df = error_of(labels, runs, base, questions)
        away = abs(test.difference - truth)
        covered += away < 1.96 * test.difference / test.z, away < student.ppf(0.975, df) * error
    assert covered[0] / 200 < 0.85
    assert covered[1] / 200 >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("noise, finding", [(0.1, "equal"), (1.0, "undecided")])
def test_a_finding_does_not_flip_where_there_is_no_difference(noise, finding):
    """With new trainings on one test split, of four."""
    found = []
    for split in range(4):
        rng = np.random.default_rng(split)
        labels, questions = rng.integers(0, 2, 744), np.arange(744)
        train = draw(rng, labels, noise)
        base = train(rng, 1)
        for _ in range(15):
            runs = train(rng)
            error, df = error_of(labels, runs, base, questions)
            test = delong_test(labels, runs, base)
            found.append(judged(make_pair("x", "u", test.difference, error, df)).baseline.finding)
    assert np.mean(np.array(found) == finding) >= 0.95
    assert not {"better", "worse"} & set(found)
