"""What is fitted on validation, against the truth of simulated scores and against brute force."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import f1_score

from train.evaluate import calibrate
from train.evaluate.findings import measure_method
from train.evaluate.frame import Frame
from train.evaluate.metrics import youden_threshold
from train.evaluate.results import Facts


def draw(n, seed, factor=1.0):
    """Labels of known log-odds, and probabilities of these times a factor."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(0, 1.5, n)
    return (rng.random(n) < expit(log_odds)).astype(int), expit(factor * log_odds)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_is_the_factor_of_the_log_odds(factor):
    assert calibrate.fit_temperature(*draw(20_000, 0, factor)) == pytest.approx(factor, rel=0.05)


def test_recalibration_mends_what_is_too_sure():
    val, test = draw(4000, 0, 3.0), draw(4000, 1, 3.0)
    found = calibrate.measure_recalibrated(*val, *test)
    untouched = calibrate.measure_recalibrated(*draw(4000, 0), *draw(4000, 1))
    assert found["temperature_ece"] < 0.03
    assert found["isotonic_ece"] < 0.03
    assert found["temperature_brier"] == pytest.approx(untouched["temperature_brier"], abs=0.002)


def test_the_risk_is_a_mean_over_questions():
    """Of three hallucinations of one question and one of another; right answers do not count."""
    labels = np.array([1, 1, 1, 1, 0])
    scores = np.array([0.2, 0.5, 0.9, 0.4, 0.1])
    questions = np.array([0, 0, 0, 1, 2])
    found = calibrate.risks_at(labels, scores, questions, np.array([0.2, 0.3, 0.5, 1.0]))
    assert found == pytest.approx([0, 1 / 6, (1 / 3 + 1) / 2, 1])
    expected = {"risk": 1 / 6, "answered": 2 / 5, "wrong_answered": 1 / 2}
    assert calibrate.controlled_risk(labels, scores, questions, 0.3) == pytest.approx(expected)


def test_the_threshold_is_the_largest_that_keeps_the_bound():
    """Tried one after the other over a fine grid."""
    labels, scores = draw(300, 2)
    questions = np.arange(300) // 2
    n = len(np.unique(questions[labels == 1]))
    found = calibrate.risk_threshold(labels, scores, questions, 0.1)
    grid = np.linspace(0, 1, 5001)
    risks = calibrate.risks_at(labels, scores, questions, grid)
    allowed = grid[(n * risks + 1) / (n + 1) <= 0.1]
    assert allowed.max() <= found <= allowed.max() + 1 / 5000


def test_no_promise_without_questions_to_keep_it():
    """Of .1 nine with a hallucination are needed; a risk of 1 lets everything through."""
    scores = np.linspace(0, 1, 9)
    assert calibrate.risk_threshold(np.ones(8), scores[:8], np.arange(8), 0.1) is None
    assert calibrate.risk_threshold(np.ones(9), scores, np.arange(9), 0.1) == 0
    assert calibrate.risk_threshold(np.ones(9), scores, np.arange(9), 1.0) > 1
    assert calibrate.keep_promise(np.ones(8), scores[:8], np.arange(8), 0.1, seed=0) == {}
    assert calibrate.keep_promise(np.ones(9), scores, np.arange(9), 0.1, seed=0) == {
        "risk_threshold": 0
    }


def test_a_promise_is_tried_on_other_questions():
    """Of thresholds of each half, near that of all."""
    labels, scores = draw(2000, 4)
    questions = np.arange(2000) // 2
    found = calibrate.keep_promise(labels, scores, questions, 0.2, seed=0)
    assert found["risk_threshold"] == calibrate.risk_threshold(labels, scores, questions, 0.2)
    assert found["risk"] == pytest.approx(0.2, abs=0.05)
    same = calibrate.controlled_risk(labels, scores, questions, found["risk_threshold"])
    assert same["risk"] != found["risk"]
    assert found["answered"] == pytest.approx(same["answered"], abs=0.05)


def test_what_is_chosen_of_several_seeds_is_of_their_mean_score():
    """Thresholds and temperature; the promise is of that scorer, F1 the mean over the seeds."""
    rng = np.random.default_rng(0)
    n = 800
    labels = rng.integers(0, 2, n)
    runs = np.array([expit(width * (labels + rng.normal(size=n))) for width in (0.5, 2, 5)])
    keys = np.array([f"q{i // 2}" for i in range(n)], dtype=object)
    splits = np.repeat(["val", "test"], n // 2).astype(object)
    frame = Frame(np.arange(n).astype(str).astype(object), splits, labels, keys, {"a": runs}, 1)
    entry = measure_method(frame, "a", Facts(parameters=0, seconds=0.0), risk=0.2)
    val, test = frame.val, frame.test
    threshold = youden_threshold(val.labels, val.mean("a"))
    assert entry.val.threshold == entry.test.threshold == threshold
    assert entry.test.temperature == calibrate.fit_temperature(val.labels, val.mean("a"))
    promised = calibrate.keep_promise(test.labels, test.mean("a"), test.questions, 0.2, seed=1)
    assert {name: getattr(entry.test, name) for name in promised} == promised
    own = [youden_threshold(val.labels, scores) for scores in val.scores["a"]]
    of_seeds = [
        f1_score(test.labels, run >= t) for run, t in zip(test.scores["a"], own, strict=True)
    ]
    assert entry.test.f1 == pytest.approx(np.mean(of_seeds))
    assert threshold != pytest.approx(np.mean(own))
