"""Metrics at a threshold from elsewhere: those of the metrics, with intervals over questions."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from train.evaluate.findings import bootstrap_predictions, measure_elsewhere
from train.evaluate.intervals import auroc_interval, share_interval
from train.evaluate.metrics import auroc, measure
from train.records import as_json


def draw(n=120, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    scores = np.clip(0.3 * labels + 0.7 * rng.random(n), 0, 1)
    return labels, scores, np.arange(n) // 3


def test_numbers_are_those_of_the_metrics():
    """The threshold is the given one, wherever the best would be."""
    labels, scores, questions = draw()
    found = measure_elsewhere(labels, scores, 0.9, questions, seed=3)
    assert found.threshold == 0.9
    assert found.auroc == auroc(labels, scores)
    assert found.auroc_ci == auroc_interval(labels, scores, questions)
    expected = as_json(measure(labels, scores, 0.9))
    assert as_json(found).items() >= expected.items()
    for name in ("f1", "mcc", "accuracy"):
        low, high = getattr(found, f"{name}_ci")
        assert low < getattr(found, name) < high


def test_intervals_are_those_of_rows_drawn_by_question():
    """Written out: the rows of each drawn question, and scikit-learn's metrics of them."""
    labels, scores, questions = draw(60)
    predicted = scores >= 0.5
    found = bootstrap_predictions(labels, predicted, questions, seed=1, n_resamples=50)
    rng = np.random.default_rng(1)
    samples = {"f1": [], "mcc": []}
    for _ in range(50):
        drawn = rng.integers(20, size=20)
        rows = np.concatenate([np.flatnonzero(questions == question) for question in drawn])
        samples["f1"].append(f1_score(labels[rows], predicted[rows]))
        samples["mcc"].append(matthews_corrcoef(labels[rows], predicted[rows]))
    for name, values in samples.items():
        assert found[name] == pytest.approx(np.percentile(values, [2.5, 97.5]))
    # MCC is 0 where it is not defined; resamples of one class are left out
    constant = np.zeros(4, bool)
    found = bootstrap_predictions(np.array([0, 0, 0, 1]), constant, np.arange(4), seed=0)
    assert found["mcc"] == found["f1"] == [0, 0]


@pytest.mark.parametrize("accuracy, least", [(0.96, 0.93), (0.8, 0.93), (1.0, 1.0)])
@pytest.mark.parametrize("n_rows", [1, 3])
def test_the_interval_of_the_accuracy_holds_the_truth(accuracy, least, n_rows):
    """Of 60 rows, also alike by three; and it has a width where every prediction is right."""
    rng = np.random.default_rng(0)
    questions = np.arange(60) // n_rows
    n_held = 0
    for _ in range(400):
        is_right = (rng.random(60) < accuracy)[questions]
        low, high = share_interval(is_right, questions)
        assert 0 < low < high <= 1
        n_held += low <= accuracy <= high
    assert n_held / 400 >= least
